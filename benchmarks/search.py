"""Compare tvmtune's search with MetaSchedule's on the same tasks, one after the other.

    python benchmarks/search.py [--network resnet-18] [--trials 1600] [--work DIR]

Both tune the tasks that tvmtune extracts, with the same number of threads, each in a separate process
and with its own defaults: ``tvmtune tune`` and ``ms.tune_tasks`` (stock.py). Then tvmtune's runner
times all candidates that were incumbents of either run a second time, in turns. This gives the weighted
latency of both over time, and the time that tvmtune took to reach MetaSchedule's final latency.
MetaSchedule has only the direct implementations; the row "direct only" counts only those of tvmtune's
run, although the run spent time on the others as well.

Prints a Markdown table for benchmarks/README.md, and writes the curves to
DIR/search-NETWORK-curves.json: [seconds, trials, weighted ms]. A run reuses what an earlier one left in
DIR, so an interruption costs little. On two idle cores resnet-18 takes about 45 minutes (25 of them
MetaSchedule's), mobilenet about 35.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

import convergence
from convergence import Found, Point, Run

from tvmtune import api
from tvmtune.machine import package_versions
from tvmtune.passes.workload_keys import workload_key
from tvmtune.types import Implementation, Timing

STOCK = "MetaSchedule"
FAILED = 1e9
"""Seconds, as a threshold: MetaSchedule records 1e10 for a candidate that failed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="resnet-18")
    parser.add_argument("--trials", type=int, default=1600)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the second timing")
    parser.add_argument(
        "--number",
        type=int,
        default=1,
        help="calls per repeat; 1: cold caches",
    )
    parser.add_argument(
        "--build-timeout", type=float, default=30.0, help="seconds, for MetaSchedule"
    )
    parser.add_argument("--work", type=Path, default=Path("benchmarks/work"))
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    convergence.warn_if_busy()
    plan = convergence.plan_of(options.network)
    stem = f"{plan.network.name}-{options.trials}"
    times = options.work / f"search-{stem}-times.json"
    log, folder = options.work / f"search-{stem}.json", options.work / f"stock-{stem}"
    took = json.loads(times.read_text()) if times.exists() else {}
    if "tvmtune" not in took:
        log.unlink(missing_ok=True)
        took["tvmtune"] = convergence.tune(options.network, log, options.trials)
        times.write_text(json.dumps(took))
    if STOCK not in took:
        if folder.exists():
            sys.exit(f"{folder} was left by an interrupted run: remove it")
        took[STOCK] = convergence.process(
            [sys.executable, str(Path(__file__).with_name("stock.py")), "--network",
             options.network, "--trials", str(options.trials), "--build-timeout",
             str(options.build_timeout), "--work", str(folder)]
        )  # fmt: skip
        times.write_text(json.dumps(took))
    runs = [
        from_database(plan, folder, *took[STOCK]),
        convergence.from_log("tvmtune", plan, log, *took["tvmtune"]),
        convergence.from_log("tvmtune, direct only", plan, log, *took["tvmtune"], "direct"),
    ]
    timing = Timing(number=options.number)
    convergence.time_again(plan, runs, timing, rounds=options.rounds)
    report = {
        "network": plan.network.name,
        "device": plan.device.to_json(),
        "versions": package_versions.versions(),
        "number": options.number,
        "runs": {run.name: convergence.to_json(run, plan) for run in runs},
    }
    output = options.work / f"search-{plan.network.name}-curves.json"
    output.write_text(json.dumps(report, indent=1) + "\n")
    print(table(plan, runs))


def table(plan: api.Plan, runs: list[Run]) -> str:
    """One row per run; the last columns show when it reached MetaSchedule's final latency."""
    curves = {run.name: run.curve(plan) for run in runs}
    last = curves[STOCK][-1].latency if curves[STOCK] else float("inf")
    lines = [
        f"{plan.network.name}: {len(plan.tasks)} tasks, weighted latency over all kernels",
        "",
        f"| | trials | minutes | trials a minute | own ms | ms | ms when "
        f"{STOCK} ended | minutes to {STOCK}'s result | trials to it | fraction of its time |",
        "|---" * 10 + "|",
    ]
    total = next(run.seconds for run in runs if run.name == STOCK)
    for run in runs:
        curve = curves[run.name]
        point = convergence.reached(curve, last) if last < float("inf") else None
        final = curve[-1].latency if curve else float("inf")
        lines.append(
            f"| {run.name} | {run.trials} | {run.seconds / 60:.1f} | {run.rate:.0f} | "
            f"{run.reported(plan) * 1e3:.3f} | {final * 1e3:.3f} | "
            f"{convergence.at(curve, total) * 1e3:.3f} | {_arrival(point, total)} |"
        )
    return "\n".join(lines)


def _arrival(point: Point | None, total: float) -> str:
    if point is None:
        return "never | - | -"
    return f"{point.seconds / 60:.1f} | {point.trials} | {point.seconds / total:.2f}"


def from_database(plan: api.Plan, folder: Path, began: float, seconds: float) -> Run:
    """MetaSchedule's run, from its database and the times of its batches."""
    from stock import BATCHES
    from tvm.s_tir import meta_schedule as ms

    implementations: dict[str, tuple[str, Implementation]] = {
        workload_key(task.implementation("direct").mod): (task.key, task.implementation("direct"))
        for task in plan.tasks
    }
    workloads = []
    for line in (folder / "database_workload.json").read_text().splitlines():
        mod = ms.database.Workload.from_json(json.loads(line)).mod
        workloads.append(implementations.get(workload_key(mod)))
    times: list[float] = []
    for line in (folder / BATCHES).read_text().splitlines():
        batch = json.loads(line)
        times += [batch["time"] - began] * batch["count"]
    found = []
    records = (folder / "database_tuning_record.json").read_text().splitlines()
    for number, line in enumerate(records):
        workload, (trace, results, *_) = json.loads(line)
        direct = workloads[workload]
        latency = statistics.median(results) if results else FAILED
        if direct is not None and latency < FAILED:
            found.append(Found(times[number], number + 1, *direct, trace, latency))
    return Run(STOCK, found, len(records), seconds)


if __name__ == "__main__":
    main()
