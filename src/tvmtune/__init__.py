"""From a network to a tuned, verified library on your device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmtune.version import __version__

if TYPE_CHECKING:
    from tvmtune.api import compile, load, plan, ship, tune
    from tvmtune.errors import TvmtuneError, UsageError
    from tvmtune.networks.declaration import Operator, operator
    from tvmtune.networks.quantization import Calibration
    from tvmtune.notebook import progress
    from tvmtune.records.trial_log import read_log
    from tvmtune.runtime.inference import InferenceSession
    from tvmtune.runtime.library import Library
    from tvmtune.tuning.budget import Budget
    from tvmtune.types import Timing

__all__ = [
    "Budget",
    "Calibration",
    "InferenceSession",
    "Library",
    "Operator",
    "Timing",
    "TvmtuneError",
    "UsageError",
    "__version__",
    "compile",
    "load",
    "operator",
    "plan",
    "progress",
    "read_log",
    "ship",
    "tune",
]

_MODULES = {
    "Budget": "tvmtune.tuning.budget",
    "Calibration": "tvmtune.networks.quantization",
    "InferenceSession": "tvmtune.runtime.inference",
    "Library": "tvmtune.runtime.library",
    "Operator": "tvmtune.networks.declaration",
    "Timing": "tvmtune.types",
    "TvmtuneError": "tvmtune.errors",
    "UsageError": "tvmtune.errors",
    "compile": "tvmtune.api",
    "load": "tvmtune.api",
    "operator": "tvmtune.networks.declaration",
    "plan": "tvmtune.api",
    "progress": "tvmtune.notebook",
    "read_log": "tvmtune.records.trial_log",
    "ship": "tvmtune.api",
    "tune": "tvmtune.api",
}


def __getattr__(name: str) -> Any:
    """Import the public API on first use: importing TVM takes seconds, and ``--help`` must not."""
    import importlib

    if name not in _MODULES:
        raise AttributeError(f"module 'tvmtune' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """For completion, which finds no name before its first use otherwise."""
    return sorted({*globals(), *__all__})
