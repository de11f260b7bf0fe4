"""``tvmtune vta``: inspect, check and profile programs, and program FPGAs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvmtune.command_help import Group, section
from tvmtune.errors import TvmtuneError, UsageError

if TYPE_CHECKING:
    from tvmtune_vta.hardware.program import Program
    from tvmtune_vta.timing.time_model import Timeline

_DESCRIBE_TIMEOUT, _LOAD_TIMEOUT = 60.0, 300.0
"""Seconds for a board to describe itself, and to load its FPGA."""
_FILE = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


_DOCS = "docs/vta.md"


@click.group("vta", cls=Group, short_help="Tools for VTA: layers, programs and FPGAs.", docs=_DOCS)
def group() -> None:
    """Tools for VTA, an int8 accelerator on FPGAs: list a network's layers, examine its programs
    (instruction streams), load FPGAs."""


@group.command(
    short_help="List which operators run on VTA.",
    docs=_DOCS,
    examples=[
        ("List the layers of a network, and where they run", "tvmtune vta layers resnet-18"),
        (
            "Also show the scales and the noise of each layer",
            "tvmtune vta layers resnet-18 --scales --calibration x.npz",
        ),
    ],
)
@click.argument("network", metavar="NAME|FILE")
@section(
    "Network and target",
    click.option("--batch", default=1, metavar="N", show_default=True, help="Batch size."),
    click.option(
        "--target-attr",
        multiple=True,
        metavar="K=V",
        help="Attribute of the target, as for tvmtune tune. Repeatable.",
    ),
    click.option("--config", metavar="NAME|FILE", help="Same as --target-attr config=NAME|FILE."),
    click.option("--start-op", metavar="NAME", help="Same as --target-attr start-op=NAME."),
    click.option("--stop-op", metavar="NAME", help="Same as --target-attr stop-op=NAME."),
)
@section(
    "Quantization",
    click.option(
        "--scales",
        is_flag=True,
        help="Also calibrate, and print the scales and the noise of each layer.",
    ),
    click.option(
        "--calibration",
        metavar="FILE.npz",
        type=click.Path(dir_okay=False, path_type=Path),
        show_default="random inputs",
        help="Sample inputs for --scales.",
    ),
)
@section(
    "General",
    click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON document instead of the table."
    ),
)
def layers(
    network: str,
    batch: int,
    target_attr: tuple[str, ...],
    config: str | None,
    start_op: str | None,
    stop_op: str | None,
    scales: bool,
    calibration: Path | None,
    as_json: bool,
) -> None:
    """List which operators of a network run on VTA and which on the CPU, and why."""
    from tvmtune import networks
    from tvmtune.networks.inputs import read_arrays
    from tvmtune_vta import target
    from tvmtune_vta.graph_pack import lowering

    if calibration is not None and not scales:
        raise UsageError("--calibration requires --scales")
    loaded = networks.load(network, batch=batch)
    attrs = _attributes(target_attr, {"config": config, "start-op": start_op, "stop-op": stop_op})
    device = target.describe_device("vta", attrs, None)
    samples = None if calibration is None else read_arrays(calibration, loaded.inputs)
    prepared = lowering.prepare(loaded, device, None, samples, may_be_empty=True)
    rows = lowering.operator_table(prepared, scales=scales)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        _table(rows, scales)


def _attributes(pairs: tuple[str, ...], named: dict[str, str | None]) -> dict[str, str]:
    """The attributes of ``--target-attr`` and of options of their own; raises :class:`UsageError` for
    one that is given twice."""
    attrs = {name: value for name, value in named.items() if value is not None}
    for pair in pairs:
        name, sign, value = (part.strip() for part in pair.partition("="))
        if not sign or not name:
            raise UsageError(f"--target-attr takes K=V, not '{pair}'")
        if name in attrs:
            raise UsageError(f"{name} is given twice")
        attrs[name] = value
    return attrs


def _table(rows: list[dict[str, Any]], scales: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    columns = ["name", "layer", "on"]
    columns += ["exponents", "weights", "out", "shift", "cut", "SQNR dB"] if scales else []
    table = Table(*columns)
    for row in rows:
        cells = [row["name"], row["layer"], row["on"]]
        if scales and "sqnr" in row:
            weights = "" if row["weight_exponent"] is None else str(row["weight_exponent"])
            cells += [", ".join(map(str, row["exponents"])), weights, str(row["exponent"])]
            noise = "" if row["sqnr"] is None else f"{row['sqnr']:.1f}"
            cells += [str(row["shift"]), f"{row['cut']:.2%}", noise]
        table.add_row(*cells)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=160)
    console.print(table)


@group.command(
    docs=_DOCS,
    examples=[("Print all programs of a library", "tvmtune vta disasm resnet-18.so --uops")],
)
@_FILE
@click.option("--uops", is_flag=True, help="Also print the micro-operations (uops).")
def disasm(file: Path, uops: bool) -> None:
    """Disassemble programs.

    FILE is a stream file, or a library compiled with --target vta.
    """
    from tvmtune_vta.hardware import isa

    for program in _programs(file):
        click.echo(f"# {program.name}: {program.config.bitstream}, {len(program.uops)} uops")
        click.echo("\n".join(program.disassemble()))
        if uops:
            click.echo("\n".join(isa.disassemble_uops(program.uops, program.config)))


@group.command(
    short_help="Check programs, run them, and compare their outputs.",
    docs=_DOCS,
    examples=[("Check a stream file", "tvmtune vta check stream.npz")],
)
@_FILE
def check(file: Path) -> None:
    """Check programs against the hardware's rules, run them, and compare their outputs.

    FILE is a stream file, or a library compiled with --target vta.
    """
    from tvmtune_vta.hardware import rules

    for program in _programs(file):
        rules.check(program)
        click.echo(f"{program.name} is valid{_compare(file, program)}")


def _compare(file: Path, program: Program) -> str:
    """A description of the outcome. Raises :class:`TvmtuneError` for wrong outputs."""
    import numpy as np

    from tvmtune_vta.simulator import reference

    needed = [n for n, b in enumerate(program.buffers) if b.role in ("input", "constant")]
    missing = [program.buffers[n].name for n in needed if n not in program.contents]
    if missing or not program.expected:
        what = f"no contents of {', '.join(missing)}" if missing else "no expected outputs"
        return f"; not run, because the file has {what}"
    outputs = reference.run_all_orders(program, {}).memory
    for number, expected in program.expected.items():
        wrong = int(np.count_nonzero(outputs[number] != expected))
        if wrong:
            raise TvmtuneError(
                f"{file}: {wrong} of {expected.size} values of '{program.buffers[number].name}' are "
                "wrong"
            )
    return ", and its outputs are right in all orders"


@group.command(
    short_help="Estimate the time of programs with a model.",
    docs=_DOCS,
    examples=[("Draw a timeline", "tvmtune vta profile stream.npz -o timeline.svg")],
)
@_FILE
@click.option(
    "-o",
    "--output",
    metavar="FILE.svg",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the timeline as SVG. Further programs go to FILE-2.svg, ...",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one line of JSON per program instead of text."
)
def profile(file: Path, output: Path | None, as_json: bool) -> None:
    """Estimate the time of programs with a model: cycles, stalls, core steps and memory traffic.

    FILE is a stream file, or a library compiled with --target vta.
    """
    from tvmtune import atomic_write
    from tvmtune_vta.timing import time_model
    from tvmtune_vta.timing.svg import timeline_svg

    for number, program in enumerate(_programs(file)):
        timeline = time_model.program_timeline(program)
        if as_json:
            click.echo(json.dumps({"name": program.name, **timeline.to_json()}))
        else:
            click.echo("\n".join(_profile(program.name, timeline)))
        if output is not None:
            atomic_write.write_text(_numbered(output, number), timeline_svg(program, timeline))


@group.command(
    short_help="Write a library's programs as stream files.",
    docs=_DOCS,
    examples=[
        (
            "Write the programs of a library to stream.npz, stream-2.npz, ...",
            "tvmtune vta dump resnet-18.so -o stream.npz",
        )
    ],
)
@click.argument("library", metavar="LIB", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE.npz",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Stream file to write. Further programs go to FILE-2.npz, ...",
)
def dump(library: Path, output: Path) -> None:
    """Write a library's programs as stream files, with the inputs and outputs of a run."""
    if not _is_library(library):
        raise UsageError(f"{library} is not a library: make one with tvmtune compile --target vta")
    for number, program in enumerate(_programs(library)):
        path = _numbered(output, number)
        program.save(path)
        click.echo(f"{path}: {program.name}")


