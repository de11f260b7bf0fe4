"""Parse what users write in options: ``K=V`` pairs, shapes, durations, sizes, choices of tasks."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvmtune.errors import UsageError

if TYPE_CHECKING:
    from tvmtune.types import Task


def select_tasks(tasks: Sequence[Task], only: str | None) -> list[Task]:
    """The tasks that ``--tasks`` selects: ``3,5-8``, ``*conv2d*``, ``top5``; without it, all."""
    from fnmatch import fnmatch

    if not only:
        return list(tasks)
    chosen: list[Task] = []
    for word in (w.strip() for w in only.split(",") if w.strip()):
        first, dash, last = word.partition("-")
        if word.startswith("top") and word[3:].isdigit():
            heaviest_first = sorted(tasks, key=lambda t: -t.weight * t.flop)
            selected = heaviest_first[: int(word[3:])]
        elif first.isdigit() and (not dash or last.isdigit()):
            indices = range(int(first), int(last or first) + 1)
            selected = [t for t in tasks if t.index in indices]
        else:
            selected = [t for t in tasks if fnmatch(t.name, word)]
        if not selected:
            raise UsageError(
                f"--tasks {word} matches none of the {len(tasks)} tasks; tvmtune tasks lists them"
            )
        chosen += [t for t in selected if t not in chosen]
    return sorted(chosen, key=lambda t: t.index)


def parse_pairs(option: str, values: Sequence[str]) -> dict[str, Any]:
    """``K=V`` strings as a dict; values that look like numbers become ints or floats."""
    result: dict[str, Any] = {}
    for value in values:
        key, sign, text = value.partition("=")
        if not sign or not key.strip():
            raise UsageError(f"{option} takes K=V, not '{value}'")
        if key.strip() in result:
            raise UsageError(f"{option} {key.strip()} is given twice")
        result[key.strip()] = _number(text.strip())
    return result


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse_shapes(values: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """``NAME:1x3x224x224`` strings as shapes by input name."""
    shapes = {}
    for value in values:
        name, sign, text = value.rpartition(":")
        parts = text.lower().replace(",", "x").split("x")
        if not sign or not name or not all(p.strip().isdigit() and int(p) > 0 for p in parts):
            raise UsageError(f"--shape takes NAME:1x3x224x224, not '{value}'")
        shapes[name] = tuple(int(p) for p in parts)
    return shapes


_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_DURATION = re.compile(r"(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.]+)s)?", re.ASCII)
_SIZE = re.compile(r"([\d.]+)\s*([KMGT]?)(?:i?B)?", re.ASCII | re.IGNORECASE)


def seconds_of(option: str, value: object) -> float:
    """The seconds of a duration such as ``90``, ``90s``, ``4m`` or ``1h30m``; raises
    :class:`UsageError` for anything else."""
    text = str(value).strip().lower()
    sign = -1.0 if text.startswith("-") else 1.0  # for a better message than this one
    parts = _DURATION.fullmatch(text.removeprefix("-"))
    try:
        if parts and any(parts.groups()):
            given = zip(parts.groups(), _UNITS.values(), strict=True)
            return sign * sum(float(number) * unit for number, unit in given if number)
        if math.isfinite(seconds := float(text)):
            return seconds
    except ValueError:
        pass
    raise UsageError(
        f"{option} takes seconds, or a time such as 90s, 30m or 1h30m, not '{value}'"
    ) from None


def bytes_of(option: str, value: object) -> int:
    """The bytes of a size such as ``65536``, ``512K``, ``1.5M`` or ``2G``, by powers of 1024; raises
    :class:`UsageError` for anything else."""
    parts = _SIZE.fullmatch(str(value).strip())
    try:
        if parts:
            size = float(parts[1]) * 1024 ** " KMGT".index(parts[2].upper() or " ")
            if size == int(size):
                return int(size)
    except ValueError:
        pass
    raise UsageError(f"{option} takes bytes, or a size such as 512K, 64M or 2G, not '{value}'")


def parse_params(values: Sequence[str]) -> dict[str, Any]:
    """``--hardware-param``: as :func:`parse_pairs`; names that end in ``bytes`` take sizes."""
    pairs = parse_pairs("--hardware-param", values)
    return {
        name: bytes_of(f"--hardware-param {name}", value) if name.endswith("bytes") else value
        for name, value in pairs.items()
    }
