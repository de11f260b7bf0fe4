"""``tvmtune vta``: look into streams, run them, and see where their time goes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvmtune.errors import TvmtuneError, UsageError

if TYPE_CHECKING:
    from tvmtune_vta.clock import Timeline
    from tvmtune_vta.program import Program

_ANSWER, _LOADING = 60.0, 300.0
"""Seconds that a board may take to say what it is, and to be loaded."""
_FILE = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


@click.group("vta")
def group() -> None:
    """A network's layers on VTA; streams of libraries, and in the files that docs/vta.md describes."""


@group.command()
@click.argument("network", metavar="NAME|FILE")
@click.option("--batch", default=1, show_default=True, help="Batch size.")
@click.option("--config", default="sim", show_default=True, help="As --target-attr config=.")
@click.option("--start-op", help="As --target-attr start-op=.")
@click.option("--stop-op", help="As --target-attr stop-op=.")
@click.option("--scales", is_flag=True, help="Calibrate, and show scales and noise.")
@click.option(
    "--calibration",
    metavar="FILE.npz",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Sample inputs, for --scales.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def layers(
    network: str,
    batch: int,
    config: str,
    start_op: str | None,
    stop_op: str | None,
    scales: bool,
    calibration: Path | None,
    as_json: bool,
) -> None:
    """List what of a network goes to VTA and what stays on the CPU, and why."""
    from tvmtune import networks
    from tvmtune.networks.inputs import read_arrays
    from tvmtune_vta import pack, target

    if calibration is not None and not scales:
        raise UsageError("--calibration is for --scales.")
    loaded = networks.load(network, batch=batch)
    attrs = {"config": config, "start-op": start_op, "stop-op": stop_op}
    device = target.describe("vta", {k: v for k, v in attrs.items() if v is not None}, None)
    samples = None if calibration is None else read_arrays(calibration, loaded.inputs)
    rows = pack.overview(pack.prepare(loaded, device, None, samples), scales=scales)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        _table(rows, scales)


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
    made = Console(highlight=False)
    (made if made.is_terminal else Console(highlight=False, width=160)).print(table)


@group.command()
@_FILE
@click.option("--uops", is_flag=True, help="The uops, too.")
def disasm(file: Path, uops: bool) -> None:
    """Print a stream's instructions, a line each; of a library those of all its streams."""
    from tvmtune_vta import isa

    for program in _programs(file):
        click.echo(f"# {program.name}: {program.config.bitstream}, {len(program.uops)} uops")
        click.echo("\n".join(program.disassemble()))
        if uops:
            click.echo("\n".join(isa.disassemble_uops(program.uops, program.config)))


@group.command()
@_FILE
def check(file: Path) -> None:
    """Hold a stream against what hardware demands, run it, and compare with what it should give."""
    from tvmtune_vta import rules

    for program in _programs(file):
        rules.check(program)
        click.echo(f"{program.name} keeps the rules{_compare(file, program)}")


def _compare(file: Path, program: Program) -> str:
    """What running it showed. Raises :class:`TvmtuneError` for wrong values."""
    import numpy as np

    from tvmtune_vta import simulator

    needed = [n for n, b in enumerate(program.buffers) if b.role in ("input", "constant")]
    lacking = [program.buffers[n].name for n in needed if n not in program.contents]
    if lacking or not program.expected:
        what = f"no contents of {', '.join(lacking)}" if lacking else "nothing expected"
        return f"; the file has {what}, so that it is not run"
    found = simulator.run_all_orders(program, {}).memory
    for number, wanted in program.expected.items():
        wrong = int(np.count_nonzero(found[number] != wanted))
        if wrong:
            raise TvmtuneError(
                f"{file}: {wrong} of {wanted.size} values of '{program.buffers[number].name}' are not "
                "what the file expects."
            )
    return ", and gives what it should in all orders"


@group.command()
@_FILE
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A timeline as SVG; of several streams FILE.svg, FILE-2.svg, ...",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line for each stream.")
def profile(file: Path, output: Path | None, as_json: bool) -> None:
    """Model a stream's time: cycles, what each engine waits for, bytes and steps."""
    from tvmtune.deploy import atomic
    from tvmtune_vta import clock
    from tvmtune_vta.picture import picture

    for number, program in enumerate(_programs(file)):
        found = clock.model(program)
        if as_json:
            click.echo(json.dumps({"name": program.name, **found.to_json()}))
        else:
            click.echo("\n".join(_profile(program.name, found)))
        if output is not None:
            atomic.write_text(_numbered(output, number), picture(program, found))


