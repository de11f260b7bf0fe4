"""Options that several commands share, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvmtune.cli import completion
from tvmtune.errors import ArgumentError, TvmtuneError, UsageError

if TYPE_CHECKING:
    import numpy as np

    from tvmtune.api import Plan
    from tvmtune.deploy.library import Library
    from tvmtune.deploy.remote import Borrowed
    from tvmtune.types import Task

PATH = click.Path(path_type=Path)


def network_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--network``, ``--target`` and what shapes them; handed on to :func:`make_plan`."""
    for option in reversed(
        (
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
                help="A network of the zoo (see tvmtune networks), or a file: .onnx, .pt2, .tflite, "
                "or a kernel file (.py).",
            ),
            click.option(
                "--arg",
                multiple=True,
                metavar="K=V",
                help="An argument of a kernel file's operator, e.g. w=1920.",
            ),
            click.option(
                "--target",
                default="cpu",
                show_default=True,
                help="The backend's name (see tvmtune plugins).",
                shell_complete=completion.completer(completion.targets),
            ),
            click.option(
                "--target-attr",
                multiple=True,
                metavar="K=V",
                help="An attribute of the target, e.g. mcpu=znver4 or threads=1.",
            ),
            click.option(
                "--remote",
                metavar="KEY[@HOST:PORT]",
                help="For boards that are registered under this key with a tracker.",
            ),
            tracker_option("The tracker that knows the boards of --remote."),
            click.option(
                "--hardware-param", multiple=True, metavar="K=V", help="Override one parameter."
            ),
            click.option("--batch", default=1, show_default=True, help="Batch size."),
            click.option(
                "--dtype",
                default="float32",
                show_default=True,
                metavar="float32|float16|bfloat16|int8",
                help="float16 turns a float32 network (zoo, ONNX) into half precision, bfloat16 all "
                "between its inputs and outputs; int8 computes its convolutions in whole numbers (cpu, "
                "arm; vta always does).",
            ),
            click.option(
                "--tensor-cores",
                is_flag=True,
                help="Let kernels use the GPU's matrix units, with --dtype float16 (cuda).",
            ),
            click.option(
                "--layout", metavar="NHWC|NCHW", help="Inner layout; the backend's choice if unset."
            ),
            click.option(
                "--shape",
                multiple=True,
                metavar="NAME:1x3x224x224",
                help="Bind the shape of an input that the file leaves open.",
            ),
            click.option(
                "--calibration",
                metavar="FILE.npz",
                type=PATH,
                help="Sample inputs, for --dtype int8 and --target vta.",
            ),
        )
    ):
        command = option(command)
    return command


tasks_option = click.option(
    "--tasks",
    "only",
    metavar="3,5-8,*conv2d*,top5",
    help="Only these: indices, name globs, or topK by FLOP share.",
)


vs_option = click.option(
    "--vs",
    metavar="A,B",
    help="Runtimes to compare with, in turns in the same run: onnxruntime, openvino, torch, "
    "torch-compile, ncnn, or all that are installed.",
    shell_complete=completion.after_commas(completion.peers),
)


