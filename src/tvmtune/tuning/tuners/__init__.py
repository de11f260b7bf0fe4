"""Tuners: they propose candidates for one implementation and learn from the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tvmtune.errors import UsageError, nearest

if TYPE_CHECKING:
    from types import ModuleType

    from tvmtune.tuning.tuners.base import Tuner, TunerArgs
    from tvmtune.types import Task

TUNERS = {
    "xgb": "tvmtune.tuning.tuners.evolutionary",
    "xgb-knob": "tvmtune.tuning.tuners.knob",
    "ga": "tvmtune.tuning.tuners.genetic",
    "random": "tvmtune.tuning.tuners.sampling",
    "grid": "tvmtune.tuning.tuners.grid",
    "droplet": "tvmtune.tuning.tuners.droplet",
}
ALIASES = {
    "xgb-rank": "xgb",
    "xgb_rank": "xgb",
    "evolutionary": "xgb",
    "xgb_knob": "xgb-knob",
    "genetic": "ga",
    "gridsearch": "grid",
    "grid-search": "grid",
}


def canonical(name: str) -> str:
    """The canonical name for a name or an alias; raises :class:`UsageError` for unknown names."""
    key = ALIASES.get(name.lower(), name.lower())
    if key not in TUNERS:
        raise UsageError(f"tuner '{name}' is not known.{nearest(key, [*TUNERS, *ALIASES])}")
    return key


def options(name: str) -> dict[str, int | float]:
    """The options of a tuner, with their defaults."""
    listed: dict[str, int | float] = _module(name).OPTIONS
    return listed


def check_options(name: str, given: Mapping[str, Any]) -> dict[str, int | float]:
    """``--tuner-option`` values, converted to the types of the tuner's defaults.

    Raises :class:`UsageError` for an unknown option, an integer below 1, or a fraction outside 0 to 1.
    """
    known = options(name)
    checked: dict[str, int | float] = {}
    for key, value in given.items():
        if key not in known:
            hint = nearest(key, [*known]) if known else ""
            listed = ", ".join(f"{k}={v}" for k, v in known.items()) or "none"
            raise UsageError(
                f"--tuner-option {key}: tuner '{name}' has no such option.{hint} "
                f"Its options and defaults: {listed}."
            )
        integer = isinstance(known[key], int)
        number = isinstance(value, int) or (isinstance(value, float) and not integer)
        if not number or not (value >= 1 if integer else 0 <= value <= 1):
            expected = "an integer of at least 1" if integer else "a number between 0 and 1"
            raise UsageError(f"--tuner-option {key}={value}: expected {expected}")
        checked[key] = value if integer else float(value)
    return checked


def check_space(name: str, tasks: Sequence[Task], limited: bool) -> None:
    """Raise :class:`UsageError` if the tuner would never finish: one that enumerates spaces, on spaces
    of unknown size, without a limit on trials or time."""
    if limited or not getattr(_module(name), "ENUMERATES", False):
        return
    unknown = [t.name for t in tasks if any(i.space.size is None for i in t.implementations)]
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise UsageError(
            f"tuner '{canonical(name)}' enumerates the whole space, and that of "
            f"{', '.join(unknown[:3])}{more} has no known size: limit the trials or the "
            "time, or choose another tuner"
        )


def create(name: str, args: TunerArgs) -> Tuner:
    made: Tuner = _module(name).create(args)
    return made


def _module(name: str) -> ModuleType:
    import importlib

    return importlib.import_module(TUNERS[canonical(name)])
