"""Faults that faults.py injects into a tuning session, from outside."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

HOUR = 3600
_INTEGER = struct.Struct("=q")
_SAMPLE = 0.3
"""Seconds over which a worker's CPU time is compared."""
_SEARCH = 5.0
"""Seconds of looking for a worker that is idle, or busy."""


class Clock:
    """The time of day of the processes that are started with :attr:`env`, which is empty if there is no
    C compiler: see stepped_clock.c."""

    def __init__(self, folder: Path) -> None:
        self._offset = 0
        self._file = folder / "faults-clock"
        self.env: dict[str, str] = {}
        compiler = shutil.which("cc")
        if compiler:
            self._file.write_bytes(_INTEGER.pack(0))
            library = folder / "faults-clock.so"
            source = Path(__file__).with_name("stepped_clock.c")
            build = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source)]
            subprocess.run(build, check=True)
            self.env = {"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(self._file)}

    def step(self, seconds: int) -> None:
        self._offset += seconds
        with self._file.open("r+b") as file:  # the same file: it is mapped
            file.write(_INTEGER.pack(self._offset))


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """Mount a tmpfs at ``folder``. Needs root."""
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={size},mode=1777"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


def forkserver(session: psutil.Process) -> psutil.Process | None:
    for child in session.children():
        if any("forkserver_process" in word for word in child.cmdline()):
            return child
    return None


def workers(session: psutil.Process) -> list[psutil.Process]:
    """The workers: each leads a process group, unlike what it started and left behind."""
    server = forkserver(session)
    found = server.children() if server else []
    return [child for child in found if os.getpgid(child.pid) == child.pid]


def tree(session: psutil.Process) -> list[psutil.Process]:
    return [session, *session.children(recursive=True)]


class Injector:
    """Injects faults into a session. A fault that lasts is over when its method returns, except those
    called "for good". Each returns whether it could be injected: there may be no idle worker."""

    def __init__(
        self, rng: random.Random, disk: Path, clock: Clock, second: Callable[[], bool]
    ) -> None:
        self._rng = rng
        self._disk = disk
        self._clock = clock
        self.kinds: dict[str, Callable[[psutil.Process], bool]] = {
            "idle worker killed": lambda session: self._kill_worker(session, busy=False),
            "busy worker killed": lambda session: self._kill_worker(session, busy=True),
            "forkserver stopped, continued": self._pause_forkserver,
            "forkserver stopped for good": self._stop_forkserver,
            "temporary disk full": self._fill_disk,
            "all processes stopped": self._stop_all,
            "open files limited (session)": self._limit_files,
            "open files limited (forkserver)": self._limit_forkservers_files,
            "second session on the log": lambda session: second(),
        }
        if clock.env:
            self.kinds["clock stepped by an hour"] = self._step_clock

    def inject(self, kind: str, session: psutil.Process) -> bool:
        try:
            return self.kinds[kind](session)
        except (psutil.NoSuchProcess, ProcessLookupError):  # it ended in time
            return False

    def _last(self, shortest: float, longest: float) -> None:
        time.sleep(self._rng.uniform(shortest, longest))

    def _kill_worker(self, session: psutil.Process, *, busy: bool) -> bool:
        end = time.monotonic() + _SEARCH
        while time.monotonic() < end:
            before = {worker.pid: _work(worker) for worker in workers(session)}
            time.sleep(_SAMPLE)
            found = [
                worker
                for worker in workers(session)
                if worker.pid in before and (_work(worker) != before[worker.pid]) == busy
            ]
            if found:
                self._rng.choice(found).kill()
                return True
        return False

    def _pause_forkserver(self, session: psutil.Process) -> bool:
        server = forkserver(session)
        if server is None:
            return False
        server.suspend()
        self._last(1, 20)
        with contextlib.suppress(psutil.NoSuchProcess):  # it was replaced
            server.resume()
        return True

    def _stop_forkserver(self, session: psutil.Process) -> bool:
        server = forkserver(session)
        if server is None:
            return False
        server.suspend()
        return True

    def _fill_disk(self, session: psutil.Process) -> bool:
        full = self._disk / "full"
        with full.open("wb") as file:
            try:
                # Twice: what the session frees meanwhile is taken as well.
                for _ in range(2):
                    free = shutil.disk_usage(self._disk).free
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, max(1, free))
                    self._last(1, 5)
            except OSError:  # the session was faster
                self._last(1, 5)
        full.unlink()
        return True

    def _stop_all(self, session: psutil.Process) -> bool:
        stopped = tree(session)
        for process in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        self._last(2, 25)
        for process in reversed(stopped):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        return True

    def _limit_files(self, process: psutil.Process) -> bool:
        """Allow no file more than are open."""
        limits = process.rlimit(psutil.RLIMIT_NOFILE)
        process.rlimit(psutil.RLIMIT_NOFILE, (process.num_fds(), limits[1]))
        self._last(2, 8)
        process.rlimit(psutil.RLIMIT_NOFILE, limits)
        return True

    def _limit_forkservers_files(self, session: psutil.Process) -> bool:
        """Workers that it forks meanwhile keep the limit."""
        server = forkserver(session)
        return server is not None and self._limit_files(server)

    def _step_clock(self, session: psutil.Process) -> bool:
        self._clock.step(self._rng.choice((-HOUR, HOUR)))
        return True


def _work(worker: psutil.Process) -> tuple[float, int]:
    """Changes while a worker works: its CPU time, and the processes that it has started."""
    times = worker.cpu_times()
    return times.user + times.system, len(worker.children(recursive=True))


def stacks(marked: list[int], session: psutil.Process) -> str:
    """The processes with these ids as a tree. The session prints its threads' stacks and ends."""
    columns = "pid,ppid,pgid,stat,etimes,time,wchan:24,args"
    ids = ",".join(map(str, marked))
    shown = subprocess.run(
        ["ps", "--forest", "-o", columns, "-p", ids], capture_output=True, text=True
    ).stdout
    with contextlib.suppress(psutil.NoSuchProcess):
        session.send_signal(signal.SIGABRT)  # PYTHONFAULTHANDLER
    return shown
