"""Tune a network while the environment fails at random, and check that no trial is lost or wrong.

    python benchmarks/faults.py [--network mobilenet] [--trials 2000] [--every 10] [--seed 0]
                                [--limit 3600] [--work DIR]

Runs ``tvmtune tune --no-compile`` with a temporary directory on a small disk of its own (needs root,
to mount it), and injects a random fault every ``--every`` seconds: injected.py has them; it also kills
the session, and starts it again with the same command. The clock is stepped for the session's
processes only, by a preloaded library that needs a C compiler.

Prints a table; exits 1 if a check failed, or if the session hung: no new trial for five minutes. What
the sessions printed is in DIR/faults.txt, the log in DIR/faults.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
from injected import Clock, Injector, small_disk, stacks
from kills import MARKER, survivors
from memory import Trials

from tvmtune.machine import faults, scratch
from tvmtune.measure.measurer import PREFIX
from tvmtune.records.log import read_log

HANG = 300.0
"""Seconds without a new trial."""
REFUSED = "another process is writing to"
KILLED = "session killed"
LONGEST_RUN = 10.0
"""Seconds: the default of --run-timeout. No repeat can take longer, unless its clock was wrong."""
STARTS = 5
"""How often a session that ended by itself is started again."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="mobilenet")
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--every", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--limit", type=float, default=3600.0, help="seconds after which it is ended"
    )
    parser.add_argument("--disk", default="256m", help="size of the temporary disk")
    parser.add_argument("--only", help="the faults to inject, separated by commas")
    parser.add_argument("--work", type=Path, default=Path("benchmarks/work"))
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("this needs root, to mount a small disk")
    options.work.mkdir(parents=True, exist_ok=True)
    disk = (options.work / "faults-disk").resolve()
    with small_disk(disk, options.disk):
        soak = Soak(options, disk)
        try:
            soak.run()
        finally:
            soak.end()
        wrong = soak.report()
    sys.exit(1 if wrong else 0)


