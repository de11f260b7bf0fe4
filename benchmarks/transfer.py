"""Measure what transfer and resumption save: trials to the same latency.

    python benchmarks/transfer.py [--source resnet-18] [--networks resnet-34,mobilenet] [--work DIR]
                                  [--source-trials 1000] [--trials 400]

Tunes the source network, then each of the others three times: from scratch, with ``--transfer-from``
the source's log, and from scratch but stopped after half of the trials and resumed. Then times all
candidates that were incumbents in any of the three a second time, in turns. Prints, for each network
and run, the final weighted latency, the trials and minutes to a latency that all three reached (the
worst of the final ones), the number of transferred records, and how many candidates were measured
twice. Writes the curves to DIR/transfer-NETWORK.json. Runs already in DIR are not repeated. Takes about
70 minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import convergence
from convergence import Run

from tvmtune import api
from tvmtune.records.log import read_log
from tvmtune.types import TRANSFER, Timing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", default="resnet-18")
    parser.add_argument("--networks", default="resnet-34,mobilenet")
    parser.add_argument("--source-trials", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the second timing")
    parser.add_argument("--work", type=Path, default=Path("benchmarks/work"))
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    convergence.warn_if_busy()
    source = options.work / f"transfer-source-{convergence.stem(options.source)}.json"
    session(options.source, source, options.source_trials)
    print(
        "| network | run | final ms | common ms | trials to it | minutes to it | transferred | "
        f"measured twice |\n{'|---' * 8}|"
    )
    for network in options.networks.split(","):
        plan = convergence.plan_of(network)
        runs = [
            tuned("fresh", plan, network, options),
            tuned("transfer", plan, network, options, "--transfer-from", str(source)),
            resumed("resumed", plan, network, options),
        ]
        convergence.time_again(plan, runs, Timing(), rounds=options.rounds)
        common = max(run.curve(plan)[-1].latency for run in runs if run.curve(plan))
        for run in runs:
            print(row(network, plan, run, common, path(network, run.name, options)), flush=True)
        report = {run.name: convergence.to_json(run, plan) for run in runs}
        output = options.work / f"transfer-{convergence.stem(network)}.json"
        output.write_text(json.dumps(report, indent=1) + "\n")


def row(network: str, plan: api.Plan, run: Run, common: float, log: Path) -> str:
    curve = run.curve(plan)
    point = convergence.reached(curve, common)
    trials = read_log(log).trials
    measured = [(t.workload, t.candidate) for t in trials if t.tuner != TRANSFER]
    arrival = f"{point.trials} | {point.seconds / 60:.1f}" if point else "never | -"
    final = f"{curve[-1].latency * 1e3:.3f}" if curve else "-"
    return (
        f"| {network} | {run.name} | {final} | {common * 1e3:.3f} | {arrival} | "
        f"{len(trials) - len(measured)} | {len(measured) - len(set(measured))} |"
    )


def tuned(name: str, plan: api.Plan, network: str, options: argparse.Namespace, *more: str) -> Run:
    log = path(network, name, options)
    began, seconds = session(network, log, options.trials, *more)
    return convergence.from_log(name, plan, log, began, seconds)


def resumed(name: str, plan: api.Plan, network: str, options: argparse.Namespace) -> Run:
    """Two sessions on one log, without the time between them."""
    log = path(network, name, options)
    first = session(network, log, options.trials // 2, part=1)
    second = session(network, log, options.trials, part=2)
    run = convergence.from_log(name, plan, log, first[0], first[1] + second[1])
    pause = second[0] - (first[0] + first[1])
    for found in run.found:
        if found.seconds > first[1]:
            found.seconds -= pause
    return run


def session(network: str, log: Path, trials: int, *more: str, part: int = 1) -> tuple[float, float]:
    """Tune unless an earlier run did; returns when it began, and the seconds it took."""
    times = log.with_suffix(f".{part}.times")
    if not times.exists():
        if part == 1:
            log.unlink(missing_ok=True)
        times.write_text(json.dumps(convergence.tune(network, log, trials, *more)))
    began, seconds = json.loads(times.read_text())
    return began, seconds


def path(network: str, name: str, options: argparse.Namespace) -> Path:
    return options.work / f"transfer-{convergence.stem(network)}-{options.trials}-{name}.json"


if __name__ == "__main__":
    main()
