"""Checks of the fields of JSON objects: a file may have been edited, or made to do harm."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from tvmtune.types import JSON


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max  # neither is NaN


TEXT = "text", lambda value: isinstance(value, str)
TEXT_OR_NULL = "text or null", lambda value: value is None or isinstance(value, str)
INTEGER = "an integer", lambda value: type(value) is int
NUMBER = "a number", _is_number
FLAG = "true, false or null", lambda value: value is None or isinstance(value, bool)
LIST = "a list", lambda value: isinstance(value, list)
OBJECT = "an object", lambda value: isinstance(value, dict)
NUMBER_OR_NULL = "a number or null", lambda value: value is None or _is_number(value)
OBJECT_OR_NULL = "an object or null", lambda value: value is None or isinstance(value, dict)

Kind = tuple[str, Callable[[Any], bool]]


def check(
    record: JSON, required: Mapping[str, Kind], optional: Mapping[str, Kind] | None = None
) -> None:
    """Raise KeyError for a missing field of ``record``, ValueError for one of another type."""
    for name, (words, fits) in required.items():
        if not fits(record[name]):
            raise ValueError(f"'{name}' is not {words}")
    for name, (words, fits) in (optional or {}).items():
        if name in record and not fits(record[name]):
            raise ValueError(f"'{name}' is not {words}")


def each(values: list[Any], kind: Kind, name: str) -> list[Any]:
    """``values``; raises ValueError unless all are of this kind."""
    words, fits = kind
    if not all(map(fits, values)):
        raise ValueError(f"'{name}' holds something other than {words}")
    return values


def are_times(values: Any) -> bool:
    """Whether it is a list of positive, finite numbers: what a clock can measure."""
    return isinstance(values, list) and all(
        type(value) in (int, float) and 0 < value <= sys.float_info.max for value in values
    )
