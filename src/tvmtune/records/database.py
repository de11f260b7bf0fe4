"""MetaSchedule databases: written for programs that use TVM without tvmtune, and read as logs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune import fields
from tvmtune.errors import TvmtuneError, UsageError, last_line
from tvmtune.machine import package_versions
from tvmtune.passes import workload_keys
from tvmtune.records import schema
from tvmtune.records.best import Selection
from tvmtune.records.log import Log, read_log
from tvmtune.records.schema import workload_module
from tvmtune.spaces import traces
from tvmtune.types import DIRECT, JSON, Device, Trial, digest

if TYPE_CHECKING:
    from tvm.s_tir.meta_schedule.database import TuningRecord

FILES = ("database_workload.json", "database_tuning_record.json")
"""The files of a ``JSONDatabase(work_dir=...)``."""

METASCHEDULE = "metaschedule"
"""Value of :attr:`Trial.tuner` for records of a database."""

_FAILED = 1e9
"""Seconds; MetaSchedule stores a failed trial as 1e10."""


def export(selections: Sequence[Selection], folder: Path) -> None:
    """Write the selected records to ``folder``, which must be new, empty, or a database already.

    A MetaSchedule database does not store the device: raises :class:`UsageError` for records of
    several devices, and :class:`TvmtuneError` for records that lack a workload or no longer apply.
    """
    import tvm
    from tvm.s_tir import meta_schedule as ms

    models = {s.header["device"]["model"] or s.header["device"]["backend"] for s in selections}
    if len(selections) > 1:
        raise UsageError(
            "a MetaSchedule database does not distinguish devices, and the logs hold records of "
            f"several ({', '.join(sorted(models))}): give logs of one device"
        )
    if folder.exists() and not folder.is_dir():
        raise UsageError(
            f"-o {folder} exists and is not a directory: a database consists of two files"
        )
    if folder.exists() and any(entry.name not in FILES for entry in folder.iterdir()):
        raise UsageError(f"-o {folder} holds other files: choose a new directory")
    selection = selections[0]
    target = tvm.target.Target(selection.header["device"]["target"])
    try:
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as made:
            database = ms.database.JSONDatabase(work_dir=made)
            for task, trials in selection.trials.items():
                for trial in trials:
                    stored = workload_module(selection.tasks.get(task), trial.implementation)
                    if not stored:
                        raise TvmtuneError(
                            f"task {task} has no stored workload for '{trial.implementation}': tune it "
                            "again with this version"
                        )
                    mod = traces.load_module(stored)
                    database.commit_tuning_record(
                        ms.database.TuningRecord(
                            traces.apply(mod, trial.trace).trace,
                            database.commit_workload(mod),
                            trial.seconds,
                            target,
                            ms.arg_info.ArgInfo.from_prim_func(mod["main"]),
                        )
                    )
            folder.mkdir(exist_ok=True)
            for name in FILES:
                shutil.move(Path(made) / name, folder / name)
    except OSError as error:
        raise TvmtuneError(f"cannot write {folder}: {error.strerror}") from error


def read_records(path: Path, device: Device) -> Log:
    """The records in a log, or those in a MetaSchedule database that were measured on ``device``.

    Raises :class:`TvmtuneError` for a file that is no sound log, and for a database that is damaged or
    whose records are all of other devices; :class:`UsageError` for another directory.
    """
    check_kind(path)
    return read_database(path, device) if path.is_dir() else read_log(path)


def check_kind(path: Path) -> None:
    """Raise :class:`UsageError` for a directory without the files of a MetaSchedule database."""
    missing = [name for name in FILES if not (path / name).is_file()]
    if path.is_dir() and missing:
        raise UsageError(
            f"{path} is a directory, and not that of a MetaSchedule database: it has no "
            f"{' and no '.join(missing)}"
        )


def target_of(folder: Path) -> JSON:
    """The TVM target of a database's first record that has one; empty if none has.

    Raises :class:`TvmtuneError` if the database is damaged.
    """
    targets = (record.target for record in _records(folder))
    return next((dict(target.export()) for target in targets if target is not None), {})


def read_database(folder: Path, device: Device) -> Log:
    """The records in a MetaSchedule database as a log of ``device``.

    A database stores only the target: a record counts as the device's if kind and processor agree, and
    the number of cores agrees with the device's threads. Its task is the workload, as the
    implementation ``direct``. Raises :class:`TvmtuneError` if the database is damaged, or if none of
    its records is of the device.
    """
    log = Log(folder, headers=[_header(folder, device)], starts=[0])
    others: list[str] = []
    records = _records(folder)
    if not records:
        raise TvmtuneError(f"{folder} is a database without records: nothing was measured")
    for record in records:
        if difference := _difference(record, device):
            others.append(difference)
        elif _succeeded(record):
            try:
                _add(log, record, device.identity())
            except Exception as error:  # a workload may be anything
                raise TvmtuneError(
                    f"{folder} holds a workload that is no single kernel: {last_line(error)}"
                ) from error
    if others and len(others) == len(records):
        raise TvmtuneError(
            f"{folder} holds no record of this device ({device.model}, {device.threads} threads) but "
            f"of others: {'; '.join(dict.fromkeys(others))}"
        )
    return log


def _records(folder: Path) -> list[TuningRecord]:
    from tvm.s_tir import meta_schedule as ms

    try:
        database = ms.database.JSONDatabase(work_dir=str(folder), allow_missing=False)
        return list(database.get_all_tuning_records())
    except Exception as error:  # TVM's own classes
        raise TvmtuneError(
            f"{folder} holds no MetaSchedule database that this TVM can read: {last_line(error)}"
        ) from error


def _header(folder: Path, device: Device) -> JSON:
    return {
        "type": schema.HEADER,
        "format": schema.FORMAT,
        "network": {"name": folder.name, "layout": "", "inputs": [], "outputs": []},
        "device": device.to_json(),
        "versions": package_versions.versions(),
        "threads": device.threads,
    }


def _difference(record: TuningRecord, device: Device) -> str:
    """How the record's device differs from ``device``; empty if it does not."""
    if record.target is None:
        return "a record without a target"
    theirs: JSON = dict(record.target.export())
    for name in ("kind", "mtriple", "mcpu", "arch"):
        mine = device.target.get(name)
        if theirs.get(name) and mine and str(theirs[name]) != str(mine):
            return f"{name} {theirs[name]} instead of {mine}"
    cores = theirs.get("num-cores")
    if cores and int(cores) != device.threads and device.runtime == "cpu":
        return f"{int(cores)} cores instead of {device.threads}"
    return ""


