"""Records that come with tvmtune: the best schedules of the zoo's networks, for several CPUs and GPUs.

Each file is a distilled log, named after a class of CPUs (:func:`cpu_features.cpu_class`), one of its
processors by LLVM's name, and a number of threads; or after an architecture of GPUs and a model. Its
headers tell where it was measured. It has no record for a task whose default schedule is as fast.
``scripts/ship_records.py`` makes the files.
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
_NAME = re.compile(r"(?P<family>[^_]+)_(?P<processor>[^_]+)(_(?P<threads>\d+)-threads?)?\.json\.xz")


@dataclass(frozen=True)
class _File:
    processor: str
    threads: int | None
    """None for a GPU: its kernels do not depend on its host."""
    path: Path


def family(device: Device) -> str | None:
    """The class of a CPU, or a GPU's architecture (``cuda-sm90``); None if it is unknown."""
    kind = str(device.target.get("kind"))
    if kind == "llvm":
        return cpu_features.cpu_class(device.target)
    arch = device.target.get("arch")
    return f"{kind}-{arch.replace('_', '')}" if arch else None


def file_name(device: Device) -> str:
    """The name of the file for devices like this one, whose family must be known."""
    name = f"{family(device)}_{_processor(device)}"
    if device.target["kind"] == "llvm":
        name += f"_{device.threads}-thread{'s' if device.threads > 1 else ''}"
    return f"{name}.json.xz"


def _processor(device: Device) -> str:
    if device.target.get("kind") == "llvm":
        return str(device.target.get("mcpu"))
    return re.sub(r"[^a-z0-9]+", "-", device.model.lower())


def for_compiling(device: Device, *, exact_only: bool = False) -> Log | None:
    """The records for the device's processor with as many threads, or for its model of GPU, of kind
    ``shipped``; None if there are none. ``exact_only`` leaves out algorithms that round more than the
    direct one.

    Not those for other processors of the class: with a Xeon's records, a Zen 4 took 13% longer for
    ResNet-50 than with default schedules.

    Raises :class:`TvmtuneError` if the file is damaged.
    """
    found = [
        f
        for f in _files(device)
        if f.processor == _processor(device) and f.threads in (None, device.threads)
    ]
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
    otherwise another of its family: tuning measures what it takes from them."""

    def distance(file: _File) -> tuple[bool, float]:
        apart = abs(math.log((file.threads or device.threads) / device.threads))
        return file.processor != _processor(device), apart

    files = _files(device)
    return _read(min(files, key=distance).path) if files else None


def _files(device: Device) -> list[_File]:
    """The files of the device's family."""
    wanted = family(device)
    matches = ((_NAME.fullmatch(path.name), path) for path in sorted(FOLDER.glob("*.json.xz")))
    return [
        _File(m["processor"], int(m["threads"]) if m["threads"] else None, path)
        for m, path in matches
        if m and m["family"] == wanted
    ]


@functools.cache
def _read(path: Path) -> Log:
    log = read_log(path)
    return replace(log, trials=[trial.evolve(kind=SHIPPED) for trial in log.trials])
