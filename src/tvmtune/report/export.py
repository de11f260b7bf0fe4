"""A report's tables as CSV files, and its charts as pictures."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from tvmtune import atomic_write
from tvmtune.errors import UsageError
from tvmtune.records import table
from tvmtune.records.log import Log
from tvmtune.report import theme
from tvmtune.report.charts import Spec


def csv_paths(where: Path) -> tuple[Path, Path]:
    """Where the tables of trials and tasks go: ``DIR/trials.csv`` and ``DIR/tasks.csv``, or for a name
    that ends in ``.csv`` that file and ``NAME.tasks.csv`` beside it."""
    if where.suffix == ".csv":
        return where, where.with_suffix(".tasks.csv")
    return where / "trials.csv", where / "tasks.csv"


def write_csv(logs: Sequence[Log], where: Path) -> tuple[Path, Path]:
    """Write both tables; returns their paths."""
    paths = csv_paths(where)
    _make(paths[0].parent)
    for path, made in zip(paths, (table.trials(logs), table.tasks(logs)), strict=True):
        write_table(path, made)
    return paths


def write_table(path: Path, columns: table.Table) -> None:
    """A table as CSV in UTF-8: None is an empty cell, truth values are ``true`` and ``false``."""
    with atomic_write.replacing(path) as temporary:
        try:
            with temporary.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(columns)
                for row in zip(*columns.values(), strict=True):
                    writer.writerow([_cell(value) for value in row])
        except OSError as error:
            raise atomic_write.cannot_write(path, error) from error


def write_png(charts: Mapping[str, Spec], folder: Path) -> list[Path]:
    """Write each chart as ``FOLDER/NAME.png``; returns the paths.

    Raises :class:`TvmtuneError` without the extra ``report``.
    """
    _make(folder)
    paths = []
    for name, spec in charts.items():
        path = folder / f"{name}.png"
        with atomic_write.replacing(path) as temporary:
            temporary.write_bytes(theme.png(spec))
        paths.append(path)
    return paths


def _make(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} exists and is no directory: choose another name")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise atomic_write.cannot_write(folder, error) from error


def _cell(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value
