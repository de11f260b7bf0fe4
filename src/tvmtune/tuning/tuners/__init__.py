"""Tuners propose candidates for one implementation and are told how they did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmtune.errors import UsageError, nearest

if TYPE_CHECKING:
    from tvmtune.tuning.tuners.base import Tuner, TunerArgs

TUNERS = {"xgb": "tvmtune.tuning.tuners.evolutionary", "random": "tvmtune.tuning.tuners.sampling"}
ALIASES = {"xgb-rank": "xgb", "xgb_rank": "xgb", "evolutionary": "xgb"}


def canonical(name: str) -> str:
    """The tuner's own name for a name or an alias; :class:`UsageError` for others."""
    key = ALIASES.get(name.lower(), name.lower())
    if key not in TUNERS:
        raise UsageError(f"tuner '{name}' is not known.{nearest(key, [*TUNERS, *ALIASES])}")
    return key


def create(name: str, args: TunerArgs) -> Tuner:
    import importlib

    return importlib.import_module(TUNERS[canonical(name)]).create(args)
