"""``tvmtune.toml``: values of options that are always the same in a project.

Keys are the long names of options. Those at the top hold for every command that has such an option,
those of a table, such as ``[tune]``, for one command. The command line and the environment override
them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from tvmtune.command_help import PROJECT_FILE
from tvmtune.errors import UsageError, nearest

NAME = "tvmtune.toml"
_MOST_BYTES = 1 << 20
_NEVER = ("help", "json", "log-level", "quiet", "verbose", "version")
"""Options that concern a single call: a script must get what it asks for."""


class ProjectFile:
    """The file's path and what is in it."""

    def __init__(self, path: Path, tables: Mapping[str, Any]) -> None:
        self.path = path
        self.tables = tables

    def defaults(self, ctx: click.Context, name: str, command: click.Command) -> dict[str, Any]:
        """The file's values as a ``default_map`` for ``command``, which the group of ``ctx`` knows as
        ``name``. Raises :class:`UsageError` for a value of the wrong type, for an option that the
        command does not have, and for a key or table that belongs to no command."""
        shared = {key: value for key, value in self.tables.items() if not isinstance(value, dict)}
        self._check_tables(ctx)
        unused = set(shared)
        found = self._defaults(name, command, shared, self.tables.get(name), unused)
        self._check_shared(ctx, unused)
        return {name: found}

    def check(self, ctx: click.Context) -> None:
        """Raise the same errors, for all commands."""
        for name in _names(ctx):
            command = _command(ctx, name)
            if command is not None:
                self.defaults(ctx, name, command)

    def summary(self) -> str:
        """What it sets, in a line."""
        words = []
        for key, value in self.tables.items():
            if isinstance(value, dict):
                words.append(f"[{key}] {', '.join(f'{k} = {v!r}' for k, v in value.items())}")
            else:
                words.append(f"{key} = {value!r}")
        return "; ".join(words) or "empty"

    def _defaults(
        self,
        name: str,
        command: click.Command,
        shared: Mapping[str, Any],
        table: Any,
        unused: set[str],
    ) -> dict[str, Any]:
        """Values by the names of the command's parameters, and those of its subcommands."""
        table = {} if table is None else table
        if not isinstance(table, dict):
            self._refuse(name, "takes a table of options.")
        options = _options(command)
        nested = command.commands if isinstance(command, click.Group) else {}
        found: dict[str, Any] = {}
        for word, value in shared.items():
            if param := options.get(_option(word)):
                unused.discard(word)
                found[str(param.name)] = self._value(word, param, value)
        for word, value in table.items():
            if word in nested:
                continue
            place = f"[{name}] {word}"
            if (param := options.get(_option(word))) is None:
                known = [*options, *nested]
                self._refuse(place, f"is not an option of tvmtune {name}.{nearest(word, known)}")
            found[str(param.name)] = self._value(place, param, value)
        for word, child in nested.items():
            label = f"{name} {word}"
            found[word] = self._defaults(label, child, shared, table.get(word), unused)
        return found

    def _value(self, place: str, param: click.Option, value: Any) -> Any:
        if not param.multiple:
            return self._single(place, param, value)
        if isinstance(value, dict):
            value = [f"{key}={item}" for key, item in value.items()]
        if not isinstance(value, list):
            self._refuse(place, f"takes a list, not {value!r}.")
        return [self._single(place, param, item) for item in value]

    def _single(self, place: str, param: click.Option, value: Any) -> Any:
        expected, kinds = _expected(param)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            self._refuse(place, f"takes {expected}, not {value!r}.")
        if isinstance(value, str) and value != "-":
            beside = self.path.parent / Path(value).expanduser()
            if isinstance(param.type, click.Path) or (param.name == "network" and beside.is_file()):
                return os.path.relpath(beside)
        try:
            param.type.convert(value, param, None)
        except click.BadParameter as error:
            self._refuse(place, f"is invalid: {error.message}")
        except UsageError as error:
            self._refuse(place, f"is invalid: {error}")
        return value

    def _check_tables(self, ctx: click.Context) -> None:
        names = _names(ctx)
        for key, value in self.tables.items():
            if isinstance(value, dict) and key not in names:
                self._refuse(f"[{key}]", f"is not a command.{nearest(key, names)}")

    def _check_shared(self, ctx: click.Context, unused: Iterable[str]) -> None:
        """Refuse keys at the top that no command has; imports further commands only if there are
        any to look for."""
        left = set(unused)
        known: set[str] = set()
        for name in _names(ctx) if left else ():
            command = _command(ctx, name)
            if command is not None:
                known |= _all_options(command)
                left = {word for word in left if _option(word) not in known}
        for word in sorted(left):
            self._refuse(word, f"is not an option of any command.{nearest(word, sorted(known))}")

    def _refuse(self, place: str, why: str) -> NoReturn:
        raise UsageError(f"{self.path}: {place} {why}")