def _numbered(path: Path, number: int) -> Path:
    return path if number == 0 else path.with_stem(f"{path.stem}-{number + 1}")


def _programs(file: Path) -> list[Program]:
    """The program in a stream file, or the programs of a library in execution order, with the
    inputs and outputs of a run."""
    from tvmtune.runtime.library import Library
    from tvmtune_vta.device import packed_functions
    from tvmtune_vta.hardware.program import Program

    if not _is_library(file):
        return [Program.load(file)]
    library = Library.open(file)
    with packed_functions.recorded() as programs:
        library.run(library.random_inputs())
    if not programs:
        raise TvmtuneError(f"{file} runs nothing on VTA: it was compiled for another target")
    return programs


def _is_library(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(4) == b"\x7fELF"
    except OSError:
        return False  # reading it will raise a better error


_REMOTE = click.option(
    "--remote",
    required=True,
    metavar="BOARD",
    help="Board to use: KEY[@HOST:PORT] (registered with a tracker) or ssh://[USER@]HOST.",
)
_CONFIG = click.option(
    "--config",
    metavar="NAME|FILE",
    required=True,
    help="VTA configuration: a published one, e.g. pynq, or a vta_config.json.",
)


@group.command(
    "reconfig-runtime",
    short_help="Check a board's configuration.",
    docs=_DOCS,
    examples=[
        (
            "Check that the board has this configuration",
            "tvmtune vta reconfig-runtime --remote pynq --config pynq",
        )
    ],
)
@_REMOTE
@_CONFIG
def reconfig_runtime(remote: str, config: str) -> None:
    """Check that a board runs programs for a configuration and has its bitstream loaded."""
    from tvmtune.remote.client import tunnel
    from tvmtune.remote.client.lease import BoardLease
    from tvmtune_vta.device import board_calls
    from tvmtune_vta.hardware.config import Config

    wanted = Config.find(config)
    with tunnel.opened(remote) as boards, BoardLease(boards) as board:
        reply = board.ask(board_calls.describe, limit=_DESCRIBE_TIMEOUT)
    if reply["config"] is None:
        click.echo(f"the board '{board.key}' simulates any configuration")
        return
    actual = Config.parse(reply["config"], f"the board '{board.key}'")
    if keys := actual.differences(wanted):
        raise TvmtuneError(
            f"the board '{board.key}' has {actual.bitstream}, not {wanted.bitstream}: "
            f"{', '.join(keys)} differ. Serve it with another --target-attr config=."
        )
    if reply["device"] == "fpga":
        name = (reply["loaded"] or {}).get("name", "no known bitstream")
        if name != wanted.bitstream:
            raise TvmtuneError(
                f"the FPGA of the board '{board.key}' has {name} loaded, not {wanted.bitstream}: "
                "run tvmtune vta program-fpga"
            )
    what = "simulates" if reply["device"] == "sim" else "has its FPGA loaded with"
    click.echo(f"the board '{board.key}' {what} {wanted.bitstream}")


@group.command(
    "program-fpga",
    docs=_DOCS,
    examples=[
        (
            "Load a downloaded bitstream",
            "tvmtune vta program-fpga 1x16_i8w8a32_15_15_18_17.bit --remote pynq --config pynq",
        )
    ],
)
@_FILE
@_REMOTE
@_CONFIG
def program_fpga(file: Path, remote: str, config: str) -> None:
    """Load a bitstream (.bit) into a board's FPGA."""
    from tvmtune.remote.client import tunnel
    from tvmtune.remote.client.lease import BoardLease
    from tvmtune_vta.device import board_calls
    from tvmtune_vta.device.bitstream import Bitstream
    from tvmtune_vta.hardware.config import Config

    wanted = Config.find(config)
    bitstream = Bitstream.read(file)
    bitstream.check(wanted)
    with tunnel.opened(remote) as boards, BoardLease(boards) as board:
        board.ask(board_calls.program_fpga, str(file), limit=_LOAD_TIMEOUT)
    click.echo(f"{bitstream.name} ({bitstream.date}) is loaded into the FPGA of '{board.key}'")


def _profile(name: str, timeline: Timeline) -> Iterator[str]:
    over = f", {timeline.cycles / timeline.bound - 1:.1%} above its bound" if timeline.bound else ""
    yield f"{name}: {1e3 * timeline.seconds:.3f} ms modeled, {timeline.cycles} cycles{over}"
    yield f"the core multiplies {timeline.utilization:.0%} of the time"
    for title, table, unit in (
        ("busy", timeline.busy, "cycles"),
        ("stalled", timeline.stalls, "cycles"),
        ("core", timeline.steps, "steps"),
        ("memory", timeline.traffic, "bytes"),
    ):
        for key, value in table.items():
            yield f"  {title:<7} {key:<24} {value:>12} {unit}"