def _succeeded(record: TuningRecord) -> bool:
    seconds = [float(each) for each in record.run_secs or ()]
    return bool(seconds) and fields.are_times(seconds) and max(seconds) < _FAILED


def _add(log: Log, record: TuningRecord, device: str) -> None:
    mod = record.workload.mod
    key = workload_keys.workload_key(mod)
    if key not in log.tasks:
        log.tasks[key] = _task(key, mod, len(log.tasks))
    trace: Any = traces.plain(record.trace.as_json())
    log.trials.append(
        Trial(
            task=key,
            implementation=DIRECT,
            workload=key,
            candidate=digest(trace),
            trace=trace,
            seconds=[float(seconds) for seconds in record.run_secs],
            tuner=METASCHEDULE,
            device=device,
        )
    )


def _task(key: str, mod: Any, index: int) -> JSON:
    from tvm.s_tir.analysis import estimate_tir_flops, find_anchor_sblock
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo

    arguments = ArgInfo.from_prim_func(mod["main"])
    block = find_anchor_sblock(mod)
    return {
        "type": schema.TASK,
        "task": key,
        "anchor": workload_keys.anchor_key(mod),
        "index": index,
        "name": str(block.name_hint) if block is not None else "kernel",
        "weight": 1,
        "flop": float(estimate_tir_flops(mod)),
        "args": [[[*map(int, each.shape)], str(each.dtype)] for each in arguments],
        "implementations": [
            {"name": DIRECT, "workload": key, "exact": True, "module": traces.store_module(mod)}
        ],
    }
