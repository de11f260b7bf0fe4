"""Help texts of commands: options in groups, examples, the docs to read.

Backends use it for commands of their own (entry-point group ``tvmtune.commands``). It is built on
click's formatter, and not on rich, because importing rich would double the time that ``--help`` takes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any

import click

WIDTH = 120
"""Columns that help fills at most: longer lines are hard to read."""
OPTIONS = "Options"
GENERAL = "General"
"""Titles of the options without a group, and of those that every command has."""
_NAMES = 28
"""Columns for names of options; a longer name has its text below it."""
_SECTION = "section"
PROJECT_FILE = "tvmtune.project_file"
"""Key, in the ``meta`` of a context, of the path of the file that its defaults come from."""

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def section(title: str, *options: Decorator) -> Decorator:
    """Options that the help lists under ``title``, in this order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        before = len(vars(command).get("__click_params__", ()))
        for option in reversed(options):
            command = option(command)
        for param in vars(command)["__click_params__"][before:]:
            vars(param).setdefault(_SECTION, title)
        return command

    return decorate


def put_in_section(param: click.Parameter, title: str) -> None:
    vars(param)[_SECTION] = title


class _Help(click.Command):
    """What :class:`Command` and :class:`Group` have in common."""

    def __init__(
        self, *args: Any, examples: Sequence[tuple[str, str]] = (), docs: str = "", **attrs: Any
    ) -> None:
        """``examples``: what each does, and the command line. ``docs``: the pages to read."""
        settings = {"help_option_names": ["-h", "--help"], "max_content_width": WIDTH}
        attrs["context_settings"] = settings | (attrs.get("context_settings") or {})
        super().__init__(*args, **attrs)
        self.examples = tuple(examples)
        self.docs = docs

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section(heading("Examples")):
                for what, line in self.examples:
                    comment = f"  # {what}\n" if what else ""
                    formatter.write(f"{comment}{_wrapped(line, formatter.width)}\n")
        if self.docs:
            formatter.write(f"\n{heading('Docs')}: {self.docs}\n")


class Command(_Help):
    """A command whose help has groups of options, examples, and the docs to read."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_options(self, ctx, formatter)


class Group(_Help, click.Group):
    """A group of such commands."""

    command_class = Command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)


def write_options(
    command: click.Command, ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    """A list for each group of options, all with the same columns; general ones last."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(ctx):
        # Newer versions of click list arguments here as well.
        record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
        if record is not None:
            title = vars(param).get(_SECTION, OPTIONS)
            if "--help" in param.opts and ctx.parent is not None:
                title = GENERAL
            name, text = record
            text = re.sub(r"; x>=\d+\]$", "]", text)  # an error says it where it matters
            text = re.sub(r"\[default: \((.*)\)\]$", r"[default: \1]", text)  # as of other options
            sections.setdefault(title, []).append((name, text + _origin(ctx, param)))
    if set(sections) == {GENERAL}:
        sections = {OPTIONS: sections[GENERAL]}
    names = [len(name) for rows in sections.values() for name, _ in rows]
    width = max((n for n in names if n <= _NAMES), default=0)
    for title in sorted(sections, key=lambda title: title == GENERAL):  # a stable sort
        with formatter.section(heading(title)):
            rows = [(name.ljust(width), text) for name, text in sections[title]]
            formatter.write_dl(rows, col_max=width)


def heading(title: str) -> str:
    """A title, in bold on a terminal."""
    return click.style(title, bold=True) if sys.stdout.isatty() else title


def _origin(ctx: click.Context, param: click.Parameter) -> str:
    """The value that the environment or the project file gives an option."""
    value = param.value_from_envvar(ctx)
    if value is not None:
        names = [param.envvar] if isinstance(param.envvar, str) else [*(param.envvar or [])]
        if not names and ctx.auto_envvar_prefix and param.name:
            names = [f"{ctx.auto_envvar_prefix}_{param.name.upper()}"]
        return f"  [${names[0] if names else 'environment'}: {_shown(value)}]"
    if param.name in (ctx.default_map or {}):
        file = PurePath(ctx.meta[PROJECT_FILE]).name
        return f"  [{file}: {_shown((ctx.default_map or {})[param.name])}]"
    return ""


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _wrapped(line: str, width: int) -> str:
    """A command line that can be copied from a narrow terminal: broken before options, with ``\\``."""
    import shlex

    words = shlex.split(line, posix=False)  # as they were quoted
    rows = ["  "]
    parts: list[str] = []
    for index, word in enumerate(words):
        # An option and its value stay together.
        if index and words[index - 1].startswith("-") and not word.startswith("-"):
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    for part in parts:
        if len(rows[-1]) + len(part) + 3 > width and rows[-1].strip():
            rows[-1] += "\\"
            rows.append("      ")
        rows[-1] += f"{part} "
    return "\n".join(row.rstrip() for row in rows)
