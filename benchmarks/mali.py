"""The space for Mali beside TVM's own rules for GPUs, on an OpenCL device of this machine.

    python benchmarks/mali.py [--network resnet-18] [--trials 200] [--seeds 0,1] [--work DIR]

Tunes the products of the network (convolutions, matrix products) with each of the two spaces alone,
and the same number of trials; everything else of the network is the same in both. The libraries, and
one that was compiled without any log, then take turns. Prints their medians, and how many trials
failed. Winograd is left out: it would be the same kernels in both. With PoCL, which computes on the
CPU, about 15 minutes for each seed; its figures say nothing of a GPU's.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path

import convergence

from tvmtune import api
from tvmtune.deploy.library import Library
from tvmtune.records.log import read_log
from tvmtune.tuning.budget import Budget
from tvmtune.types import Timing

SPACES = ("direct", "shared")
ROUNDS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="resnet-18")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--work", type=Path, default=Path("benchmarks/work"))
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    convergence.warn_if_busy()
    plan = api.plan(api.load(options.network), "mali")
    print(f"{plan.device.model}\n")
    print("| seed | library | trials | failed | median ms | time / direct |\n" + "|---" * 6 + "|")
    untuned = api.compile(plan, options.work / "mali-untuned.so").path
    for seed in map(int, options.seeds.split(",")):
        paths = {"untuned": untuned}
        trials: dict[str, list] = {"untuned": []}
        for space in SPACES:
            log = options.work / f"mali-{options.network}-{space}-{seed}.json"
            paths[space], trials[space] = tuned(plan, space, log, seed, options.trials)
        medians = in_turns(paths)
        for name, median in medians.items():
            failed = Counter(t.error["stage"] for t in trials[name] if t.error)
            causes = ", ".join(f"{n} {stage}" for stage, n in failed.items()) or "0"
            ratio = median / medians[SPACES[0]]
            print(
                f"| {seed} | {name} | {len(trials[name])} | {causes} | {1e3 * median:.1f} | "
                f"{ratio:.2f} |",
                flush=True,
            )


def tuned(plan: api.Plan, space: str, log: Path, seed: int, trials: int) -> tuple[Path, list]:
    """The library of one space alone, and its trials; a log that is there already is continued."""
    tasks = []
    both = {t.index for t in plan.tasks if {i.name for i in t.implementations} >= {*SPACES}}
    for task in plan.tasks:
        alone = [i for i in task.implementations if i.name == space]
        tasks.append(replace(task, implementations=alone or task.implementations[:1]))
    only = replace(plan, tasks=tasks)
    timing = Timing(build_timeout=60.0, run_timeout=30.0)
    products = [t for t in tasks if t.index in both]
    budget = Budget(trials=trials)
    api.tune(only, log, budget=budget, timing=timing, seed=seed, tasks=products)
    path = log.with_suffix(".so")
    api.compile(only, path, [log])
    return path, [t for t in read_log(log).trials if t.own]


def in_turns(paths: dict[str, Path]) -> dict[str, float]:
    """Median seconds of each library."""
    libraries = {name: Library.open(path) for name, path in paths.items()}
    times: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(ROUNDS):
        for name, library in libraries.items():
            times[name] += library.time(library.random_inputs(), repeat=3)
    return {name: statistics.median(found) for name, found in times.items()}


if __name__ == "__main__":
    main()
