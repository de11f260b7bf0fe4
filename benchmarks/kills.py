"""Kill a tuning session at random moments and count what was lost.

    TVMTUNE_SOAK_KILLS=100 python benchmarks/kills.py [--work DIR]

Each round starts ``tvmtune -v tune --no-compile`` on one log, kills it with SIGKILL after a random
time, and compares the trials that it had printed with those in the log. Prints one line of figures;
exits 1 if a printed trial is missing, a candidate was measured twice, or a process survived.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

MARKER = "TVMTUNE_KILLS_RUN"
SHOWN = re.compile(r"^  \S+ \S+ (0x[0-9a-f]+): ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("benchmarks/work"))
    parser.add_argument("--network", default="mobilenet")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    kills = int(os.environ.get("TVMTUNE_SOAK_KILLS", "100"))
    log = options.work / "kills.json"
    log.unlink(missing_ok=True)
    rng = random.Random(0)
    shown: list[str] = []
    left = 0
    for number in range(kills):
        marker = f"{os.getpid()}-{number}"
        shown += killed_run(options.network, log, rng.uniform(6, 25), marker)
        left += survivors(marker)

    from tvmtune.records.log import read_log

    trials = [(t.workload, t.candidate) for t in read_log(log).trials]
    missing = set(shown) - {candidate for _, candidate in trials}
    twice = len(trials) - len(set(trials))
    print(
        f"{kills} kills: {len(shown)} trials shown, {len(trials)} in the log, {len(missing)} lost, "
        f"{twice} measured twice, {left} processes left"
    )
    # no trials shown would mean that nothing was tested
    sys.exit(1 if missing or twice or left or not shown else 0)


def killed_run(network: str, log: Path, seconds: float, marker: str) -> list[str]:
    """Candidates that a run printed before it was killed."""
    command = [sys.executable, "-m", "tvmtune.cli", "-v", "tune", "--network", network,
               "--shape", "data:1x3x64x64", "--trials", "100000", "--no-compile",
               "--log", str(log)]  # fmt: skip
    env = {**os.environ, MARKER: marker}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
    time.sleep(seconds)
    os.kill(process.pid, signal.SIGKILL)
    _, output = process.communicate()
    found = (SHOWN.match(line) for line in output.splitlines())
    return [match.group(1) for match in found if match]


def survivors(marker: str) -> int:
    """Number of the session's processes alive after two seconds, found by an inherited variable."""
    time.sleep(2)
    count = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            count += f"{MARKER}={marker}".encode() in (folder / "environ").read_bytes()
        except OSError:
            continue
    return count


if __name__ == "__main__":
    main()
