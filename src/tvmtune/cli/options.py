"""Options that several commands share, and callbacks that check values."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tvmtune import checks
from tvmtune.cli import completion
from tvmtune.cli.parsing import seconds_of
from tvmtune.errors import UsageError
from tvmtune.networks.registry import FORMATS
from tvmtune.remote import access, protocol

PATH = click.Path(path_type=Path)

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def positive(ctx: click.Context, param: click.Parameter, value: int | None) -> int | None:
    """A click callback: at least 1."""
    checks.at_least(param.opts[0], value, 1)
    return value


def not_negative(ctx: click.Context, param: click.Parameter, value: int) -> int:
    """A click callback: at least 0."""
    checks.at_least(param.opts[0], value, 0)
    return value


def duration(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """A click callback: seconds from ``90``, ``90s``, ``30m`` or ``2h``."""
    if value is None:
        return None
    try:
        return seconds_of(value)
    except ValueError:
        raise UsageError(
            f"{param.opts[0]} takes seconds, or a time such as 90s, 30m or 2h, not '{value}'."
        ) from None


def positive_duration(ctx: click.Context, param: click.Parameter, value: str) -> float | None:
    """A click callback: like :func:`duration`, but above 0."""
    seconds = duration(ctx, param, value)
    checks.above_zero(param.opts[0], seconds)
    return seconds


def port(ctx: click.Context, param: click.Parameter, value: int | None) -> int | None:
    """A click callback: the number of a TCP port."""
    if value is not None and not 0 < value < 65536:
        raise click.BadParameter(f"{value} is not a port number.", ctx, param)
    return value


def wait_option(default: str, help_text: str) -> Decorator:
    """``--wait TIME``, with its purpose."""
    return click.option(
        "--wait",
        default=default,
        show_default=True,
        callback=positive_duration,
        metavar="TIME",
        help=help_text,
    )


def tracker_option(help_text: str) -> Decorator:
    """``--tracker``, with its purpose, and the secret that it may ask for."""
    return _all_of(
        click.option("--tracker", metavar="HOST:PORT", help=help_text),
        secret_option("Secret of a farm that asks for one."),
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
        help=f"{help_text} [default: ${access.SECRET_FILE}, or the text of ${access.SECRET}]",
    )


TRACKER_DEFAULT = (
    f"[default: $TVM_TRACKER_HOST:$TVM_TRACKER_PORT or {protocol.LOCAL}:{protocol.TRACKER_PORT}]"
)
_TRACKER = f"Tracker to find the boards of --remote with. {TRACKER_DEFAULT}"


host_option = click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; 0.0.0.0 for all. Other machines are served with --secret-file only.",
)

insecure_option = click.option(
    "--insecure",
    is_flag=True,
    help="Serve other machines without a secret: everyone who can connect can run any code as you.",
)

tasks_option = click.option(
    "--tasks",
    "only",
    metavar="3,5-8,*conv2d*,top5",
    help="Only these tasks: indices, name globs, or topK by FLOP share.",
)

shipped_records_option = click.option(
    "--no-shipped-records",
    is_flag=True,
    help="Ignore the records that come with tvmtune for common CPUs.",
)

vs_option = click.option(
    "--vs",
    metavar="A,B",
    help="Other runtimes to compare with, interleaved, e.g. onnxruntime,openvino; or all, for those "
    "installed.",
    shell_complete=completion.after_commas(completion.peers),
)


def json_option(shown: str) -> Decorator:
    """``--json FILE``, for a command that otherwise prints ``shown``."""
    return click.option(
        "--json",
        "json_file",
        metavar="FILE",
        type=click.Path(path_type=Path, allow_dash=True),
        help=f"Write the results as JSON; - prints them instead of the {shown}.",
    )


def network_options(remote_help: str) -> Decorator:
    """``--network``, ``--target`` and what shapes them, for :func:`tvmtune.cli.resolve.make_plan`."""
    return _all_of(
        click.argument(
            "positional",
            metavar="[NETWORK]",
            required=False,
            shell_complete=completion.completer(completion.networks, files=True),
        ),
        click.option(
            "--network",
            metavar="NAME|FILE",
            shell_complete=completion.completer(completion.networks, files=True),
            help=f"Network of the zoo (see tvmtune networks) or model file ({', '.join(FORMATS)}); "
            "same as the argument NETWORK.",
        ),
        click.option(
            "--arg",
            multiple=True,
            metavar="K=V",
            help="Argument of a kernel file's operator, e.g. w=1920.",
        ),
        click.option(
            "--target",
            metavar="NAME",
            default="cpu",
            show_default=True,
            help="Name of the backend (see tvmtune plugins).",
            shell_complete=completion.completer(completion.targets),
        ),
        click.option(
            "--target-attr",
            multiple=True,
            metavar="K=V",
            help="Attribute of the target, e.g. mcpu=znver4 or threads=1.",
        ),
        click.option(
            "--remote",
            metavar="KEY[@HOST:PORT]|ssh://[USER@]HOST",
            help=remote_help,
        ),
        tracker_option(_TRACKER),
        click.option(
            "--hardware-param",
            multiple=True,
            metavar="K=V",
            help="Override a hardware parameter, e.g. l2_bytes=524288.",
        ),
        click.option("--batch", default=1, metavar="N", show_default=True, help="Batch size."),
        click.option(
            "--dtype",
            default="float32",
            show_default=True,
            metavar="float32|float16|bfloat16|int8",
            help="Data type to compute in: float16; bfloat16 (inputs and outputs stay float32); int8 "
            "(quantized convolutions; cpu and arm; vta always). For float32 networks of the zoo or "
            "ONNX files.",
        ),
        click.option(
            "--tensor-cores",
            is_flag=True,
            help="Let kernels use the GPU's tensor cores, with --dtype float16 (cuda).",
        ),
        click.option(
            "--layout",
            metavar="NHWC|NCHW",
            help="Data layout inside the network; by default, the backend's choice.",
        ),
        click.option(
            "--shape",
            multiple=True,
            metavar="NAME:1x3x224x224",
            help="Static shape for an input with open dimensions.",
        ),
        click.option(
            "--calibration",
            metavar="FILE.npz",
            type=PATH,
            help="Sample inputs that calibrate the int8 scales, for --dtype int8 and --target vta.",
        ),
    )


def library_options(remote_help: str) -> Decorator:
    """The library, its inputs and its threads, for ``bench`` and ``run``."""
    return _all_of(
        click.argument("library", metavar="LIB", type=PATH),
        click.option(
            "--input",
            "input_file",
            metavar="FILE.npz",
            type=PATH,
            help="Inputs for the library, one array each; random by default.",
        ),
        click.option("--threads", type=int, metavar="N", help="CPU threads. Default: as tuned."),
        click.option(
            "--seed",
            type=int,
            metavar="N",
            default=0,
            show_default=True,
            help="Seed of random inputs.",
        ),
        click.option(
            "--remote",
            metavar="KEY[@HOST:PORT]|ssh://[USER@]HOST",
            help=remote_help,
        ),
        tracker_option(_TRACKER),
        wait_option("1m", "Give up after TIME without a free board."),
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
    click.echo(
        f"warning: at {host}, {who} this {what} can run any code and read and write any file that "
        "you can, and traffic is not encrypted: who can read it can read the data, and who can change "
        "it can take over a connection. Let only machines that you trust reach it, or use an SSH "
        "tunnel (docs/farm.md).",
        err=True,
    )
