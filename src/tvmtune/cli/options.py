"""Options that several commands share, and callbacks that check values."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tvmtune import checks
from tvmtune.cli import completion, messages
from tvmtune.cli.choices import OneOf
from tvmtune.cli.parsing import seconds_of
from tvmtune.command_help import Decorator, section
from tvmtune.networks.quantization import METHODS
from tvmtune.networks.registry import FORMATS
from tvmtune.remote import access, protocol

PATH = click.Path(path_type=Path)


def positive(ctx: click.Context, param: click.Parameter, value: int | None) -> int | None:
    """A click callback: at least 1."""
    checks.at_least(param.opts[0], value, 1)
    return value


def not_negative(ctx: click.Context, param: click.Parameter, value: int) -> int:
    """A click callback: at least 0."""
    checks.at_least(param.opts[0], value, 0)
    return value


class Duration(click.ParamType):
    """A time such as ``30``, ``90s``, ``4m`` or ``1h30m``, in seconds."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        return seconds_of(_name(param), value)


DURATION = Duration()


def positive_duration(ctx: click.Context, param: click.Parameter, value: Any) -> float | None:
    """A click callback: a duration above 0."""
    seconds = None if value is None else seconds_of(_name(param), value)
    checks.above_zero(_name(param), seconds)
    return seconds


def duration_option(name: str, help_text: str, **attrs: Any) -> Decorator:
    """An option that takes a time above 0, in seconds or with units."""
    return click.option(
        name,
        type=DURATION,
        metavar="TIME",
        callback=positive_duration,
        help=help_text,
        **{"show_default": attrs.get("default") is not None, **attrs},
    )


def _name(param: click.Parameter | None) -> str:
    return param.opts[0] if param is not None else "this option"


def port(ctx: click.Context, param: click.Parameter, value: int | None) -> int | None:
    """A click callback: the number of a TCP port."""
    if value is not None and not 0 < value < 65536:
        raise click.BadParameter(f"{value} is not a port number.", ctx, param)
    return value


def wait_option(default: str, help_text: str) -> Decorator:
    """``--wait TIME``, with its purpose."""
    return duration_option("--wait", help_text, default=default)


def tracker_option(help_text: str, default: str | None = None) -> Decorator:
    """``--tracker``, with its purpose, and the secret that it may ask for."""
    return _all_of(
        click.option(
            "--tracker",
            metavar="HOST:PORT",
            show_default=default or TRACKER_DEFAULT,
            help=help_text,
        ),
        secret_option("File with the farm's secret, if it has one."),
    )


def secret_option(help_text: str) -> Decorator:
    """``--secret-file``, with its purpose; the file is named to this process and its children by the
    environment, where :func:`tvmtune.remote.access.secret` looks for it."""

    def use(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
        if value is not None:
            os.environ[access.SECRET_FILE] = str(value.absolute())
        access.secret()  # a wrong one is a wrong command line, whoever would need it first

    return click.option(
        "--secret-file",
        metavar="FILE",
        type=PATH,
        expose_value=False,
        callback=use,
        show_default=f"${access.SECRET_FILE}, else the text in ${access.SECRET}",
        help=help_text,
    )


TRACKER_DEFAULT = (
    f"$TVM_TRACKER_HOST:$TVM_TRACKER_PORT, else {protocol.LOCAL}:{protocol.TRACKER_PORT}"
)
_BOARD = "KEY[@HOST:PORT] (boards registered with a tracker) or ssh://[USER@]HOST (a single board)."


host_option = click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Use 0.0.0.0 to serve other machines; this requires --secret-file.",
)

insecure_option = click.option(
    "--insecure",
    is_flag=True,
    help="Serve other machines without a secret. Anyone who can connect can run any code as you.",
)

tasks_option = click.option(
    "--tasks",
    "only",
    metavar="LIST",
    help="Only these tasks: indices, name patterns, or topK (the K with the most FLOP), e.g. "
    "3,5-8,*conv2d*,top5.",
)

shipped_records_option = click.option(
    "--no-shipped-records",
    is_flag=True,
    help="Ignore the records for common CPUs that come with tvmtune.",
)

vs_option = click.option(
    "--vs",
    metavar="NAMES",
    help="Runtimes to compare with, e.g. onnxruntime,openvino; all stands for every installed one.",
    shell_complete=completion.after_commas(completion.peers),
)


def bench_repeat_option(name: str, help_text: str) -> Decorator:
    """How often a benchmark times each runtime; None for its own limits."""
    return click.option(
        name,
        type=click.IntRange(min=1),
        metavar="N",
        show_default="30, or fewer on slow devices",
        help=help_text,
    )


def output_option(help_text: str) -> Decorator:
    """``-o FILE`` for a library."""
    return click.option(
        "-o",
        "--output",
        type=PATH,
        metavar="FILE",
        show_default="named after the network and dtype, e.g. resnet-18.so or resnet-18-int8.so",
        help=help_text,
    )


