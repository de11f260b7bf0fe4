"""Records that come with tvmtune: the best schedules of the zoo's networks, for classes of CPUs.

Each file is a distilled log, named after a class of CPUs (:func:`cpu_features.cpu_class`) and a number
of threads; its headers tell where it was measured. It has no record for a task whose default schedule
is as fast. ``scripts/ship_records.py`` makes the files.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import replace
from pathlib import Path

from tvmtune.machine import cpu_features
from tvmtune.records.log import Log, read_log
from tvmtune.types import SHIPPED, Device

FOLDER = Path(__file__).with_name("shipped")
_NAME = re.compile(r"(?P<cpu>.+)-(?P<threads>\d+)-threads?\.json\.xz")


def file_name(cpu: str, threads: int) -> str:
    """The name of the file for a class of CPUs and a number of threads."""
    return f"{cpu}-{threads}-thread{'s' if threads > 1 else ''}.json.xz"


def for_compiling(device: Device, *, exact_only: bool = False) -> Log | None:
    """The records for CPUs of the device's class with as many threads, of kind ``shipped``; None if
    there are none. ``exact_only`` leaves out algorithms that round more than the direct one.

    Raises :class:`TvmtuneError` if the file is damaged.
    """
    path = _files(device).get(device.threads)
    if path is None:
        return None
    log = _read(path)
    if not exact_only:
        return log
    exact = {
        (key, implementation["name"])
        for key, line in log.tasks.items()
        for implementation in line["implementations"]
        if implementation["exact"]
    }
    return replace(log, trials=[t for t in log.trials if (t.task, t.implementation) in exact])


def for_tuning(device: Device) -> Log | None:
    """The same with the nearest number of threads: tuning measures what it takes from them."""
    files = _files(device)
    if not files:
        return None
    return _read(files[min(files, key=lambda n: abs(math.log(n / device.threads)))])


def _files(device: Device) -> dict[int, Path]:
    """The files of the device's class of CPUs, by number of threads."""
    if (
        device.target.get("kind") != "llvm"
        or (cpu := cpu_features.cpu_class(device.target)) is None
    ):
        return {}
    matches = ((_NAME.fullmatch(path.name), path) for path in sorted(FOLDER.glob("*.json.xz")))
    return {int(m["threads"]): path for m, path in matches if m and m["cpu"] == cpu}


@functools.cache
def _read(path: Path) -> Log:
    log = read_log(path)
    return replace(log, trials=[trial.evolve(kind=SHIPPED) for trial in log.trials])
