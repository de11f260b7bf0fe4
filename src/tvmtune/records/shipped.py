"""Records that come with tvmtune: the best schedules of the zoo's networks, for several CPUs.

Each file is a distilled log, named after a class of CPUs (:func:`cpu_features.cpu_class`), one of its
processors by LLVM's name, and a number of threads; its headers tell where it was measured. It has no
record for a task whose default schedule is as fast. ``scripts/ship_records.py`` makes the files.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

from tvmtune.machine import cpu_features
from tvmtune.records.log import Log, read_log
from tvmtune.types import SHIPPED, Device

FOLDER = Path(__file__).with_name("shipped")
_NAME = re.compile(r"(?P<cpu>.+)_(?P<processor>.+)_(?P<threads>\d+)-threads?\.json\.xz")


@dataclass(frozen=True)
class _File:
    processor: str
    threads: int
    path: Path


def file_name(device: Device) -> str:
    """The name of the file for devices like this one, whose class must be known."""
    cpu, processor = cpu_features.cpu_class(device.target), device.target["mcpu"]
    plural = "s" if device.threads > 1 else ""
    return f"{cpu}_{processor}_{device.threads}-thread{plural}.json.xz"


def for_compiling(device: Device, *, exact_only: bool = False) -> Log | None:
    """The records for the device's processor with as many threads, of kind ``shipped``; None if
    there are none. ``exact_only`` leaves out algorithms that round more than the direct one.

    Not those for other processors of the class: with a Xeon's records, a Zen 4 took 13% longer for
    ResNet-50 than with default schedules.

    Raises :class:`TvmtuneError` if the file is damaged.
    """
    processor = device.target.get("mcpu")
    found = [f for f in _files(device) if f.processor == processor and f.threads == device.threads]
    if not found:
        return None
    log = _read(found[0].path)
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
    """The records for the nearest number of threads and, if there are any, the device's processor,
    otherwise another of its class: tuning measures what it takes from them."""
    processor = device.target.get("mcpu")

    def distance(file: _File) -> tuple[bool, float]:
        return file.processor != processor, abs(math.log(file.threads / device.threads))

    files = _files(device)
    return _read(min(files, key=distance).path) if files else None


def _files(device: Device) -> list[_File]:
    """The files of the device's class of CPUs."""
    if (
        device.target.get("kind") != "llvm"
        or (cpu := cpu_features.cpu_class(device.target)) is None
    ):
        return []
    matches = ((_NAME.fullmatch(path.name), path) for path in sorted(FOLDER.glob("*.json.xz")))
    return [
        _File(m["processor"], int(m["threads"]), path)
        for m, path in matches
        if m and m["cpu"] == cpu
    ]


@functools.cache
def _read(path: Path) -> Log:
    log = read_log(path)
    return replace(log, trials=[trial.evolve(kind=SHIPPED) for trial in log.trials])
