"""Parse what users write in options: ``K=V`` pairs, shapes, durations, choices of tasks."""

from __future__ import annotations

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
                f"--tasks {word} matches none of the {len(tasks)} tasks; tvmtune tasks lists them."
            )
        chosen += [t for t in selected if t not in chosen]
    return sorted(chosen, key=lambda t: t.index)


def parse_pairs(option: str, values: Sequence[str]) -> dict[str, Any]:
    """``K=V`` strings as a dict; values that look like numbers become ints or floats."""
    result: dict[str, Any] = {}
    for value in values:
        key, sign, text = value.partition("=")
        if not sign or not key.strip():
            raise UsageError(f"{option} takes K=V, not '{value}'.")
        if key.strip() in result:
            raise UsageError(f"{option} {key.strip()} is given twice.")
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
            raise UsageError(f"--shape takes NAME:1x3x224x224, not '{value}'.")
        shapes[name] = tuple(int(p) for p in parts)
    return shapes


def seconds_of(text: str) -> float:
    """The seconds of a duration such as ``90``, ``90s``, ``30m`` or ``2h``; raises ValueError for
    anything else."""
    text = text.strip().lower()
    factor = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:])
    return float(text[:-1]) * factor if factor else float(text)
