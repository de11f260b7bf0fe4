"""Tuners propose candidates for one implementation and are told how they did."""

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
    """The tuner's own name for a name or an alias; :class:`UsageError` for others."""
    key = ALIASES.get(name.lower(), name.lower())
    if key not in TUNERS:
        raise UsageError(f"tuner '{name}' is not known.{nearest(key, [*TUNERS, *ALIASES])}")
    return key


def options(name: str) -> dict[str, int | float]:
    """The options of a tuner, with their defaults."""
    found: dict[str, int | float] = _module(name).OPTIONS
    return found


def check_options(name: str, given: Mapping[str, Any]) -> dict[str, int | float]:
    """``--tuner-option`` in the types of the tuner's own defaults.

    Raises :class:`UsageError` for an option that the tuner does not have, or a value that is no
    positive number, or for probabilities above 1.
    """
    known = options(name)
    found: dict[str, int | float] = {}
    for key, value in given.items():
        if key not in known:
            hint = nearest(key, [*known]) if known else ""
            listed = ", ".join(f"{k}={v}" for k, v in known.items()) or "none"
            raise UsageError(
                f"--tuner-option {key}: tuner '{name}' has no such option.{hint} "
                f"Its options and defaults: {listed}."
            )
        whole = isinstance(known[key], int)
        number = isinstance(value, int) or (isinstance(value, float) and not whole)
        if not number or not (value >= 1 if whole else 0 <= value <= 1):
            wanted = "a whole number of at least 1" if whole else "a number between 0 and 1"
            raise UsageError(f"--tuner-option {key}={value}: {wanted} is wanted.")
        found[key] = value if whole else float(value)
    return found


def check_space(name: str, tasks: Sequence[Task], limited: bool) -> None:
    """Raise :class:`UsageError` if the tuner would never end: ``grid`` on spaces of unknown size
    without a limit on trials or time."""
    if canonical(name) != "grid" or limited:
        return
    unknown = [t.name for t in tasks if any(i.space.size is None for i in t.implementations)]
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise UsageError(
            f"tuner 'grid' goes through a whole space, and that of {', '.join(unknown[:3])}{more} has "
            "no known size: limit the trials or the time, or choose another tuner."
        )


def create(name: str, args: TunerArgs) -> Tuner:
    made: Tuner = _module(name).create(args)
    return made


def _module(name: str) -> ModuleType:
    import importlib

    return importlib.import_module(TUNERS[canonical(name)])
