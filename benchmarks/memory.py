"""Benchmark the memory of a long tuning session: that of its process tree over time.

    python benchmarks/memory.py [--network resnet-18] [--target cpu] [--trials 2000] [--every 5]
                                [--work DIR]

Samples the session, its fork server and its workers while it tunes: resident memory, which counts
shared pages once per process, and proportional memory (PSS), which counts them once. Prints both at
each tenth of the session, the peaks, and the causes of failed trials; all samples are in
DIR/memory-NETWORK-TARGET.json. 2000 trials of resnet-18 take about 20 minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import convergence
import psutil

from tvmtune.records.log import read_log

MB = 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="resnet-18")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between samples")
    parser.add_argument("--work", type=Path, default=Path("benchmarks/work"))
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    convergence.warn_if_busy()
    name = f"{convergence.stem(options.network)}-{options.target}"
    log = options.work / f"memory-{name}-log.json"
    log.unlink(missing_ok=True)
    samples = watch(options, log)
    output = options.work / f"memory-{name}.json"
    output.write_text(json.dumps(samples, indent=1) + "\n")
    print("| trials | seconds | processes | resident MB | proportional MB | session alone MB |")
    print("|---" * 6 + "|")
    for tenth in range(1, 11):
        sample = samples[min(len(samples) - 1, tenth * len(samples) // 10)]
        print(line(str(sample["trials"]), sample))
    peak = {
        key: max(sample[key] for sample in samples)
        for key in ("seconds", "processes", "resident", "proportional", "session")
    }
    print(line("peak", peak))
    trials = read_log(log).trials
    failed = Counter((t.error["stage"], t.error["message"][:200]) for t in trials if t.error)
    print(f"\n{failed.total()} of {len(trials)} trials failed")
    for (stage, message), count in failed.most_common():
        print(f"- {count} {stage}: {message}")


def watch(options: argparse.Namespace, log: Path) -> list[dict[str, float]]:
    """Tune and take samples until the session ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tvmtune.cli", "tune", "--network", options.network,
         "--target", options.target, "--trials", str(options.trials), "--log", str(log),
         "--no-compile"],
        stdout=sys.stderr,
    )  # fmt: skip
    began = time.monotonic()
    samples = []
    reader = Trials(log)
    while process.poll() is None:
        sample = memory(process.pid)
        if sample:
            elapsed = time.monotonic() - began
            samples.append({"seconds": round(elapsed, 1), "trials": reader.count(), **sample})
        time.sleep(options.every)
    if process.returncode:
        sys.exit(process.returncode)
    return samples


class Trials:
    """Counts the trials in a growing log, each line once."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.seen = 0
        self.place = 0

    def count(self) -> int:
        if self.log.exists():
            with self.log.open("rb") as file:
                file.seek(self.place)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self.place += len(whole)
            self.seen += whole.count(b'{"type":"trial"')
        return self.seen


def memory(pid: int) -> dict[str, float] | None:
    """MB of a process and its descendants; None if it has just ended."""
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
        own = root.memory_info().rss
    except psutil.Error:
        return None
    if not own:  # a zombie: it has ended, and its exit status has not been collected
        return None
    resident = proportional = 0
    count = 0
    for each in tree:
        try:
            found = each.memory_full_info()
        except psutil.Error:  # a worker that was just recycled
            continue
        resident += found.rss
        proportional += found.pss
        count += 1
    return {
        "processes": count,
        "resident": round(resident / MB, 1),
        "proportional": round(proportional / MB, 1),
        "session": round(own / MB, 1),
    }


def line(first: str, sample: dict[str, float]) -> str:
    return (
        f"| {first} | {sample['seconds']:.0f} | {sample['processes']:.0f} | "
        f"{sample['resident']:.0f} | {sample['proportional']:.0f} | {sample['session']:.0f} |"
    )


if __name__ == "__main__":
    main()
