"""The pages of the documentation, their examples, and the commands in them.

A fence may have a mark after its language. Examples marked ``test`` run with the quick tests. Those
marked ``long`` run in the soak as they are written and in less time (:func:`shortened`), those of the
README and the tutorial in less time in CI. They may use each other's files, but not those
of the quick ones. The others of :data:`MARKS` cannot run here. An example marked ``file=NAME`` is the
content of a file for later ones. Renderers ignore marks.

Sybil, mktestdocs and pytest-markdown-docs were rejected: they have no marks, or run each example by
itself, so that the examples of a page end up on several workers, or run Python only.
"""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from markdown_it import MarkdownIt

from tvmtune.cli import group

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])

CALL = re.compile(r"(?:\$ |[A-Z_]+=\S+ )*\S*\btvmtune (?!\W)(.+?)(?:\s+#.*)?$")
"""A line that calls tvmtune; the group is the rest of it, without a comment."""

LANGUAGES = ("bash", "sh", "python")
MARKS = {
    "test": "runs in every test run",
    "long": "takes minutes: runs in the soak test, and on two pages in a shorter form in CI",
    "board": "needs a board",
    "gpu": "needs a GPU",
    "fpga": "needs an FPGA",
    "network": "installs or downloads packages",
    "container": "needs Docker",
    "fragment": "needs files or names that the text describes",
}


@dataclass(frozen=True)
class Example:
    page: str
    line: int
    language: str
    mark: str
    text: str

    @property
    def file(self) -> str:
        """The name of the file that the example is, or an empty string."""
        return self.mark.removeprefix("file=") if self.mark.startswith("file=") else ""


def examples(path: Path) -> list[Example]:
    """The fences of a page in a language that can run."""
    found = []
    for token in MarkdownIt("commonmark").parse(path.read_text()):
        language, _, mark = token.info.partition(" ")
        if token.type == "fence" and language in LANGUAGES:
            line = token.map[0] + 1 if token.map else 0
            found.append(Example(path.name, line, language, mark, token.content))
    return found


BUDGETS = (
    (re.compile(r"(--trials[ =]|\btrials=)(\d+)"), 40, 2),
    (re.compile(r"(--seeds[ =]|\bseeds=range\()(\d+)"), 20, 0),
)
"""Budgets in examples, and how they are cut: divided by the first number, plus the second."""
FEW_REPEATS = {"TVMTUNE_TUNE_REPEAT": "2", "TVMTUNE_BENCH_REPEAT": "3"}
"""The environment of shortened examples."""


SMALLER = ("resnet-18", "squeezenet_v1.1")
"""A network in the examples, and one with the same inputs and outputs that compiles in a third of the
time."""


def shortened(text: str) -> str:
    """An example with smaller budgets, of which the larger ones stay the larger ones, and a smaller
    network."""
    text = text.replace(*SMALLER)
    for budget, divisor, least in BUDGETS:
        text = budget.sub(lambda m, d=divisor, n=least: f"{m[1]}{n + int(m[2]) // d}", text)
    return text


def command_lines(path: Path) -> Iterator[str]:
    """Lines that call tvmtune, in fences and indented code, without comments."""
    for token in MarkdownIt("commonmark").parse(path.read_text()):
        if token.type in ("fence", "code_block") and token.info.split(" ")[0] in ("", *LANGUAGES):
            text = token.content.replace("\\\n", " ")
            for line in text.splitlines():
                if found := CALL.match(line.strip()):
                    yield found[1]


def command(words: list[str]) -> tuple[click.Command | None, list[str]]:
    """The command that ``words`` call, and its arguments; None for an unknown one."""
    context = click.Context(group)
    found: click.Command | None = group
    while words and isinstance(found, click.Group):
        if words[0] in ("-v", "--verbose"):
            words = words[1:]
            continue
        found, words = found.get_command(context, words[0]), words[1:]
    return found, words


def option_names(of: click.Command) -> set[str]:
    """Long and short options of a command."""
    options = [param for param in of.params if isinstance(param, click.Option)]
    return {name for each in options for name in (*each.opts, *each.secondary_opts)} | {"--help"}


def all_options() -> set[str]:
    """Options of all commands, those of backends included."""
    names, context = set(), click.Context(group)
    waiting: list[click.Command] = [group]
    while waiting:
        one = waiting.pop()
        names |= option_names(one)
        if isinstance(one, click.Group):
            waiting += [c for n in one.list_commands(context) if (c := one.get_command(context, n))]
    return names


def split(line: str) -> list[str]:
    """The words of a command up to a pipe or a redirection."""
    return shlex.split(re.split(r" (?:[|>&;]|&&) ", line)[0], posix=True)


def resolves(name: str) -> bool:
    """Whether ``tvmtune.a.b`` is a module or an attribute of one."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False
