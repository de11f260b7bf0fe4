"""The file of measured rows: JSON lines that are only appended."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

FORMAT = 1
"""Of a row; rows of another format are ignored."""

Row = dict[str, Any]


def append(path: Path, row: Row) -> None:
    """Append a row, whole or not at all, and wait until it is on disk."""
    line = json.dumps({"format": FORMAT, **row}, allow_nan=False) + "\n"
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = "\n" + line  # the last line is torn: it must not spoil this one
        with os.fdopen(os.dup(descriptor), "ab") as file:
            file.write(line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path, warn: Callable[[str], None] = lambda message: None) -> list[Row]:
    """The rows in the order in which they were measured; ``warn`` gets a message for each bad line."""
    if not path.exists():
        return []
    found = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:  # also wrong UTF-8
            torn = " (torn: the writer was killed)" if number == len(lines) else ""
            warn(f"{path}:{number} is not JSON and is ignored{torn}")
            continue
        if not _is_complete(row):
            warn(f"{path}:{number} is no row of this format and is ignored")
            continue
        found.append(row)
    return found


def _is_complete(row: Any) -> bool:
    """Whether it has what resuming and the report need."""
    return (
        isinstance(row, dict)
        and row.get("format") == FORMAT
        and isinstance(row.get("network"), str)
        and isinstance(row.get("threads"), int)
        and isinstance(row.get("state"), dict)
        and all(isinstance(row.get(name), str) for name in ("key", "state_key"))
        and (isinstance(row.get("failure"), str) or isinstance(row.get("runs"), list))
    )


def latest(rows: list[Row]) -> dict[str, Row]:
    """The last row of each key; a failure never replaces a measurement."""
    result: dict[str, Row] = {}
    for row in rows:
        if "failure" not in row or "failure" in result.get(row["key"], row):
            result[row["key"]] = row
    return result
