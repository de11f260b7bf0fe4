"""Build candidates on the machines of a build cluster.

They are built in processes that are killed at a deadline, exactly as a session does on its own machine.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvmtune.machine import package_versions
from tvmtune.types import BuilderSpec
from tvmtune.workers import Outcome, Workers

UNUSABLE = "unfit"
"""An outcome's stage if the machine, not the candidate, is at fault: another machine may succeed."""
COMPARED = ("tvmtune", "apache-tvm", "apache-tvm-ffi")


@dataclass(frozen=True)
class Setup:
    """How a session's builders are set up, and what their machines must have."""

    session: str
    """The session's id."""
    init: str | None
    options: dict[str, Any]
    linkers: dict[tuple[str, ...], str]
    """By command, the version that it prints."""
    versions: dict[str, str | None] = field(default_factory=dict)

    @classmethod
    def of(cls, builder: BuilderSpec) -> Setup:
        options = [builder.options, *([builder.reference.options] if builder.reference else [])]
        commands = {tuple(map(str, each["linker"])) for each in options if each.get("linker")}
        return cls(
            uuid.uuid4().hex,
            builder.init,
            dict(builder.options),
            {command: _version_of(command) for command in commands},
            _versions(),
        )


def trouble(setup: Setup) -> str:
    """Why this machine cannot be used; empty if it can."""
    installed = _versions()
    for name, wanted in setup.versions.items():
        if installed[name] != wanted:
            return f"it has {name} {installed[name]}, and the session has {wanted}"
    for command, wanted in setup.linkers.items():
        version = _version_of(command)
        if not version or version != wanted:
            found = f"{' '.join(command)} {version or 'is missing'}"
            return f"its linker differs from the session's: {found}"
    return ""


def _version_of(command: tuple[str, ...]) -> str:
    """The first line that a linker prints about its version; empty if it is missing."""
    try:
        done = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return next(iter(done.stdout.splitlines()), "")


def build(
    setup: Setup,
    function: str,
    workload: tuple[str, str],
    arguments: tuple[Any, ...],
    deadline: float,
) -> tuple[Outcome, bytes]:
    """Call ``function`` with the path of a file that holds ``workload`` (name, text), ``arguments``
    and a directory. Returns the outcome, as from :meth:`tvmtune.workers.Workers.collect`, and the
    bytes of the file whose path comes first in its value.

    If this machine cannot do it, the stage is :data:`UNUSABLE` and the value the machine's address.
    """
    address = get_worker().address
    try:
        pool = _pool(setup)
    except _Unusable as error:
        return Outcome(address, UNUSABLE, str(error)), b""
    with pool:
        try:
            path = pool.path_of(*workload)
            handle = pool.workers.submit(
                function, (path, *arguments, str(pool.directory)), deadline
            )
            outcome = pool.workers.collect([handle], deadline=deadline, stage="build")[0]
            # The candidate may itself lack memory; a process that was killed says nothing about the
            # machine.
            if outcome.fault not in ("", "memory", "killed"):
                return Outcome(address, UNUSABLE, outcome.message), b""
            if not outcome.ok:
                return outcome, b""
            made = Path(outcome.value[0])
            library = made.read_bytes()
            made.unlink()
        except OSError as error:  # its disk is full, say
            return Outcome(address, UNUSABLE, str(error)), b""
    return outcome, library


class _Unusable(Exception):
    """This machine cannot build for the session."""


class _BuilderPool:
    """A session's builder processes and their files; entered as a context by each call."""

    def __init__(self, setup: Setup) -> None:
        if why := trouble(setup):  # a machine that joined later was not checked before
            raise _Unusable(why)
        worker = get_worker()
        try:
            self.directory = Path(tempfile.mkdtemp(prefix="tvmtune-", dir=worker.local_directory))
        except OSError as error:
            raise _Unusable(str(error)) from None
        self.workers = Workers(
            worker.state.nthreads,
            init=setup.init,
            options=setup.options,
            directory=self.directory,
        )

        self.used = time.monotonic()
        self.busy = 0
        """Number of running calls."""

    def __enter__(self) -> None:
        with _lock:
            self.busy += 1

    def __exit__(self, *_: object) -> None:
        with _lock:
            self.busy -= 1
            self.used = time.monotonic()

    def path_of(self, name: str, text: str) -> str:
        path = self.directory / name
        with _lock:
            if not path.exists():
                path.write_text(text)
        return str(path)

    def close(self) -> None:
        self.workers.close()
        shutil.rmtree(self.directory, ignore_errors=True)


ABANDONED = 600.0
"""Seconds without work after which a session counts as dead when another one comes."""

_lock = threading.Lock()
_pools: dict[str, _BuilderPool] = {}
"""By session."""


async def leave(session: str) -> None:
    """Close the session's builders on this machine."""
    await asyncio.to_thread(_close, session)


def _close(session: str) -> None:
    with _lock:
        pool = _pools.pop(session, None)
    if pool is not None:
        pool.close()


def _pool(setup: Setup) -> _BuilderPool:
    now = time.monotonic()
    with _lock:
        abandoned = [
            session
            for session, pool in _pools.items()
            if session != setup.session and not pool.busy and now - pool.used > ABANDONED
        ]
        if setup.session not in _pools:
            _pools[setup.session] = _BuilderPool(setup)
        pool = _pools[setup.session]
        pool.used = now
    for session in abandoned:
        _close(session)
    return pool


def get_worker() -> Any:
    """Dask's worker object of this process."""
    from distributed import get_worker

    return get_worker()


def _versions() -> dict[str, str | None]:
    return {name: package_versions.version_of(name) for name in COMPARED}
