"""From a network to a tuned, verified library on your device; nothing measured is ever lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvmtune.api import compile, load, tune
    from tvmtune.deploy.library import Library

__version__ = "0.1.0"
__all__ = ["Library", "__version__", "compile", "load", "tune"]

_HOMES = {
    "Library": "tvmtune.deploy.library",
    "Operator": "tvmtune.networks.declaration",
    "operator": "tvmtune.networks.declaration",
    "compile": "tvmtune.api",
    "load": "tvmtune.api",
    "tune": "tvmtune.api",
}


def __getattr__(name: str) -> Any:
    """The public API, imported when it is first used: TVM takes seconds, ``--help`` must not."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'tvmtune' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