def read(path: Path) -> ProjectFile:
    """Raises :class:`UsageError` for a file that cannot be read or is not TOML."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > _MOST_BYTES:
        raise UsageError(f"{path} is too large for a project file")
    try:
        tables = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from None
    return ProjectFile(path, tables)


def find() -> tuple[Path | None, str]:
    """The project file in the working directory or the nearest of its parents; and, if it belongs to
    somebody else, why it is not used: options can name code to run."""
    try:
        here = Path.cwd()
    except OSError:
        return None, ""
    for folder in (here, *here.parents):
        path = folder / NAME
        if path.is_file():
            owner = path.stat().st_uid
            if owner in (0, os.getuid()):
                return path, ""
            return None, f"{path} belongs to another user: use it with --config {path}"
    return None, ""


def origin(text: str, ctx: click.Context) -> str:
    """``" (--trials is set in FILE)"`` for the options in an error message that the user did not give
    on the command line; else an empty string."""
    places: dict[str, list[str]] = {}
    for param in ctx.command.params:
        source = ctx.get_parameter_source(param.name or "")
        word = next((o for o in param.opts if re.search(rf"(?<![\w-]){o}(?![\w-])", text)), None)
        if word is None or source is None:
            continue
        if source is ParameterSource.DEFAULT_MAP:
            places.setdefault(str(ctx.meta.get(PROJECT_FILE)), []).append(word)
        elif source is ParameterSource.ENVIRONMENT and isinstance(param.envvar, str):
            places.setdefault(f"${param.envvar}", []).append(word)
    return "".join(f" ({', '.join(words)}: from {place})" for place, words in places.items())


def _expected(param: click.Option) -> tuple[str, tuple[type, ...]]:
    """What TOML's values for an option must be, in words and as types."""
    if param.is_flag:
        return "true or false", (bool,)
    if isinstance(param.type, click.types.IntParamType):
        return "a whole number", (int,)
    if isinstance(param.type, click.types.FloatParamType):
        return "a number", (int, float)
    if param.type.name == "time":
        return 'seconds, or a time such as "30m"', (int, float, str)
    return "a string", (str,)


def _option(word: str) -> str:
    return word.replace("_", "-")


def _options(command: click.Command) -> dict[str, click.Option]:
    """The options that the file may set, by their long names."""
    found = {}
    for param in command.params:
        for name in param.opts if isinstance(param, click.Option) else ():
            if name.startswith("--") and name[2:] not in _NEVER:
                found[name[2:]] = param
    return found  # type: ignore[return-value]


def _all_options(command: click.Command) -> set[str]:
    nested = command.commands.values() if isinstance(command, click.Group) else ()
    return set(_options(command)).union(*map(_all_options, nested))


def _names(ctx: click.Context) -> list[str]:
    assert isinstance(ctx.command, click.Group)
    return ctx.command.list_commands(ctx)


def _command(ctx: click.Context, name: str) -> click.Command | None:
    assert isinstance(ctx.command, click.Group)
    return ctx.command.get_command(ctx, name)
