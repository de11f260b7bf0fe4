"""Tune tvmtune's tasks with unmodified MetaSchedule in a separate process; search.py calls it.

    python benchmarks/stock.py --network resnet-18 --trials 1600 --work benchmarks/work/stock

Runs ``ms.tune_tasks`` with its defaults: XGBModel, evolutionary search, gradient scheduler,
LocalBuilder, LocalRunner, layout rewriting. The tasks are the ones that tvmtune extracts, with only
their direct implementations, and the number of threads is tvmtune's. DIR then contains MetaSchedule's
database and ``batches.json``, one line per batch with its time and size. 1600 trials take about 25
minutes on two cores.

Fresh processes build each batch, and first import TVM (10 to 15 s on two idle cores), which counts
toward the limit of 30 s per candidate: if all builds time out on a slow or busy machine, raise
``--build-timeout``.
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
    plan = api.plan(api.load(options.network), "cpu")  # also sets TVM_NUM_THREADS
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
    """A callback that records when results were added to the database, and how many."""
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
