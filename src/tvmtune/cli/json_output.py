"""``--json``: one document on stdout and nothing else; ``docs/json.md`` lists the fields.

Meanwhile everything else that writes to stdout, such as a native library or the user's kernel file,
writes to stderr.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import click

STDOUT = Path("-")

_reserved: list[IO[str]] = []
"""The stdout that is reserved for a document."""


def json_flag(shown: str) -> Any:
    """``--json``, for a command that otherwise prints ``shown``."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        callback=_reserve,
        help=f"Print one JSON document instead of the {shown}.",
    )


def json_file_option(shown: str) -> Any:
    """``--json [FILE]``, for a command that otherwise prints ``shown``."""
    return click.option(
        "--json",
        "json_file",
        metavar="[FILE]",
        is_flag=False,
        flag_value=str(STDOUT),
        type=click.Path(path_type=Path, allow_dash=True),
        callback=_reserve,
        help=f"Print one JSON document instead of the {shown}; with FILE, write it there and print the "
        f"{shown} as well.",
    )


def positional_and_json(
    name: str, positional: Path | None, json_file: Path | None
) -> tuple[Path, Path | None]:
    """The argument ``name`` and the value of :func:`json_file_option`.

    ``--json LIB`` means ``LIB --json``, if there is no other LIB: as with commands whose ``--json``
    takes no value.
    """
    if positional is None and json_file is not None and json_file != STDOUT:
        ctx = click.get_current_context()
        ctx.with_resource(_stdout_reserved())
        return json_file, STDOUT
    return required(name, positional), json_file


def required(name: str, value: Path | None) -> Path:
    """The value of an argument; raises click's error if it is missing."""
    if value is None:
        ctx = click.get_current_context()
        (param,) = (p for p in ctx.command.params if p.name == name)
        raise click.MissingParameter(ctx=ctx, param=param)
    return value


def emit(document: Any) -> None:
    """Print the document to the stdout of the command."""
    click.echo(text(document), file=_reserved[-1] if _reserved else None)


def text(document: Any) -> str:
    """Standard JSON: it has no infinite numbers and no NaN; they become null."""
    import json

    return json.dumps(_finite(document), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _reserve(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    if (value is True or value == STDOUT) and not ctx.resilient_parsing:
        ctx.with_resource(_stdout_reserved())
    return value


@contextlib.contextmanager
def _stdout_reserved() -> Iterator[None]:
    """Redirect stdout to stderr, also for code that is not Python's and for child processes."""
    sys.stdout.flush()
    with contextlib.ExitStack() as stack:
        try:
            mine = os.dup(sys.stdout.fileno())
        except (OSError, ValueError):  # captured in Python, as in tests
            _reserved.append(sys.stdout)
        else:
            real = stack.enter_context(open(mine, "w", encoding="utf-8"))  # noqa: PTH123
            _reserved.append(real)
            number = sys.stdout.fileno()
            os.dup2(sys.stderr.fileno(), number)

            def restore() -> None:
                sys.stdout.flush()
                real.flush()
                os.dup2(real.fileno(), number)

            stack.callback(restore)
        stack.callback(_reserved.pop)
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield
