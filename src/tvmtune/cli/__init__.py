"""The command line: one module per command, imported only when the command runs."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvmtune import block_torch_import, command_help
from tvmtune.cli import messages, project_file
from tvmtune.cli.choices import OneOf
from tvmtune.errors import TvmtuneError, UsageError, nearest, out_of_memory
from tvmtune.machine import interrupts
from tvmtune.version import __version__

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

COMMANDS = {
    "tune": "Tune a network, then compile, verify and time it.",
    "tasks": "List the tasks of a network.",
    "simulate": "Compare tuners on a fully measured space, without a device.",
    "report": "Make an HTML report of logs or benchmarks.",
    "distill": "Extract the best records from logs.",
    "compile": "Compile a network into a library.",
    "bench": "Time a library, alone or against other runtimes.",
    "run": "Run a library once and summarize its outputs.",
    "inspect": "Print the metadata of a library without loading it.",
    "tracker": "Run the tracker that boards register with.",
    "serve": "Make this machine a board, for others to tune and benchmark on.",
    "devices": "List the boards registered with a tracker.",
    "networks": "List the networks of the zoo.",
    "plugins": "List the installed backends and their hooks.",
    "doctor": "Check whether this machine can tune.",
}
"""The commands, each with the first line of its help."""

_LONGEST = 4000
"""Characters of an error message."""
_TRACEBACKS = "tracebacks of errors"
_TRIALS = "a line per trial, and tracebacks of errors"


class LazyGroup(command_help.Group):
    """Lists commands with their one-line help without importing them."""

    def make_context(
        self, info_name: str | None, args: list[str], *more: Any, **options: Any
    ) -> click.Context:
        messages.show_from(messages.INFO)
        return super().make_context(info_name, args, *more, **options)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # click would print an empty line
            raise click.Abort from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *_backend_commands()]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            entry = _backend_commands().get(name)
            return None if entry is None else _with_general_options(entry.load())
        command: click.Command = importlib.import_module(f"tvmtune.cli.{name}").command
        _with_general_options(command, _TRIALS if name == "tune" else _TRACEBACKS)
        for param in command.params:
            # Named after the option: the function's parameter may be called differently.
            long = next((o for o in param.opts if o.startswith("--")), None)
            if isinstance(param, click.Option) and long and long != "--help":
                word = long.removeprefix("--").replace("-", "_").upper()
                param.envvar = f"TVMTUNE_{name.upper()}_{word}"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = click.utils.make_str(args[0]) if args else ""
        if name not in COMMANDS and not name.startswith("-") and name not in _backend_commands():
            ctx.fail(f"'{name}' is not a command.{nearest(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section(command_help.heading("Commands")):
            formatter.write_dl(list(COMMANDS.items()))
        if names := _backend_commands():
            with formatter.section(command_help.heading("Commands of backends")):
                formatter.write_dl([(name, f"See tvmtune {name} --help.") for name in names])


@functools.cache
def _backend_commands() -> dict[str, EntryPoint]:
    """Commands that backends add through the entry-point group ``tvmtune.commands``."""
    from importlib import metadata  # takes longer to import than all else here

    entries = metadata.entry_points(group="tvmtune.commands")
    known = {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.name)}
    return {name: entry for name, entry in known.items() if name not in COMMANDS}


def _general_options(verbose: str) -> list[click.Option]:
    """``-v``, ``-q`` and ``--log-level``, for the group, a command or a subcommand; ``verbose``: what
    the first of them adds."""
    return [
        click.Option(
            ["-v", "--verbose"],
            is_flag=True,
            is_eager=True,  # before other options can be wrong: their errors look for the context
            expose_value=False,
            callback=_set_level,
            help=f"Also print {verbose} (--log-level debug).",
        ),
        click.Option(
            ["-q", "--quiet"],
            is_flag=True,
            expose_value=False,
            callback=_set_level,
            help="Print warnings and errors only (--log-level warning).",
        ),
        click.Option(
            ["--log-level"],
            type=OneOf(messages.LEVELS),
            metavar="LEVEL",
            show_default="info",
            expose_value=False,
            callback=_set_level,
            help=f"Lowest level of messages to print: {', '.join(messages.LEVELS)}.",
        ),
    ]


def _with_general_options(command: click.Command, verbose: str = _TRACEBACKS) -> click.Command:
    """Make a command and its subcommands accept the general options after their names as well."""
    taken = {name for param in command.params for name in (param.name, *param.opts)}
    for option in _general_options(verbose):
        if not taken & {option.name, *option.opts}:
            command_help.put_in_section(option, command_help.GENERAL)
            command.params.append(option)
    if isinstance(command, click.Group):
        for each in command.commands.values():
            _with_general_options(each)
    return command


def _set_level(ctx: click.Context, param: click.Parameter, value: bool | str | None) -> None:
    """Set the level of messages; raises :class:`UsageError` for two different ones."""
    global _context
    _context = ctx
    if not value:
        return
    level = {"verbose": "debug", "quiet": "warning"}.get(str(param.name), str(value))
    here = ctx.meta.setdefault(f"tvmtune.level.{ctx.command_path}", level)
    if here != level:
        raise UsageError("-v, -q and --log-level contradict each other: give one of them")
    messages.show_from(messages.LEVELS.index(level))


_context: click.Context | None = None
"""The context of the innermost command whose options were read."""


@click.group(
    cls=LazyGroup,
    params=_general_options(f"{_TRACEBACKS}, and each trial of tune"),
    examples=[
        ("Tune a network of the zoo for half an hour", "tvmtune tune mobilenet --time-budget 30m"),
        ("Compile and time your own model", "tvmtune compile model.onnx -o model.so"),
        ("", "tvmtune bench model.so --vs onnxruntime"),
    ],
    docs="docs/tutorial.md, docs/troubleshooting.md, docs/glossary.md",
    context_settings={"auto_envvar_prefix": "TVMTUNE"},
)
@click.version_option(__version__, prog_name="tvmtune")
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    show_default=f"{project_file.NAME} here or in a parent directory",
    help="Project file that sets options.",
)
@click.option("--no-config", is_flag=True, help="Ignore any project file.")
@click.pass_context
def group(ctx: click.Context, config: Path | None, no_config: bool) -> None:
    """Turn a neural network into a tuned, verified library for your device. No measurement is ever
    lost.

    Results go to stdout, progress to stderr. Options can also be set in a project file,
    tvmtune.toml, or by environment variables such as TVMTUNE_TUNE_TRIALS=500. To enable completion
    in bash (in zsh, with zsh_source):

    \b
      eval "$(_TVMTUNE_COMPLETE=bash_source tvmtune)"
    """
    name = ctx.invoked_subcommand
    if config is not None and no_config:
        raise UsageError("--config and --no-config contradict each other: give one of them")
    if no_config or name is None:
        return
    path, ignored = (config, "") if config is not None else project_file.find()
    if ignored:
        messages.warning(f"warning: {ignored}")
    command = group.get_command(ctx, name)
    if path is None or command is None:
        return
    ctx.meta[command_help.PROJECT_FILE] = str(path)
    if name == "doctor":
        return  # which reports what is wrong with the file
    ctx.default_map = project_file.read(path).defaults(ctx, name, command)


def main(args: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    words = sys.argv[1:] if args is None else args
    verbose = any(word in ("-v", "--verbose") for word in words)
    global _context
    _context = None
    code: Any = 0
    interrupts.install()
    block_torch_import.install()
    warnings.showwarning = _warn
    try:
        code = group.main(args=words, prog_name="tvmtune", standalone_mode=False)
        interrupts.check()
    except (click.Abort, KeyboardInterrupt):
        code = _interrupted()
    except Exception as error:
        code = (
            _interrupted()
            if interrupts.pending()
            else _failed(error, verbose or messages.shown(messages.DEBUG))
        )
    sys.exit(code if isinstance(code, int) else 0)


def _warn(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Print our warnings in one line; hide those that libraries address to developers."""
    if category is UserWarning:
        messages.warning(f"warning: {message}")


