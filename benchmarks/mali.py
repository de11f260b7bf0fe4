"""Compare the design space for Mali with TVM's own rules for GPUs, on this machine's OpenCL device.

    python benchmarks/mali.py [--network resnet-18] [--trials 200] [--seeds 0,1] [--work DIR]

Tunes the network's products (convolutions, matrix products) with only one of the two spaces at a time
and the same number of trials; the rest of the network is the same in both. Then times the two
libraries, and one compiled without a log, in turns. Prints their medians and how many trials failed.
Winograd is omitted, because both spaces would have the same kernels. With PoCL, which computes on the
CPU, one seed takes about 15 minutes; its figures say nothing about a GPU.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path

import convergence

from tvmtune import api
from tvmtune.records.log import read_log
from tvmtune.runtime.library import Library
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
    """A library tuned with one space only, and its trials; an existing log is continued."""
    tasks = []
    in_both = {t.index for t in plan.tasks if {i.name for i in t.implementations} >= {*SPACES}}
    for task in plan.tasks:
        of_space = [i for i in task.implementations if i.name == space]
        tasks.append(replace(task, implementations=of_space or task.implementations[:1]))
    only = replace(plan, tasks=tasks)
    timing = Timing(build_timeout=60.0, run_timeout=30.0)
    products = [t for t in tasks if t.index in in_both]
    budget = Budget(trials=trials)
    api.tune(only, log, budget=budget, timing=timing, seed=seed, tasks=products)
    path = log.with_suffix(".so")
    api.compile(only, path, [log])
    return path, [t for t in read_log(log).trials if t.own]


def in_turns(paths: dict[str, Path]) -> dict[str, float]:
    """Median seconds of each library, timed in turns."""
    libraries = {name: Library.open(path) for name, path in paths.items()}
    times: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(ROUNDS):
        for name, library in libraries.items():
            times[name] += library.time(library.random_inputs(), repeat=3)
    return {name: statistics.median(found) for name, found in times.items()}


if __name__ == "__main__":
    main()