@group.command()
@click.argument("library", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The stream; of several FILE.npz, FILE-2.npz, ...",
)
def dump(library: Path, output: Path) -> None:
    """Write a library's streams, each with the inputs of a run and what came of them."""
    if not _is_library(library):
        raise UsageError(f"{library} is no library: tvmtune compile --target vta makes one.")
    for number, program in enumerate(_programs(library)):
        path = _numbered(output, number)
        program.save(path)
        click.echo(f"{path}: {program.name}")


def _numbered(path: Path, number: int) -> Path:
    return path if number == 0 else path.with_stem(f"{path.stem}-{number + 1}")


def _programs(file: Path) -> list[Program]:
    """The stream in a file, or those of a library in the order in which it runs them, with what went in
    and came out."""
    from tvmtune.deploy.library import Library
    from tvmtune_vta import driver
    from tvmtune_vta.program import Program

    if not _is_library(file):
        return [Program.load(file)]
    library = Library.open(file)
    with driver.recorded() as found:
        library.run(library.random_inputs())
    if not found:
        raise TvmtuneError(f"{file} runs nothing on VTA: it was compiled for another target.")
    return found


def _is_library(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(4) == b"\x7fELF"
    except OSError:
        return False  # whoever reads it says why


_REMOTE = click.option("--remote", required=True, metavar="KEY", help="The board, KEY[@HOST:PORT].")
_CONFIG = click.option(
    "--config", required=True, help="A published configuration's name, or a file."
)


@group.command("reconfig-runtime")
@_REMOTE
@_CONFIG
def reconfig_runtime(remote: str, config: str) -> None:
    """See that a board runs streams of a configuration, and has its bitstream."""
    from tvmtune.deploy.remote import Borrowed
    from tvmtune_vta import board_calls
    from tvmtune_vta.config import Config

    wanted = Config.find(config)
    with Borrowed(remote) as board:
        told = board.ask(board_calls.describe, limit=_ANSWER)
    if told["config"] is None:
        click.echo(f"the board '{board.key}' simulates whatever configuration a library is for")
        return
    found = Config.parse(told["config"], f"the board '{board.key}'")
    if keys := found.differences(wanted):
        raise TvmtuneError(
            f"the board '{board.key}' has {found.bitstream}, not {wanted.bitstream}: "
            f"{', '.join(keys)} differ. Serve it with another --target-attr config=."
        )
    if told["device"] == "fpga":
        name = (told["loaded"] or {}).get("name", "nothing that is known of")
        if name != wanted.bitstream:
            raise TvmtuneError(
                f"the FPGA of the board '{board.key}' has {name} loaded, not {wanted.bitstream}: see "
                "tvmtune vta program-fpga."
            )
    what = "simulates" if told["device"] == "sim" else "has, and its FPGA is loaded with,"
    click.echo(f"the board '{board.key}' {what} {wanted.bitstream}")


@group.command("program-fpga")
@_FILE
@_REMOTE
@_CONFIG
def program_fpga(file: Path, remote: str, config: str) -> None:
    """Load a board's FPGA with a bitstream (.bit) of a configuration."""
    from tvmtune.deploy.remote import Borrowed
    from tvmtune_vta import board_calls
    from tvmtune_vta.bitstream import Bitstream
    from tvmtune_vta.config import Config

    wanted = Config.find(config)
    bitstream = Bitstream.read(file)
    bitstream.check(wanted)
    with Borrowed(remote) as board:
        board.ask(board_calls.program_fpga, str(file), limit=_LOADING)
    click.echo(f"the FPGA of '{board.key}' is loaded with {bitstream.name} ({bitstream.date})")


def _profile(name: str, found: Timeline) -> Iterator[str]:
    over = f", {found.cycles / found.bound - 1:.1%} over its bound" if found.bound else ""
    yield f"{name}: {1e3 * found.seconds:.3f} ms modelled, {found.cycles} cycles{over}"
    yield f"the core multiplies {found.utilisation:.0%} of the time"
    for title, table, unit in (
        ("busy", found.busy, "cycles"),
        ("waited", found.stalls, "cycles"),
        ("core", found.steps, "steps"),
        ("memory", found.traffic, "bytes"),
    ):
        for key, value in table.items():
            yield f"  {title:<7} {key:<24} {value:>12} {unit}"