def _interrupted() -> int:
    _say("tvmtune: interrupted")
    return 130


def _failed(failure: Exception, verbose: bool) -> int:
    """Print what failed in one line; returns the exit code."""
    try:
        raise failure
    except TvmtuneError as error:
        text = str(error)  # it may quote what a file holds instead of a number
        text = text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
        if isinstance(error, UsageError) and _context is not None:
            text += project_file.origin(text, _context)
        _say(f"tvmtune: {text}", error if verbose else None)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:
        # The reader of our output has gone: avoid a second error when Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ModuleNotFoundError as error:
        name = str(error.name).partition(".")[0]
        if name.startswith("tvmtune"):
            _bug(error, verbose)
        else:
            _say(
                f"tvmtune: the package {name} is not installed here, and this command needs it. On "
                "boards only serve and run are meant to work; elsewhere, install tvmtune again with "
                "its dependencies.",
                error if verbose else None,
            )
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        _say(f"tvmtune: {error.strerror or error}{where}", error if verbose else None)
    except Exception as error:
        if what := out_of_memory(error):
            _say(f"tvmtune: out of memory: {what}", error if verbose else None)
        else:
            _bug(error, verbose)
    return 1


def _bug(error: Exception, verbose: bool) -> None:
    _say(
        f"tvmtune: unexpected {type(error).__name__}: {error}. This is a bug in tvmtune: please report "
        "it with the output of -v.",
        error if verbose else None,
    )


def _say(message: str, error: BaseException | None = None) -> None:
    if error is not None:
        import traceback

        traceback.print_exception(error)
    print(message, file=sys.stderr)
