"""The packages of the extra ``report``, imported when they are needed.

Both functions raise :class:`TvmtuneError`, with the remedy, if the package is not installed.
"""

from __future__ import annotations

from types import ModuleType

from tvmtune.errors import TvmtuneError


def jinja2() -> ModuleType:
    """The template engine."""
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise _missing("Jinja2", error) from None
    return jinja2


def vl_convert() -> ModuleType:
    """Vega and Vega-Lite: pictures of charts, and the script that draws them in a page."""
    try:
        import vl_convert
    except ModuleNotFoundError as error:
        raise _missing("vl-convert-python", error) from None
    return vl_convert


def _missing(package: str, error: ModuleNotFoundError) -> TvmtuneError:
    return TvmtuneError(
        f"reports need the package {package}, which is not installed here ({error}): "
        "pip install 'tvmtune[report]'"
    )
