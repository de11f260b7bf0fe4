"""Benchmark the accuracy of a session's times: time 20 of its kernels again, alone in fresh processes.

    python benchmarks/accuracy.py [--network resnet-18] [--trials 300] [--log LOG] [--work DIR]

Tunes the network first if there is no log yet. Then takes the best candidate and a mediocre one (the
median of the trials) of the ten tasks with the largest share of the latency, and times each by the
session's protocol in a process that has measured nothing else. Prints session / alone for each, and the
median: 1.00 is exact. About 12 minutes on two idle cores with the session of 300 trials, 4 without.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import convergence

from tvmtune import host
from tvmtune.machine import cpu_count
from tvmtune.measure.measurer import Measurer
from tvmtune.records.log import Log, read_log
from tvmtune.spaces import traces
from tvmtune.types import Device, Implementation, Timing, Trial

TASKS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="resnet-18")
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--work", type=Path, default=Path("benchmarks/work"))
    parser.add_argument("--candidate", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.candidate:
        print(json.dumps(alone(read_log(options.log), options.candidate)))
        return
    options.work.mkdir(parents=True, exist_ok=True)
    convergence.warn_if_busy()
    log = options.log or options.work / f"accuracy-{convergence.stem(options.network)}.json"
    if not log.exists():
        convergence.tune(options.network, log, options.trials)
    read = read_log(log)
    print("| task | candidate | kind | session ms | alone ms | session / alone |")
    print("|---" * 6 + "|")
    ratios = []
    for kind, trial in chosen(read):
        process = subprocess.run(
            [sys.executable, __file__, "--log", str(log), "--candidate", key(trial)],
            check=True,
            capture_output=True,
            text=True,
        )
        seconds = json.loads(process.stdout)
        name = read.tasks[trial.task]["name"]
        if seconds is None:
            print(f"| {name} | {trial.candidate} | {kind} | {trial.latency * 1e3:.4f} | failed | |")
            continue
        ratios.append(trial.latency / seconds)
        print(
            f"| {name} | {trial.candidate} | {kind} | {trial.latency * 1e3:.4f} | "
            f"{seconds * 1e3:.4f} | {ratios[-1]:.3f} |",
            flush=True,
        )
    print(
        f"\n{len(ratios)} kernels: median ratio {statistics.median(ratios):.3f}, "
        f"from {min(ratios):.3f} to {max(ratios):.3f}"
    )


def chosen(log: Log) -> list[tuple[str, Trial]]:
    """The best and a mediocre trial of each of the tasks with the largest share of the latency."""
    by_task: dict[str, list[Trial]] = {}
    for trial in log.trials:
        if trial.ok:
            by_task.setdefault(trial.task, []).append(trial)

    def share(task: str) -> float:
        return log.tasks[task]["weight"] * min(t.latency for t in by_task[task])

    found = []
    for task in sorted(by_task, key=share, reverse=True)[:TASKS]:
        ranked = sorted(by_task[task], key=lambda t: t.latency)
        found.append(("best", ranked[0]))
        if len(ranked) > 2:
            found.append(("mediocre", ranked[len(ranked) // 2]))
    return found


def key(trial: Trial) -> str:
    return f"{trial.workload}/{trial.implementation}/{trial.candidate}"


def alone(log: Log, wanted: str) -> float | None:
    """Median seconds of one candidate in this fresh process; None if it failed."""
    trial = next(t for t in log.trials if key(t) == wanted)
    line = log.tasks[trial.task]
    part = next(i for i in line["implementations"] if i["name"] == trial.implementation)
    device = Device.from_json(log.devices()[trial.device])
    cpu_count.set_threads(device.threads)
    backend = host.backend(device.backend)
    mod = traces.load_module(part["module"])
    nothing: object = None
    candidate = Implementation(trial.implementation, trial.workload, mod, nothing)  # type: ignore
    results = []
    builder, runner = backend.make_builder(device), backend.make_runner(device)
    with Measurer(device, builder, runner, Timing()) as measurer:
        measurer.measure([(candidate, trial.trace)], lambda _, result: results.append(result))
    return statistics.median(results[0].seconds) if results[0].seconds else None


if __name__ == "__main__":
    main()
