"""Measure the size of a log with many trials, and the time and memory to load it.

    tvmtune tune --network mobilenet --trials 300 --no-compile --log mobilenet.json
    python benchmarks/load.py mobilenet.json [--trials 10000] [--work DIR]

Repeats the trials of the given log, as new candidates, in one log of format 1 and one of format 2, and
reads each in a fresh process. Memory is the growth of resident memory after garbage collection.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tvmtune.records import schema
from tvmtune.records.log import FORMAT, Log, LogWriter, read_log
from tvmtune.types import Trial

MEASURE = """
import gc, sys, time
from pathlib import Path
import psutil
from tvmtune.records.log import read_log

process = psutil.Process()
before = process.memory_info().rss
start = time.perf_counter()
log = read_log(Path(sys.argv[1]))
seconds = time.perf_counter() - start
gc.collect()
print(len(log.trials), seconds, process.memory_info().rss - before)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log", type=Path)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--work", type=Path, default=Path("benchmarks/work"))
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    log = read_log(options.log)
    if not log.trials:
        sys.exit(f"{options.log} contains no trial to repeat.")
    print(f"{options.trials} trials, from {len(log.trials)} of {options.log.name}\n")
    print("| format | MB | bytes per trial | load s | resident MB |")
    print("|---|---|---|---|---|")
    for version, write in ((1, write_plain), (FORMAT, write_packed)):
        path = options.work / f"load-{version}.json"
        path.unlink(missing_ok=True)
        write(path, log, options.trials)
        size = path.stat().st_size
        count, seconds, resident = loaded(path)
        print(
            f"| {version} | {size / 1e6:.1f} | {size / count:.0f} | {seconds:.2f} | "
            f"{resident / 1e6:.0f} |"
        )
        path.unlink()


def repeated(log: Log, count: int) -> Iterator[Trial]:
    """``count`` trials, cycling through the log; each becomes a new candidate."""
    for number, trial in enumerate(itertools.islice(itertools.cycle(log.trials), count)):
        yield replace(trial, candidate=f"0x{number:016x}")


def write_plain(path: Path, log: Log, count: int) -> None:
    """Write a log of format 1: every trial with its complete trace."""
    with path.open("w") as file:
        for line in (log.headers[0] | {"format": 1}, *log.tasks.values()):
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
        for trial in repeated(log, count):
            line = {"type": "trial", **schema.trial(trial).fields}
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def write_packed(path: Path, log: Log, count: int) -> None:
    """Write a log of the current format."""
    with LogWriter(path) as writer:
        writer.append("header", {**log.headers[0], "format": FORMAT})
        for line in log.tasks.values():
            writer.append("task", line)
        for trial in repeated(log, count):
            writer.trial(trial)


def loaded(path: Path) -> tuple[int, float, int]:
    """Read a log in a fresh process; returns trials, seconds and bytes of resident memory."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True
    )
    count, seconds, resident = done.stdout.split()
    return int(count), float(seconds), int(resident)


if __name__ == "__main__":
    main()