class Soak:
    """One tuning run, in as many sessions as it takes."""

    def __init__(self, options: argparse.Namespace, disk: Path) -> None:
        self.options = options
        self.disk = disk
        self.log = options.work / "faults.json"
        self.output = options.work / "faults.txt"
        for left in (self.log, self.output):
            left.unlink(missing_ok=True)
        self.clock = Clock(options.work.resolve())
        self.rng = random.Random(options.seed)
        self.injector = Injector(self.rng, disk, self.clock, self._second_is_refused)
        known = [*self.injector.kinds, KILLED]
        self.kinds = options.only.split(",") if options.only else known
        if unknown := set(self.kinds) - set(known):
            sys.exit(f"no such fault: {', '.join(sorted(unknown))}. There are: {', '.join(known)}")
        self.injected: Counter[str] = Counter()
        self.admitted = 0
        """Second sessions that were not refused."""
        self.orphans = 0
        self.ended: list[str] = []
        """Last lines of sessions that ended by themselves before all trials were there."""
        self.hung = ""
        self.seconds = 0.0
        self.starts = 0
        self.counter = Trials(self.log)
        self._start()

    def run(self) -> None:
        began = time.monotonic()
        progress, count = began, 0
        due = began + self.options.every
        at_start = 0
        while time.monotonic() < began + self.options.limit and not self.hung:
            now = time.monotonic()
            if (found := self.counter.count()) > count:
                count, progress = found, now
            if self.process.poll() is not None:
                if self.process.returncode == 0:
                    break
                self.ended.append(self._last_line())
                if len(self.ended) > STARTS:
                    break
                self._restart()
                at_start = count
            elif now > progress + HANG:
                self.hung = stacks(self._marked(), self.session)
                self.process.wait(60)
            elif now >= due:
                due = now + self.options.every
                kind = self.rng.choice(self.kinds)
                if kind == KILLED:
                    self.process.kill()
                    self._restart()
                    at_start = count
                # While it starts there are no workers, and no lock yet.
                elif count == at_start or not self.injector.inject(kind, self.session):
                    kind = ""
                if kind:
                    self.injected[kind] += 1
                    self._say(f"{now - began:.0f} s, {count} trials: {kind}")
            time.sleep(0.5)
        self.seconds = time.monotonic() - began

    def end(self) -> None:
        """End the last session, if the time is over."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.orphans += survivors(self.marker)

    def report(self) -> bool:
        """Print the table; returns whether a check failed."""
        trials = read_log(self.log).trials
        keys = [(t.workload, t.candidate) for t in trials]
        failed = [(t.error["stage"], t.error["message"]) for t in trials if t.error]
        unchecked = self._checks_without_a_verdict()
        impossible = sum(not 0 < s <= LONGEST_RUN for t in trials for s in t.seconds)
        checks = {
            "trials recorded": (len(trials), self.options.trials),
            "candidates recorded twice": (len(keys) - len(set(keys)), 0),
            "trials that failed for a fault": (sum(is_fault(*each) for each in failed), 0),
            "checks without a verdict for a fault": (sum(is_fault("", m) for m in unchecked), 0),
            "repeats with an impossible time": (impossible, 0),
            "sessions that ended by themselves": (len(self.ended), 0),
            "second sessions that were not refused": (self.admitted, 0),
            "hangs": (int(bool(self.hung)), 0),
            "processes left": (self.orphans, 0),
            "files left in the temporary directory after the next start": (
                self._directories_left(),
                0,
            ),
        }
        print("| | found | expected |\n|---|---|---|")
        for what, (found, expected) in checks.items():
            mark = "" if found == expected else " **wrong**"
            print(f"| {what} | {found}{mark} | {expected} |")
        minutes = self.seconds / 60
        print(f"| trials that failed | {len(failed)} | |")
        print(f"| sessions | {self.starts} | |")
        print(f"| pauses reported | {self._text().count('measuring pauses')} | |")
        print(f"| minutes | {minutes:.1f} | |")
        print(f"| trials a minute | {len(trials) / minutes:.0f} | |")
        print(f"\n{self.injected.total()} faults:")
        for kind in self.kinds:
            print(f"- {self.injected[kind]} {kind}")
        if not self.clock.env:
            print("- the clock was not stepped: there is no C compiler")
        for (stage, message), number in Counter(failed).most_common():
            print(f"failed: {number} {stage}: {message}")
        for message, number in Counter(unchecked).most_common():
            print(f"no verdict: {number} {message}")
        for text in self.ended:
            print(f"ended by itself: {text}")
        if self.hung:
            print(f"hung; its stacks are in {self.output}:\n{self.hung}")
        return any(found != expected for found, expected in checks.values())

    def _command(self) -> list[str]:
        given = {
            "--network": self.options.network,
            "--trials": self.options.trials,
            "--log": self.log,
        }
        words = [str(word) for pair in given.items() for word in pair]
        return [sys.executable, "-m", "tvmtune.cli", "tune", "--no-compile", *words]

    def _env(self, marker: str) -> dict[str, str]:
        own = {MARKER: marker, "TMPDIR": str(self.disk), "PYTHONFAULTHANDLER": "1"}
        return {**os.environ, **own, **self.clock.env}

    def _start(self) -> None:
        self.starts += 1
        self.marker = f"{os.getpid()}-{self.starts}"
        with self.output.open("a") as output:
            self.process = subprocess.Popen(
                self._command(), env=self._env(self.marker), stdout=output, stderr=output,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self.session = psutil.Process(self.process.pid)

    def _restart(self) -> None:
        self.process.wait()
        self.orphans += survivors(self.marker)
        self._start()

    def _second_is_refused(self) -> bool:
        """Start a second session on the log; returns True, and counts it if it is not refused."""
        second = subprocess.run(
            self._command(), env=self._env(f"{self.marker}-second"), capture_output=True, text=True
        )
        refused = second.returncode == 1 and REFUSED in second.stderr
        if not refused:
            # The first may have ended: then nobody holds the log.
            if self.process.poll() is not None:
                return False
            self.admitted += 1
            self._say(f"not refused, exit code {second.returncode}: {second.stderr[-500:]}")
        return True

    def _checks_without_a_verdict(self) -> list[str]:
        """Messages of checks that failed, unless the candidate was checked again with a result."""
        messages: dict[tuple[str, str], str | None] = {}
        for text in self.log.read_bytes().splitlines():
            if b'"type":"verdict"' in text[:40]:
                line = json.loads(text)
                verdict = line["verified"] is not None
                messages[line["workload"], line["candidate"]] = None if verdict else line["message"]
        return [message for message in messages.values() if message is not None]

    def _directories_left(self) -> int:
        """What sessions left on the temporary disk that the next start would not remove."""
        for left in self.disk.iterdir():
            os.utime(left, (0, 0))  # it spares young ones
        script = (
            "from tvmtune.machine import scratch\n"
            "with scratch.folder({!r}), scratch.folder({!r}): pass"
        )
        subprocess.run(
            [sys.executable, "-c", script.format(scratch.WORK, PREFIX)],
            env={**os.environ, "TMPDIR": str(self.disk)},
            check=True,
        )
        left = sorted(path.name for path in self.disk.iterdir())
        if left:
            self._say(f"left in the temporary directory: {' '.join(left)}")
        return len(left)

    def _marked(self) -> list[int]:
        wanted = {MARKER: self.marker}
        found = []
        for process in psutil.process_iter():
            try:
                if wanted.items() <= process.environ().items():
                    found.append(process.pid)
            except psutil.Error:
                continue
        return found

    def _text(self) -> str:
        return self.output.read_text(errors="replace")

    def _last_line(self) -> str:
        lines = self._text().strip().splitlines()
        return f"exit code {self.process.returncode}: {lines[-1] if lines else ''}"

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        with self.output.open("a") as output:
            print(f"[{text}]", file=output)


def is_fault(stage: str, message: str) -> bool:
    """Whether a failure carries the signs of a fault of the environment: a time limit, a process that
    died, or a message such as that of a full disk. A candidate can cause the first two by itself and
    would count, too, so look at the log if the count is not 0. In the run that README.md reports, no
    trial failed for any reason, so none was counted wrongly."""
    signs = ("killed after", "died", "forkserver", "SIGKILL", "no worker", "cancelled")
    return (
        stage in ("timeout", "crash")
        or bool(faults.of_text(message))
        or any(sign in message for sign in signs)
    )


if __name__ == "__main__":
    main()
