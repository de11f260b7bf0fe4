"""Tune tvmtune's tasks with MetaSchedule as it comes, in a process of its own; search.py calls it.

    python benchmarks/stock.py --network resnet-18 --trials 1600 --work benchmarks/work/stock

``ms.tune_tasks`` with its defaults: XGBModel, evolutionary search, gradient scheduler, LocalBuilder,
LocalRunner, layout rewriting. The tasks are those of tvmtune's own extraction, direct implementations
alone, and threads are set to those that tvmtune uses. DIR then holds MetaSchedule's database, and
``batches.json``, a line with time and size for each batch that went into it. 1600 trials take about 25
minutes on two cores.

Each batch is built by fresh processes, which import TVM first (10 to 15 s on two idle cores). That
counts towards the time limit of 30 s for a candidate: on a machine that is slow or busy all builds time
out, and ``--build-timeout`` helps.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from tvmtune import api

BATCHES = "batches.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="resnet-18")
    parser.add_argument("--trials", type=int, default=1600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--build-timeout", type=float, default=30.0, help="seconds")
    parser.add_argument("--work", type=Path, required=True)
    options = parser.parse_args()
    options.work.mkdir(parents=True)
    plan = api.plan(api.load(options.network), "cpu")  # it sets TVM_NUM_THREADS, too
    tune(plan, options)


def tune(plan: api.Plan, options: argparse.Namespace) -> None:
    import tvm
    from tvm.s_tir import meta_schedule as ms

    folder, threads = options.work, plan.device.threads
    target = tvm.target.Target(plan.device.target)
    extracted = []
    for task in plan.tasks:
        mod = task.implementation("direct").mod
        name = f"{task.index}_{task.name}"
        extracted.append(ms.ExtractedTask(name, mod, target, [mod], task.weight))
    contexts, weights = ms.relax_integration.extracted_tasks_to_tune_contexts(
        extracted, str(folder), num_threads=threads, seed=options.seed
    )
    ms.tune_tasks(
        tasks=contexts,
        task_weights=weights,
        work_dir=str(folder),
        max_trials_global=options.trials,
        builder=ms.builder.LocalBuilder(max_workers=threads, timeout_sec=options.build_timeout),
        measure_callbacks=[*ms.MeasureCallback.create("default"), stopwatch(folder / BATCHES)],
    )


def stopwatch(path: Path) -> Any:
    """A callback that notes when results went into the database, and how many."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    @derived_object
    class Stopwatch(ms.measure_callback.PyMeasureCallback):
        def apply(
            self, scheduler: Any, task: int, candidates: Any, builds: Any, results: Any
        ) -> None:
            with path.open("a") as file:
                file.write(json.dumps({"time": time.time(), "count": len(results)}) + "\n")

    return Stopwatch()


if __name__ == "__main__":
    main()
