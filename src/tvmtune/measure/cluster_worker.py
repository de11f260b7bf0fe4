"""What a machine of a build cluster does: build candidates in processes that are killed at their
deadlines, exactly as a session does on its own machine."""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import subprocess
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvmtune import system
from tvmtune.types import BuilderSpec
from tvmtune.workers import Outcome, Workers

UNFIT = "unfit"
"""In the place of a stage: it was not the candidate's fault, and another machine may do it."""
COMPARED = ("tvmtune", "apache-tvm", "apache-tvm-ffi")


@dataclass(frozen=True)
class Needs:
    """What a builder has to have, and how it is set up."""

    session: str
    """Whose work it is."""
    init: str | None
    options: dict[str, Any]
    linkers: dict[tuple[str, ...], str]
    """What each command says of its version."""
    versions: dict[str, str | None] = field(default_factory=dict)

    @classmethod
    def of(cls, builder: BuilderSpec) -> Needs:
        options = [builder.options, *([builder.reference.options] if builder.reference else [])]
        commands = {tuple(map(str, each["linker"])) for each in options if each.get("linker")}
        return cls(
            uuid.uuid4().hex,
            builder.init,
            dict(builder.options),
            {command: _says(command) for command in commands},
            _versions(),
        )


def trouble(needs: Needs) -> str:
    """Why this machine cannot be used; empty if it can."""
    mine = _versions()
    for name, wanted in needs.versions.items():
        if mine[name] != wanted:
            return f"it has {name} {mine[name]}, and the session has {wanted}"
    for command, wanted in needs.linkers.items():
        says = _says(command)
        if not says or says != wanted:
            return f"its linker is not the session's: {' '.join(command)} {says or 'is missing'}"
    return ""


def _says(command: tuple[str, ...]) -> str:
    """What a linker says of its version; empty if it is not there."""
    try:
        done = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return next(iter(done.stdout.splitlines()), "")


def build(
    needs: Needs,
    function: str,
    workload: tuple[str, str],
    arguments: tuple[Any, ...],
    deadline: float,
) -> tuple[Outcome, bytes]:
    """Call ``function`` with the path of a file that holds ``workload`` (name, text), ``arguments`` and
    a directory; returns what became of it, as :meth:`tvmtune.workers.Workers.collect` tells it, and
    the bytes of the file whose path comes first in its result.

    Where this machine cannot do it, the stage is :data:`UNFIT` and the value the machine's address.
    """
    address = get_worker().address
    try:
        shop = _shop(needs)
    except _Unfit as error:
        return Outcome(address, UNFIT, str(error)), b""
    with shop:
        try:
            path = shop.path_of(*workload)
            handle = shop.workers.submit(
                function, (path, *arguments, str(shop.directory)), deadline
            )
            outcome = shop.workers.collect([handle], deadline=deadline, stage="build")[0]
            if not outcome.ok:
                return outcome, b""
            made = Path(outcome.value[0])
            library = made.read_bytes()
            made.unlink()
        except OSError as error:  # its disk is full, say
            return Outcome(address, UNFIT, str(error)), b""
    return outcome, library


class _Unfit(Exception):
    """This machine cannot build for the session."""


class _Shop:
    """Processes that build, and their files; a context while they are at work."""

    def __init__(self, needs: Needs) -> None:
        if why := trouble(needs):  # a machine that came later was not asked before
            raise _Unfit(why)
        # Dask's nanny makes its workers "daemons", which multiprocessing lets have no children. Ours
        # end with their parent by themselves.
        multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
        worker = get_worker()
        try:
            self.directory = Path(tempfile.mkdtemp(prefix="tvmtune-", dir=worker.local_directory))
        except OSError as error:
            raise _Unfit(str(error)) from None
        self.workers = Workers(
            worker.state.nthreads,
            init=needs.init,
            options=needs.options,
            directory=self.directory,
        )

        self.used = time.monotonic()
        self.busy = 0
        """Calls that are at work."""

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
"""Seconds without work after which a session is taken for dead when another comes."""

_lock = threading.Lock()
_shops: dict[str, _Shop] = {}
"""By session."""


async def leave(session: str) -> None:
    """The session needs this machine no more."""
    await asyncio.to_thread(_close, session)


def _close(session: str) -> None:
    with _lock:
        shop = _shops.pop(session, None)
    if shop is not None:
        shop.close()


def _shop(needs: Needs) -> _Shop:
    now = time.monotonic()
    with _lock:
        abandoned = [
            session
            for session, shop in _shops.items()
            if session != needs.session and not shop.busy and now - shop.used > ABANDONED
        ]
        if needs.session not in _shops:
            _shops[needs.session] = _Shop(needs)
        found = _shops[needs.session]
        found.used = now
    for session in abandoned:
        _close(session)
    return found


def get_worker() -> Any:
    """Dask's own object for this machine."""
    from distributed import get_worker

    return get_worker()


def _versions() -> dict[str, str | None]:
    return {name: system.version_of(name) for name in COMPARED}
