"""Tune and compile each network once per kind of library, and keep the results in the folder.

A kind says where the library takes its records from: :data:`KINDS`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from command import tool

from comparison.state import Case
from tvmtune.atomic_write import write_text
from tvmtune.records.log import Log, read_log
from tvmtune.types import digest

ENOUGH = 0.95
"""Part of the tuning time from which an interrupted session counts as complete."""


@dataclass(frozen=True)
class Workshop:
    """Where libraries are made, and how."""

    folder: Path
    threads: int
    """CPU threads that they are tuned and compiled for."""
    tune: float
    """Seconds of tuning per network."""

    def file(self, case: Case, what: str) -> Path:
        """A file of this network in a subfolder named after its suffix."""
        name = f"{case.stem}-t{self.threads}-{what}"
        path = self.folder / Path(name).suffix.removeprefix(".") / name
        path.parent.mkdir(exist_ok=True)
        return path


def no_log(case: Case, workshop: Workshop) -> list[Path]:
    return []


def tuned(case: Case, workshop: Workshop) -> list[Path]:
    """The log of one session, which an interrupted run continues for the rest of the time."""
    log = workshop.file(case, f"{workshop.tune:.0f}s.json")
    done = log.with_suffix(".done")
    if done.exists():
        return [log]
    left = workshop.tune - (spent(read_log(log)) if log.exists() else 0.0)
    if left > (1 - ENOUGH) * workshop.tune:
        print(f"{case.label}: tuning for {left:.0f} s", file=sys.stderr)
        tool(
            *("tune", *case.words, "--target-attr", f"threads={workshop.threads}"),
            *("--time-budget", f"{left:.0f}s", "--log", str(log), "--no-compile"),
            "--no-shipped-records",
            stderr=workshop.file(case, "messages.txt"),
        )
    write_text(done, "")
    return [log]


@dataclass(frozen=True)
class Kind:
    """Where a kind of library takes its records from."""

    logs: Callable[[Case, Workshop], list[Path]]
    """Makes the logs that it is compiled with."""
    shipped: bool = False
    """Whether it takes the records that come with tvmtune."""


KINDS = {"untuned": Kind(no_log), "shipped": Kind(no_log, shipped=True), "tuned": Kind(tuned)}
"""Untuned libraries have default schedules only. Tuning starts from nothing."""


def spent(log: Log) -> float:
    """Seconds that the log's sessions have tuned, from the start of each to its last trial."""
    starts = sorted(float(header["started"]) for header in log.headers)
    ends = [*starts[1:], float("inf")]
    total = 0.0
    for start, end in zip(starts, ends, strict=True):
        times = [trial.time for trial in log.trials if start <= trial.time < end]
        total += max(times, default=start) - start
    return total


def make(
    kind: str, case: Case, workshop: Workshop, versions: dict[str, Any]
) -> tuple[Path, dict[str, Any]]:
    """The library of this kind, and what making it took; compiled only if something has changed.

    ``versions``: the part of the state that a library depends on. Raises :class:`command.Failed` if
    tvmtune fails, TvmtuneError for a damaged log.
    """
    logs, shipped = KINDS[kind].logs(case, workshop), KINDS[kind].shipped
    library = workshop.file(case, f"{kind}.so")
    notes = library.with_suffix(".made")
    contents = [digest(log.read_bytes().hex()) for log in logs]
    state = digest([case.identity, asdict(workshop) | {"folder": ""}, versions, contents])
    made = _read(notes)
    if made.get("state") == state and library.exists():
        return library, made
    print(f"{case.label}: compiling, {kind}", file=sys.stderr)
    _, seconds, peak = tool(
        *("compile", *case.words, "--target-attr", f"threads={workshop.threads}"),
        *(word for log in logs for word in ("--log", str(log))),
        *([] if shipped else ["--no-shipped-records"]),
        *("-o", str(library)),
        stderr=workshop.file(case, "messages.txt"),
    )
    made = {
        "state": state,
        "threads": workshop.threads,
        "compile_s": seconds,
        "compile_mb": peak / 1e6,
        "library_mb": library.stat().st_size / 1e6,
        **_tuning(logs),
    }
    write_text(notes, json.dumps(made) + "\n")
    return library, made


def _tuning(logs: Sequence[Path]) -> dict[str, float]:
    read = [read_log(path) for path in logs]
    return {"tune_s": sum(map(spent, read)), "trials": sum(len(log.trials) for log in read)}


def _read(path: Path) -> dict[str, Any]:
    """The notes; empty if there are none or they are damaged."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
