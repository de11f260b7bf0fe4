"""Tune over RPC while a board is killed again and again, and count what was lost.

    python benchmarks/boards.py [--trials 500] [--boards 1] [--every 20] [--work DIR]

A tracker and boards run on this machine, as ``tvmtune tracker`` and ``tvmtune serve``. One board,
chosen at random, is killed with SIGKILL and started again, every ``--every`` seconds on average
(exponentially distributed, as real crashes are). Prints one line of figures; exits 1 unless all
trials were recorded, none twice, none blamed for a board's death, and no process was left.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

MARKER = "TVMTUNE_SOAK_RUN"
KEY = "soak"
HOST = "127.0.0.1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("benchmarks/work"))
    parser.add_argument("--network", default="mobilenet")
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--boards", type=int, default=1)
    parser.add_argument(
        "--every", type=float, default=20.0, help="seconds between kills, on average"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    log = options.work / "boards.json"
    log.unlink(missing_ok=True)
    farm = Farm(options.boards)
    began = time.monotonic()
    try:
        tune = farm.start("tune", "tune", "--network", options.network, "--shape",
                          "data:1x3x64x64", "--target", "cpu", "--target-attr", "threads=1",
                          "--remote", KEY, "--tracker", farm.tracker, "--trials", options.trials,
                          "--no-compile", "--log", log)  # fmt: skip
        kills = soak(farm, tune, options.every, random.Random(options.seed))
    finally:
        farm.end()
    seconds = time.monotonic() - began
    left = [pid for pid in farm.marked() if psutil.pid_exists(pid)]

    from tvmtune.records.log import read_log

    trials = read_log(log).trials
    candidates = [(t.workload, t.candidate) for t in trials]
    twice = len(candidates) - len(set(candidates))
    failed = [t for t in trials if t.error]
    blamed = [t for t in failed if t.error and "took a board down" in t.error["message"]]
    print(
        f"{kills} kills in {seconds:.0f} s: {len(trials)} of {options.trials} trials recorded, "
        f"{options.trials - len(trials)} lost, {twice} twice, {len(failed)} failed ({len(blamed)} "
        f"blamed for a board); the host's processes took {farm.peak['tune']:.0f} MB at most, a "
        f"board's {farm.peak['board']:.0f} MB; {len(left)} processes left"
    )
    sound = tune.returncode == 0 and len(trials) == options.trials and kills
    sys.exit(0 if sound and not (twice or blamed or left) else 1)


def soak(farm: Farm, tune: subprocess.Popen[bytes], every: float, rng: random.Random) -> int:
    """Kill boards until the run ends; returns the number of kills."""
    kills = 0
    due = time.monotonic() + rng.expovariate(1 / every)
    while tune.poll() is None:
        time.sleep(0.5)
        farm.sample_memory()
        if time.monotonic() > due:
            farm.kill(rng.randrange(len(farm.boards)))
            kills += 1
            due = time.monotonic() + rng.expovariate(1 / every)
    return kills


class Farm:
    """A tracker and its boards."""

    def __init__(self, count: int) -> None:
        self.marker = f"{os.getpid()}-{time.time()}"
        self.folder = Path(tempfile.mkdtemp(prefix="soak-"))
        self.peak = {"tune": 0.0, "board": 0.0}
        """Peak resident memory in MB: of all processes of the host, and of one board."""
        self._started: list[subprocess.Popen[bytes]] = []
        self.ports = free_ports(count + 1)
        self.tracker = f"{HOST}:{self.ports[0]}"
        self.start("tracker", "tracker", "--port", self.ports[0])
        self.boards: list[subprocess.Popen[bytes]] = []
        self.add(self.ports[1:])

    def add(self, ports: list[int]) -> None:
        """Start boards, a few at a time: each imports TVM, and gives up if that takes minutes."""
        for first in range(0, len(ports), 8):
            self.boards += [self._board(port) for port in ports[first : first + 8]]
            wait_for_boards(self.ports[0], len(self.boards))

    def start(self, name: str, *words: object) -> subprocess.Popen[bytes]:
        env = {**os.environ, MARKER: f"{self.marker}-{name}", "TMPDIR": str(self.folder)}
        command = [sys.executable, "-m", "tvmtune.cli", *map(str, words)]
        quiet = None if name == "tune" else subprocess.DEVNULL
        self._started.append(subprocess.Popen(command, env=env, stderr=quiet))
        return self._started[-1]

    def kill(self, number: int) -> None:
        board = self.boards[number]
        board.kill()
        board.wait()
        self.boards[number] = self._board(self.ports[1 + number])

    def sample_memory(self) -> None:
        """Update the peaks."""
        self.peak["tune"] = max(self.peak["tune"], self._memory(self.marked("tune")))
        for port in self.ports[1:]:
            mine = self.marked(f"board{port}")
            self.peak["board"] = max(self.peak["board"], self._memory(mine))

    def marked(self, name: str = "") -> list[int]:
        """Ids of processes started under this name, or under any."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            wanted = f"{MARKER}={self.marker}-{name}".encode()
            if any(word == wanted if name else word.startswith(wanted) for word in words):
                found.append(int(folder.name))
        return found

    def end(self) -> None:
        for process in reversed(self._started):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._started:
            process.wait(30)
        time.sleep(2)
        shutil.rmtree(self.folder)

    def _board(self, port: int) -> subprocess.Popen[bytes]:
        return self.start(f"board{port}", "serve", "--key", KEY, "--port", port,
                          "--tracker", self.tracker)  # fmt: skip

    @staticmethod
    def _memory(pids: list[int]) -> float:
        """Proportional set size in MB: memory shared by forked processes counts once."""
        total = 0
        for pid in pids:
            try:
                text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            except OSError:
                continue
            total += next(int(line.split()[1]) for line in text.splitlines() if line[:4] == "Pss:")
        return total / 1024


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind((HOST, 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def wait_for_boards(port: int, count: int) -> None:
    from tvmtune.remote.protocol import Address, Tracker, Unreachable

    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            with Tracker(Address(HOST, port)) as line:
                if len(line.summary().get("server_info", ())) >= count:
                    return
        except Unreachable:
            pass
        time.sleep(0.2)
    raise SystemExit("the boards did not register")


if __name__ == "__main__":
    main()