def json_option(shown: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``--json FILE``, for a command that otherwise shows ``shown``."""
    return click.option(
        "--json",
        "json_file",
        metavar="FILE",
        type=click.Path(path_type=Path, allow_dash=True),
        help=f"Write the results as JSON; - writes them to standard output, in place of the {shown}.",
    )


def library_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The library itself, its inputs and its threads: what ``bench`` and ``run`` share."""
    for option in reversed(
        (
            click.argument("library", metavar="LIB", type=PATH),
            click.option(
                "--input",
                "input_file",
                metavar="FILE.npz",
                type=PATH,
                help="Inputs, one array for each; random ones without it.",
            ),
            click.option(
                "--threads", type=int, help="CPU threads; by default as many as it was tuned for."
            ),
            click.option(
                "--seed", type=int, default=0, show_default=True, help="Seed of random inputs."
            ),
            click.option(
                "--remote",
                metavar="KEY[@HOST:PORT]",
                help="On a board that is registered under this key with a tracker.",
            ),
            tracker_option("The tracker that knows the boards of --remote."),
            click.option(
                "--wait",
                default=60.0,
                show_default=True,
                callback=above_zero,
                help="Seconds to wait for a board in use.",
            ),
        )
    ):
        command = option(command)
    return command


@contextmanager
def borrowed(remote: str | None, tracker: str | None, wait: float) -> Iterator[Borrowed | None]:
    """The board that ``--remote`` names, for as long as the context lasts; None without one."""
    if (boards := boards_of(remote, tracker)) is None:
        yield None
        return
    from tvmtune.deploy.remote import Borrowed

    with Borrowed(boards, wait=wait, say=lambda message: click.echo(message, err=True)) as board:
        yield board


def library_inputs(library: Library, path: Path | None, seed: int) -> dict[str, np.ndarray]:
    """The user's inputs, or random ones."""
    from tvmtune.networks.inputs import read_inputs

    if path is None:
        return library.random_inputs(seed)
    return read_inputs(path, library.inputs)


@contextmanager
def naming(option: str) -> Iterator[None]:
    """Put the option's name before what lower floors, which know no options, have to say."""
    try:
        yield
    except TvmtuneError as error:
        raise type(error)(f"{option}: {error}") from error


def network_name(network: str | None, positional: str | None) -> str:
    """The network, which may stand behind ``--network`` or alone, but not twice."""
    if network and positional:
        raise UsageError(f"two networks are given: '{positional}' and --network {network}.")
    name = network or positional
    if not name:
        raise UsageError("which network? Give --network NAME or FILE.")
    return name


def make_plan(
    network: str | None,
    positional: str | None,
    arg: Sequence[str],
    target: str,
    target_attr: Sequence[str],
    hardware_param: Sequence[str],
    batch: int,
    dtype: str,
    layout: str | None,
    shape: Sequence[str],
    remote: str | None = None,
    tracker: str | None = None,
    calibration: Path | None = None,
    tensor_cores: bool = False,
    *,
    measured: bool = False,
) -> Plan:
    """Load, prepare and cut into tasks what :func:`network_options` describe; ``measured``: to be run,
    too."""
    from tvmtune import host, system

    system.check_pins()
    host.backend(target)  # a wrong name fails before anything slow begins
    boards = boards_of(remote, tracker)
    from tvmtune import api
    from tvmtune.networks.inputs import read_arrays

    try:
        loaded = api.load(
            network_name(network, positional),
            batch=batch,
            shapes=parse_shapes(shape),
            arguments=parse_pairs("--arg", arg),
            dtype=dtype,
        )
    except ArgumentError as error:
        raise UsageError(f"--arg {error}") from error
    attrs = parse_pairs("--target-attr", target_attr)
    return api.plan(
        loaded,
        target,
        attrs=attrs | {"tensor-cores": 1} if tensor_cores else attrs,
        params=parse_pairs("--hardware-param", hardware_param),
        layout=layout,
        remote=boards,
        calibration=None if calibration is None else read_arrays(calibration, loaded.inputs),
        measured=measured,
    )


def boards_of(remote: str | None, tracker: str | None) -> str | None:
    """``KEY`` or ``KEY@HOST:PORT`` from ``--remote`` and ``--tracker``; raises :class:`UsageError`."""
    from tvmtune.farm import protocol

    if remote is None:
        if tracker:
            raise UsageError("--tracker without --remote: which boards? See tvmtune devices.")
        return None
    key, _, address = remote.partition("@")
    if address and tracker:
        raise UsageError(f"--remote {remote} and --tracker {tracker} both name a tracker.")
    with naming("--tracker" if tracker else "--remote"):
        protocol.find(f"{key}@{address or tracker}" if address or tracker else key)
    return f"{key}@{address or tracker}" if address or tracker else key


def select_tasks(tasks: Sequence[Task], only: str | None) -> list[Any]:
    """The tasks that ``--tasks`` names: ``3,5-8``, ``*conv2d*``, ``top5``; all without it."""
    from fnmatch import fnmatch

    if not only:
        return list(tasks)
    chosen: list[Any] = []
    for word in (w.strip() for w in only.split(",") if w.strip()):
        first, dash, last = word.partition("-")
        if word.startswith("top") and word[3:].isdigit():
            heavy = sorted(tasks, key=lambda t: -t.weight * t.flop)
            found = heavy[: int(word[3:])]
        elif first.isdigit() and (not dash or last.isdigit()):
            indices = range(int(first), int(last or first) + 1)
            found = [t for t in tasks if t.index in indices]
        else:
            found = [t for t in tasks if fnmatch(t.name, word)]
        if not found:
            raise UsageError(
                f"--tasks {word} matches none of the {len(tasks)} tasks; tvmtune tasks lists them."
            )
        chosen += [t for t in found if t not in chosen]
    return sorted(chosen, key=lambda t: t.index)


def parse_pairs(option: str, values: Sequence[str]) -> dict[str, Any]:
    """``k=v`` strings to a dict; numbers become ints and floats."""
    result: dict[str, Any] = {}
    for value in values:
        key, sign, text = value.partition("=")
        if not sign or not key.strip():
            raise UsageError(f"{option} takes K=V, not '{value}'.")
        if key.strip() in result:
            raise UsageError(f"{option} {key.strip()} is given twice.")
        result[key.strip()] = _number(text.strip())
    return result


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse_shapes(values: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """``name:1x3x224x224`` strings to shapes by input name."""
    shapes = {}
    for value in values:
        name, sign, text = value.rpartition(":")
        parts = text.lower().replace(",", "x").split("x")
        if not sign or not name or not all(p.strip().isdigit() and int(p) > 0 for p in parts):
            raise UsageError(f"--shape takes NAME:1x3x224x224, not '{value}'.")
        shapes[name] = tuple(int(p) for p in parts)
    return shapes


host_option = click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen at; 0.0.0.0 for all, which opens it to everyone on the network.",
)


def tracker_option(shown: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``--tracker``, whose purpose is ``shown``."""
    return click.option("--tracker", metavar="HOST:PORT", help=shown)


def warn_if_open(host: str, what: str) -> None:
    """Say in plain words what it means to listen at another address than this machine's own."""
    from tvmtune.farm.protocol import Address

    if not Address(host, 1).is_local:
        click.echo(
            f"warning: at {host}, everyone who reaches this {what} can run any code and read and write "
            "any file that you can: TVM's RPC knows no passwords and no encryption. Let only machines "
            "that you trust reach it, or use an SSH tunnel (docs/farm.md).",
            err=True,
        )


def port(ctx: click.Context, param: click.Parameter, value: int | None) -> int | None:
    if value is not None and not 0 < value < 65536:
        raise click.BadParameter(f"{value} is no port.", ctx, param)
    return value


def positive(ctx: click.Context, param: click.Parameter, value: int | None) -> int | None:
    """A click callback: whole numbers of at least 1."""
    if value is not None and value < 1:
        raise UsageError(f"{param.opts[0]} needs a number of at least 1, not {value}.")
    return value


def above_zero(ctx: click.Context, param: click.Parameter, value: float) -> float:
    """A click callback: seconds above 0."""
    if not value > 0:
        raise UsageError(f"{param.opts[0]} needs a time above 0, not {value:g}.")
    return value


def part(ctx: click.Context, param: click.Parameter, value: float) -> float:
    """A click callback: a number from 0 to 1."""
    if not 0 <= value <= 1:
        raise UsageError(f"{param.opts[0]} needs a number from 0 to 1, not {value:g}.")
    return value


def not_negative(ctx: click.Context, param: click.Parameter, value: int) -> int:
    """A click callback: whole numbers of at least 0."""
    if value < 0:
        raise UsageError(f"{param.opts[0]} needs a number of at least 0, not {value}.")
    return value


def duration(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """A click callback: seconds from ``90``, ``90s``, ``30m`` or ``2h``."""
    if value is None:
        return None
    try:
        seconds = seconds_of(value)
    except ValueError:
        raise UsageError(
            f"{param.opts[0]} takes seconds, or 90s, 30m, 2h, not '{value}'."
        ) from None
    if seconds <= 0:
        raise UsageError(f"{param.opts[0]} needs a time above 0, not '{value}'.")
    return seconds


def seconds_of(text: str) -> float:
    """Those of a time such as ``90``, ``90s``, ``30m`` or ``2h``. Raises ValueError for all else."""
    text = text.strip().lower()
    factor = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:])
    return float(text[:-1]) * factor if factor else float(text)


def check_library(option: str, path: Path, *others: Path | str | None) -> None:
    """As :func:`check_writable`; also refuse to write a library over anything but a library."""
    check_writable(option, path, *others)
    if path.suffix != ".so":
        raise UsageError(f"{option} {path}: choose another name, one that ends in .so.")
    if path.exists() and path.stat().st_size:
        with path.open("rb") as file:
            if file.read(4) != b"\x7fELF":
                raise UsageError(f"{option} {path} exists and is no library: choose another name.")


def check_writable(option: str, path: Path, *others: Path | str | None) -> None:
    """Refuse an output path in a missing or unusable directory before hours of work.

    ``others``: files that the command reads or writes besides; the output must be none of them.
    """
    import os
    import tempfile

    folder = path.parent
    for other in others:
        if other is not None and path.resolve() == Path(other).resolve():
            raise UsageError(f"{option} {path} is a file that this command needs: choose another.")
    if path.is_dir():
        raise UsageError(f"{option} {path} is a directory; give a file in it.")
    if not folder.is_dir():
        raise UsageError(f"{option} {path}: there is no directory {folder}.")
    try:
        handle, name = tempfile.mkstemp(prefix=".tvmtune-", dir=folder)
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be written: {error.strerror}.") from None
    os.close(handle)
    Path(name).unlink()
