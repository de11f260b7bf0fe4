"""Run ``tvmtune`` in a process of its own; shared by the benchmarks."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import psutil

PR_SET_PDEATHSIG = 1


class Failed(Exception):
    """A process that failed; the message is the last line that it wrote to stderr."""


def tool(*words: str, stderr: Path | None = None) -> tuple[str, float, int]:
    """Run a command of tvmtune; see :func:`run`."""
    return run([sys.executable, "-m", "tvmtune.cli", *words], stderr=stderr)


def run(
    command: Sequence[str],
    *,
    stderr: Path | None = None,
    limit: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[str, float, int]:
    """Run a process: standard output, seconds, and its tree's peak of resident memory in bytes.

    ``stderr``: file to append its messages to, by default this process's. It is killed when this
    process ends, even by SIGKILL, and after ``limit`` seconds. Raises :class:`Failed` if it fails.
    """
    with (
        stderr.open("ab") if stderr else nullcontext() as messages,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=messages,
            text=True,
            env=environment,
            preexec_fn=_end_with_parent(),
        ) as process,
    ):
        begun = time.monotonic()
        peak = 0
        while True:
            try:
                output, _ = process.communicate(timeout=0.05)
                break
            except subprocess.TimeoutExpired:
                peak = max(peak, _resident(process.pid))
            if limit is not None and time.monotonic() - begun > limit:
                _kill(process.pid)
                raise Failed(f"it took longer than {limit:.0f} s")
    if process.returncode:
        raise Failed(_reason(process.returncode, stderr))
    return output, time.monotonic() - begun, peak


def _end_with_parent() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # loaded here: little may be done between fork and exec
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _reason(status: int, stderr: Path | None) -> str:
    if status < 0:
        return f"it crashed ({signal.Signals(-status).name})"
    lines = stderr.read_text(errors="replace").splitlines() if stderr else []
    return next((line for line in reversed(lines) if line.strip()), f"exit status {status}")


def _kill(pid: int) -> None:
    """Kill a process and its descendants."""
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for each in (*root.children(recursive=True), root):
            with suppress(psutil.Error):
                each.kill()


def _resident(pid: int) -> int:
    try:
        root = psutil.Process(pid)
        return sum(p.memory_info().rss for p in (root, *root.children(recursive=True)))
    except psutil.Error:
        return 0
