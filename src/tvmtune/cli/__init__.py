"""The command line: one module per command, imported only when the command runs."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import sys
import warnings
from typing import Any

import click

from tvmtune import block_torch_import
from tvmtune.errors import TvmtuneError, nearest, out_of_memory
from tvmtune.machine import interrupts
from tvmtune.version import __version__

COMMANDS = {
    "tune": "Tune a network, then compile, verify and time it.",
    "tasks": "List the tasks of a network.",
    "simulate": "Compare tuners on a fully measured space, without a device.",
    "report": "Show logs, or benchmarks, as a page.",
    "distill": "Extract the best records of one or more logs.",
    "compile": "Compile a network into a library, using the best records of the given logs.",
    "bench": "Time a library, alone or beside other runtimes.",
    "run": "Run a library once and print a summary of its outputs.",
    "inspect": "Print the metadata of a library without loading it.",
    "tracker": "Run a tracker for boards to register with.",
    "serve": "Offer this machine as a board for tuning and benchmarking.",
    "devices": "List the boards registered with a tracker.",
    "networks": "List the networks of the zoo.",
    "plugins": "List the installed backends and their hooks.",
    "doctor": "Check whether this machine can tune.",
}
"""The commands, each with the first line of its help."""

_LONGEST = 4000
"""Characters of an error message."""
_TRACEBACKS = "Show tracebacks of errors."
_TRIALS = "Print a line per trial, and tracebacks of errors."


class LazyGroup(click.Group):
    """Lists commands with their one-line help without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *_backend_commands()]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            entry = _backend_commands().get(name)
            return None if entry is None else _with_verbose(entry.load(), _TRACEBACKS)
        command: click.Command = importlib.import_module(f"tvmtune.cli.{name}").command
        for param in command.params:
            # Named after the option: the function's parameter may be called differently.
            long = next((o for o in param.opts if o.startswith("--")), None)
            if isinstance(param, click.Option) and long and long != "--help":
                word = long.removeprefix("--").replace("-", "_").upper()
                param.envvar = f"TVMTUNE_{name.upper()}_{word}"
        return _with_verbose(command, _TRIALS if name == "tune" else _TRACEBACKS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = click.utils.make_str(args[0]) if args else ""
        if name not in COMMANDS and not name.startswith("-") and name not in _backend_commands():
            ctx.fail(f"'{name}' is not a command.{nearest(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))
        if names := _backend_commands():
            with formatter.section("Commands of backends"):
                formatter.write_dl([(name, f"See tvmtune {name} --help.") for name in names])


@functools.cache
def _backend_commands() -> dict[str, importlib.metadata.EntryPoint]:
    """Commands that backends add through the entry-point group ``tvmtune.commands``."""
    entries = importlib.metadata.entry_points(group="tvmtune.commands")
    known = {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.name)}
    return {name: entry for name, entry in known.items() if name not in COMMANDS}


def _with_verbose(command: click.Command, text: str) -> click.Command:
    """Make a command and its subcommands accept ``-v`` after their names as well."""
    taken = {name for param in command.params for name in (param.name, *param.opts)}
    if not taken & {"verbose", "-v", "--verbose"}:
        command.params.append(
            click.Option(
                ["-v", "--verbose"],
                is_flag=True,
                expose_value=False,
                callback=_be_verbose,
                help=text,
            )
        )
    if isinstance(command, click.Group):
        for each in command.commands.values():
            _with_verbose(each, text)
    return command


def _be_verbose(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(dict)["verbose"] = True


@click.group(cls=LazyGroup, context_settings={"auto_envvar_prefix": "TVMTUNE"})
@click.version_option(__version__, prog_name="tvmtune")
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Show tracebacks of errors; tune also prints a line per trial.",
)
@click.pass_context
def group(ctx: click.Context, verbose: bool) -> None:
    """From a network to a tuned, verified library on your device. No measurement is ever lost.

    Progress goes to stderr, results to stdout. Every option is also an environment variable, e.g.
    TVMTUNE_TUNE_TRIALS=500. To enable completion in bash (likewise zsh, fish):
    eval "$(_TVMTUNE_COMPLETE=bash_source tvmtune)"
    """
    ctx.obj = {"verbose": verbose}


def main(args: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    words = sys.argv[1:] if args is None else args
    verbose = any(w in ("-v", "--verbose") for w in words)
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
        code = _interrupted() if interrupts.pending() else _failed(error, verbose)
    sys.exit(code if isinstance(code, int) else 0)


def _warn(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Print our warnings in one line; hide those that libraries address to developers."""
    if category is UserWarning:
        _say(f"warning: {message}")


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
