"""From the values of shared options to what they name: a plan, boards, inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from click.core import ParameterSource

from tvmtune import phases
from tvmtune.cli import messages
from tvmtune.cli.parsing import parse_pairs, parse_params, parse_shapes
from tvmtune.errors import ArgumentError, TvmtuneError, UsageError
from tvmtune.tasks.dtypes import AUTO

if TYPE_CHECKING:
    import numpy as np

    from tvmtune.remote.client.lease import BoardLease
    from tvmtune.runtime.library import Library
    from tvmtune.tasks.plan import Plan


@contextmanager
def prefix_errors(option: str) -> Iterator[None]:
    """Put the option's name before errors of layers that know no options."""
    try:
        yield
    except TvmtuneError as error:
        raise type(error)(f"{option}: {error}") from error


def network_name(network: str | None, positional: str | None) -> str:
    """The network, given as ``--network`` or as the argument, but not both."""
    if network and positional:
        source = click.get_current_context().get_parameter_source("network")
        if source in (ParameterSource.DEFAULT_MAP, ParameterSource.ENVIRONMENT):
            return positional  # the command line wins
        raise UsageError(f"two networks are given: '{positional}' and --network {network}")
    name = network or positional
    if not name:
        raise UsageError("no network given: pass NAME|FILE or --network")
    return name


def refuse_with(ctx: click.Context, name: str, *others: str) -> None:
    """Raise :class:`UsageError` if an option excludes another that the user gave on the command line.

    The names are those of parameters. Values of the environment or of a project file are defaults for
    many calls, so they are no contradiction.
    """
    params = {param.name: param for param in ctx.command.params}
    for other in others:
        if ctx.get_parameter_source(other) is ParameterSource.COMMANDLINE:
            raise UsageError(
                f"{params[other].opts[-1]} has no effect with {params[name].opts[-1]}: omit one"
            )


INT8_OPTIONS = (
    "calibration",
    "calibration_method",
    "skip_layers",
    "global_scale",
    "accuracy_budget",
)
"""Parameters of :func:`make_plan` that only int8 has."""


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
    calibration_method: str | None = None,
    skip_layers: str | None = None,
    global_scale: float | None = None,
    accuracy_budget: float | None = None,
    tensor_cores: bool = False,
    *,
    purpose: Literal["describe", "compile", "measure"] = "compile",
) -> Plan:
    """Load and plan the network that :func:`tvmtune.cli.options.network_options` describe;
    ``purpose``: what is done with the plan; the less, the less must be known of the device."""
    from tvmtune import host
    from tvmtune.machine import package_versions

    if dtype == AUTO:
        raise UsageError(
            f"--dtype {AUTO} is for tvmtune tune, which times the libraries: name a dtype"
        )
    package_versions.check_pins()
    host.backend(target)  # fail on a wrong name before anything slow
    boards = boards_of(remote, tracker)
    from tvmtune import api
    from tvmtune.networks.inputs import read_samples
    from tvmtune.networks.quantization import METHODS, Calibration

    options = Calibration(
        method=calibration_method or METHODS[0],
        skip_layers=tuple(word.strip() for word in (skip_layers or "").split(",") if word.strip()),
        global_scale=global_scale,
        accuracy_budget=accuracy_budget,
        data=str(calibration or ""),
    )
    wanted = dtype == "int8" or not options.is_default
    phases.report("loading the network")
    try:
        with phases.reading(lambda text: messages.info(f"note: {text}")):
            loaded = api.load(
                network_name(network, positional),
                batch=batch,
                shapes=parse_shapes(shape),
                arguments=parse_pairs("--arg", arg),
                dtype=dtype,
                calibration=options if wanted else None,
            )
    except ArgumentError as error:
        raise UsageError(f"--arg {error}") from error
    attrs = parse_pairs("--target-attr", target_attr)
    return api.plan(
        loaded,
        target,
        attrs=attrs | {"tensor-cores": 1} if tensor_cores else attrs,
        params=parse_params(hardware_param),
        layout=layout,
        remote=boards,
        calibration=None if calibration is None else read_samples(calibration, loaded.inputs),
        measured=purpose == "measure",
        described_only=purpose == "describe",
    )


def boards_of(remote: str | None, tracker: str | None) -> str | None:
    """``KEY`` or ``KEY@HOST:PORT`` from ``--remote`` and ``--tracker``; raises :class:`UsageError`.

    For an ``ssh://`` address a tunnel is opened, until the command ends.
    """
    from tvmtune.remote import protocol

    if remote is None:
        if tracker:
            raise UsageError("--tracker without --remote: which boards? See tvmtune devices.")
        return None
    from tvmtune.remote.client import tunnel

    if remote.startswith(tunnel.SCHEME):
        if tracker:
            raise UsageError(f"--remote {remote} is a board without a tracker: omit --tracker")
        return click.get_current_context().with_resource(tunnel.opened(remote))
    key, _, address = remote.partition("@")
    if address and tracker:
        raise UsageError(f"--remote {remote} and --tracker {tracker} both name a tracker")
    boards = f"{key}@{address or tracker}" if address or tracker else key
    with prefix_errors("--tracker" if tracker else "--remote"):
        protocol.split_remote(boards)
    return boards


@contextmanager
def lease_board(
    library: Path, remote: str | None, tracker: str | None, wait: float
) -> Iterator[BoardLease | None]:
    """A board of ``--remote`` for a library, for the duration of the context; None without the option.

    If the library was tuned on boards of the same key, only one that is equal to them is leased. With
    another key, a note says how they differ.
    """
    if (boards := boards_of(remote, tracker)) is None:
        yield None
        return
    from tvmtune.library import metadata
    from tvmtune.machine import board_identity
    from tvmtune.remote.client.lease import BoardLease
    from tvmtune.types import Device

    tuned = Device.from_json(metadata.read(library)["device"])
    same_key = tuned.key == boards.partition("@")[0]
    with BoardLease(
        boards,
        wait=wait,
        report=messages.info,
        identity=tuned.board if same_key else None,
        source=board_identity.TUNED,
    ) as board:
        how = board_identity.difference(tuned.board, board_identity.of(board.described))
        if how:
            messages.info(f"note: tuned on other boards than this one: {how}")
        yield board


def library_inputs(library: Library, path: Path | None, seed: int) -> dict[str, np.ndarray]:
    """The inputs in the file, or random ones. A file need not have the state."""
    from tvmtune.networks.inputs import read_inputs

    if path is None:
        return library.random_inputs(seed)
    return read_inputs(path, library.inputs, optional=library.state)
