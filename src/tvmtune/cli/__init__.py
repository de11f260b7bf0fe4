"""The command line: one file per command, each imported only when it is asked for."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import sys
import warnings
from typing import Any

import click

from tvmtune import __version__, interrupt, torchless
from tvmtune.errors import TvmtuneError, memory_is_full, nearest

COMMANDS = {
    "tune": "Tune a network, then compile, verify and time it.",
    "tasks": "List a network's tasks.",
    "simulate": "Compare tuners on a space that was measured in full, without a device.",
    "distill": "Keep only the best records of one or several logs.",
    "compile": "Compile a network, with the records of a log, into a library.",
    "bench": "Time a library, alone or against other runtimes.",
    "run": "Run a library on inputs from a file.",
    "inspect": "Show what a library says about itself, without loading it.",
    "tracker": "Run a tracker, with which boards register.",
    "serve": "Serve this machine as a board.",
    "devices": "List the boards that a tracker knows.",
    "networks": "List the networks of the zoo.",
    "plugins": "List the installed backends and their hooks.",
    "doctor": "Check whether this machine can do the job.",
}


class LazyGroup(click.Group):
    """Knows its commands' names and one-line helps without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *_of_backends()]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return _of_backends()[name].load() if name in _of_backends() else None
        command: click.Command = importlib.import_module(f"tvmtune.cli.{name}").command
        for param in command.params:
            # by the option's name, which is not always that of the function's parameter
            long = next((o for o in param.opts if o.startswith("--")), None)
            if isinstance(param, click.Option) and long and long != "--help":
                word = long.removeprefix("--").replace("-", "_").upper()
                param.envvar = f"TVMTUNE_{name.upper()}_{word}"
        if not any(param.name == "verbose" for param in command.params):
            # so that -v may stand behind the command's name, too
            command.params.append(
                click.Option(
                    ["-v", "--verbose"],
                    is_flag=True,
                    expose_value=False,
                    callback=_be_verbose,
                    help="A line per trial; tracebacks with errors.",
                )
            )
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = click.utils.make_str(args[0]) if args else ""
        if name not in COMMANDS and not name.startswith("-") and name not in _of_backends():
            ctx.fail(f"'{name}' is not a command.{nearest(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))
        if found := _of_backends():
            with formatter.section("Of backends"):
                formatter.write_dl([(name, f"tvmtune {name} --help") for name in found])


@functools.cache
def _of_backends() -> dict[str, importlib.metadata.EntryPoint]:
    """Commands that backends bring, by the entry points of the group ``tvmtune.commands``."""
    found = importlib.metadata.entry_points(group="tvmtune.commands")
    known = {entry.name: entry for entry in sorted(found, key=lambda entry: entry.name)}
    return {name: entry for name, entry in known.items() if name not in COMMANDS}


def _be_verbose(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(dict)["verbose"] = True


@click.group(cls=LazyGroup, context_settings={"auto_envvar_prefix": "TVMTUNE"})
@click.version_option(__version__, prog_name="tvmtune")
@click.option("-v", "--verbose", is_flag=True, help="A line per trial; tracebacks with errors.")
@click.pass_context
def group(ctx: click.Context, verbose: bool) -> None:
    """From a network to a tuned, verified library on your device; nothing measured is ever lost.

    Progress goes to stderr, results to stdout. Every option can also be given as an environment
    variable, e.g. TVMTUNE_TUNE_TRIALS=500. Completion for bash (or zsh, fish):
    eval "$(_TVMTUNE_COMPLETE=bash_source tvmtune)"
    """
    ctx.obj = {"verbose": verbose}


def main(args: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    words = sys.argv[1:] if args is None else args
    verbose = any(w in ("-v", "--verbose") for w in words)
    code: Any = 0
    interrupt.install()
    torchless.install()
    warnings.showwarning = _warn
    try:
        code = group.main(args=words, prog_name="tvmtune", standalone_mode=False)
        interrupt.check()
    except (click.Abort, KeyboardInterrupt):
        code = _interrupted()
    except Exception as error:
        code = _interrupted() if interrupt.pending() else _failed(error, verbose)
    sys.exit(code if isinstance(code, int) else 0)


def _warn(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Ours in one line; what libraries warn their own developers of is not for users."""
    if category is UserWarning:
        _say(f"warning: {message}")


def _interrupted() -> int:
    _say("tvmtune: interrupted")
    return 130


def _failed(failure: Exception, verbose: bool) -> int:
    """Say what failed, in one line; returns the exit code."""
    try:
        raise failure
    except TvmtuneError as error:
        _say(f"tvmtune: {error}", error if verbose else None)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:
        # Whoever read our output has gone; a second complaint at exit would help nobody.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ModuleNotFoundError as error:
        name = str(error.name).partition(".")[0]
        if name.startswith("tvmtune"):
            _defect(error, verbose)
        else:
            _say(
                f"tvmtune: the package {name} is not installed here, and this command needs it. "
                "Boards need no more than serve and run do; elsewhere: pip install tvmtune.",
                error if verbose else None,
            )
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        _say(f"tvmtune: {error.strerror or error}{where}", error if verbose else None)
    except Exception as error:
        if what := memory_is_full(error):
            _say(f"tvmtune: the memory is full: {what}", error if verbose else None)
        else:
            _defect(error, verbose)
    return 1


def _defect(error: Exception, verbose: bool) -> None:
    _say(
        f"tvmtune: unexpected {type(error).__name__}: {error}. This is a defect of tvmtune; "
        "-v shows where, please report it.",
        error if verbose else None,
    )


def _say(message: str, error: BaseException | None = None) -> None:
    if error is not None:
        import traceback

        traceback.print_exception(error)
    print(message, file=sys.stderr)
