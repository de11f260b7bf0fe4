"""Export records to a MetaSchedule database, for programs that use TVM without tvmtune."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.records.best import Selection
from tvmtune.records.schema import workload_module
from tvmtune.spaces import traces

FILES = ("database_workload.json", "database_tuning_record.json")
"""The files of a ``JSONDatabase(work_dir=...)``."""


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
            "a MetaSchedule database does not tell devices apart, and the logs hold records of "
            f"several ({', '.join(sorted(models))}): give logs of one device"
        )
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"-o {folder} exists and is no directory: a database has two files")
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
                            f"task {task} has no stored workload for '{trial.implementation}'"
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