def network_options(remote_help: str, *more_of_boards: Decorator) -> Decorator:
    """``--network``, ``--target`` and what shapes them, for :func:`tvmtune.cli.resolve.make_plan`.

    ``more_of_boards``: options of the command to list beside ``--remote``.
    """
    return _all_of(
        click.argument(
            "positional",
            metavar="[NETWORK]",
            required=False,
            shell_complete=completion.completer(completion.networks, files=True),
        ),
        section(
            "Network",
            click.option(
                "--network",
                metavar="NAME|FILE",
                shell_complete=completion.completer(completion.networks, files=True),
                help=f"Network to use: a name from the zoo (see tvmtune networks) or a file "
                f"({', '.join(FORMATS)}). Same as the argument NETWORK.",
            ),
            click.option("--batch", default=1, metavar="N", show_default=True, help="Batch size."),
            click.option(
                "--shape",
                multiple=True,
                metavar="NAME:SHAPE",
                help="Shape of an input with dynamic dimensions, e.g. data:1x3x224x224. Repeatable.",
            ),
            click.option(
                "--dtype",
                default="float32",
                show_default=True,
                metavar="DTYPE",
                help="Compute in float32, float16, bfloat16 (inputs and outputs stay float32) or int8 "
                "(cpu and arm; vta always does). Converts networks of the zoo and float32 ONNX files. "
                "tune also takes auto, which compares those that suit the device.",
            ),
            click.option(
                "--calibration",
                metavar="FILE.npz|DIR",
                type=PATH,
                help="Sample inputs that set the int8 scales (--dtype int8, --target vta), or a "
                "directory of .npz or .npy files.",
            ),
            click.option(
                "--calibration-method",
                type=OneOf(METHODS),
                metavar="METHOD",
                show_default="minmax",
                help="Range of each tensor in int8 from its values: minmax (all), percentile (all but "
                "0.01% at either end) or entropy (least information lost).",
            ),
            click.option(
                "--skip-layers",
                metavar="LIST",
                help="Layers to keep in float with --dtype int8: positions or name patterns, e.g. "
                "0,*classifier*. tvmtune inspect LIB lists them.",
            ),
            click.option(
                "--global-scale",
                type=float,
                metavar="X",
                help="Let int8 of all activations reach X, instead of calibrated ranges.",
            ),
            click.option(
                "--accuracy-budget",
                type=float,
                metavar="E",
                help="Keep the worst layers in float until max|y - float| / max|float| of the int8 "
                "network is at most E on the calibration inputs.",
            ),
            click.option(
                "--layout",
                metavar="NHWC|NCHW",
                show_default="the backend's choice",
                help="Data layout inside the network.",
            ),
            click.option(
                "--arg",
                multiple=True,
                metavar="K=V",
                help="Argument of the operator in a kernel file, e.g. w=1920. Repeatable.",
            ),
        ),
        section(
            "Target",
            click.option(
                "--target",
                metavar="NAME",
                default="cpu",
                show_default=True,
                help="Backend to compile for (see tvmtune plugins).",
                shell_complete=completion.completer(completion.targets),
            ),
            click.option(
                "--target-attr",
                multiple=True,
                metavar="K=V",
                help="Attribute of the target, e.g. mcpu=znver4 or threads=1. Repeatable.",
            ),
            click.option(
                "--hardware-param",
                multiple=True,
                metavar="K=V",
                help="Override a hardware parameter, e.g. l2_bytes=512K. Repeatable.",
            ),
            click.option(
                "--tensor-cores",
                is_flag=True,
                help="Use the GPU's tensor cores (cuda, with --dtype float16 or bfloat16).",
            ),
        ),
        section(
            "Boards",
            _remote_option(remote_help),
            tracker_option("Tracker that the boards of --remote are registered with."),
            *more_of_boards,
        ),
    )


def _remote_option(help_text: str) -> Decorator:
    return click.option("--remote", metavar="BOARD", help=f"{help_text} {_BOARD}")


def library_options(remote_help: str, *, required: bool = True) -> Decorator:
    """The library, its inputs and its threads, for ``bench`` and ``run``."""
    return _all_of(
        click.argument("library", metavar="LIB", type=PATH, required=required),
        section(
            "Inputs and threads",
            click.option(
                "--input",
                "input_file",
                metavar="FILE.npz",
                type=PATH,
                show_default="random inputs",
                help="Inputs of the library: one array per input, by name.",
            ),
            click.option(
                "--seed",
                type=int,
                metavar="N",
                default=0,
                show_default=True,
                help="Seed of the random inputs.",
            ),
            click.option(
                "--threads",
                type=int,
                metavar="N",
                show_default="as many as it was tuned for",
                help="CPU threads to use.",
            ),
        ),
        section(
            "Boards",
            _remote_option(remote_help),
            tracker_option("Tracker that the boards of --remote are registered with."),
            wait_option("1m", "How long to wait for a free board."),
        ),
    )


def _all_of(*options: Decorator) -> Decorator:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def check_if_open(host: str, what: str, insecure: bool) -> None:
    """Refuse to listen without a secret on an address that other machines can reach, unless
    ``insecure``; warn about what remains open."""
    secret = access.secret()
    is_local = protocol.Address(host, 1).is_local
    access.check_open(host, is_local, secret is not None, insecure, what)
    if is_local:
        return
    who = (
        "everyone who can reach"
        if secret is None
        else "everyone who knows the secret and can reach"
    )
    messages.warning(
        f"warning: at {host}, {who} this {what} can run any code and read and write any file that "
        "you can, and traffic is not encrypted: anyone who can read it sees the data, and anyone who "
        "can change it can take over a connection. Let only machines that you trust reach it, or use "
        "an SSH tunnel (docs/farm.md)."
    )
