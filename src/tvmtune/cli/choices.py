"""An option with a few possible values, whose error message names the nearest."""

from __future__ import annotations

from typing import Any

import click

from tvmtune.errors import UsageError, nearest


class OneOf(click.Choice[str]):
    """As click's, but with tvmtune's message for other values."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            name = param.opts[-1] if param is not None else "value"
            known = list(self.choices)
            raise UsageError(
                f"{name} '{value}' is not known.{nearest(str(value), known)}"
            ) from None
