"""The packages of the extra ``report``, imported when they are needed."""

from __future__ import annotations

import importlib
from types import ModuleType

from tvmtune.errors import TvmtuneError

_PACKAGES = {"jinja2": "Jinja2", "vl_convert": "vl-convert-python"}


def imported(name: str) -> ModuleType:
    """A module of the extra; raises :class:`TvmtuneError` with the remedy if it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise TvmtuneError(
            f"reports need the package {_PACKAGES[name]}, which is not installed here: "
            "pip install 'tvmtune[report]'"
        ) from None
