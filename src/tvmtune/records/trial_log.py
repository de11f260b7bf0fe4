"""A log for Python programs: its trials as tables and in formats of others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune.errors import UsageError
from tvmtune.records import log as records
from tvmtune.records import t4
from tvmtune.records import table as tables
from tvmtune.records.log import Log
from tvmtune.types import JSON

if TYPE_CHECKING:
    import pandas
    import polars


class TrialLog(Log):
    """The content of a log.

    Its attributes hold what the file says: ``trials`` (:class:`tvmtune.types.Trial`, times in seconds),
    ``headers`` and ``tasks`` (as ``docs/log-format.md`` describes them), and ``torn``, whether the last
    line is incomplete. Its methods make tables of them.
    """

    def table(self) -> tables.Table:
        """A row for each trial, in the order of the log, as a dictionary of columns.

        ``pandas.DataFrame`` and ``polars.DataFrame`` take it as it is. The columns, with their units,
        are listed in ``docs/python.md`` and :data:`tvmtune.records.table.TRIAL_COLUMNS`; None where the
        log has no value.
        """
        return tables.trials(self)

    def task_table(self) -> tables.Table:
        """A row for each task, device and kind (measured or modelled), like :meth:`table`.

        The columns are those of :data:`tvmtune.records.table.TASK_COLUMNS`.
        """
        return tables.tasks(self)

    def to_pandas(self) -> pandas.DataFrame:
        """:meth:`table` as a data frame of pandas. Raises :class:`UsageError` if it is missing."""
        return _library("pandas").DataFrame(self.table())

    def to_polars(self) -> polars.DataFrame:
        """:meth:`table` as a data frame of polars. Raises :class:`UsageError` if it is missing."""
        # Columns may begin with many None: take all rows to find their types.
        return _library("polars").DataFrame(self.table(), infer_schema_length=None)

    def to_t4(self) -> JSON:
        """Every trial in the T4 format of Kernel Tuner's results, for :func:`json.dump`.

        See :mod:`tvmtune.records.t4` for what its fields hold; times are in milliseconds.
        """
        return t4.results(self.trials, self.tasks)


def read_log(path: str | os.PathLike[str]) -> TrialLog:
    """Read a log of this or an older format, also while a run writes to it.

    A file named ``*.gz`` or ``*.xz`` is decompressed. An incomplete last line, as a power cut leaves
    it, is ignored; trials with impossible times are left out, with a warning. Raises
    :class:`TvmtuneError` for a file that is missing, empty, not a log, of a newer format, or damaged
    anywhere else.
    """
    return TrialLog(**vars(records.read_log(Path(path))))


def _library(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f"{name} cannot be imported ({error}): pip install {name}, or use table(), which needs "
            "nothing else"
        ) from error
