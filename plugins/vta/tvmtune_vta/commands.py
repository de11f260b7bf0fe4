"""``tvmtune vta``: look into streams, run them, and see where their time goes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tvmtune.errors import TvmtuneError

if TYPE_CHECKING:
    from tvmtune_vta.clock import Timeline

_FILE = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


@click.group("vta")
def group() -> None:
    """Streams of VTA, in the files that docs/vta.md describes."""


@group.command()
@_FILE
@click.option("--uops", is_flag=True, help="The uops, too.")
def disasm(file: Path, uops: bool) -> None:
    """Print a stream's instructions, a line each."""
    from tvmtune_vta import isa
    from tvmtune_vta.program import Program

    program = Program.load(file)
    click.echo(f"# {program.name}: {program.config.bitstream}, {len(program.uops)} uops")
    click.echo("\n".join(program.disassemble()))
    if uops:
        click.echo("\n".join(isa.disassemble_uops(program.uops, program.config)))


@group.command()
@_FILE
def check(file: Path) -> None:
    """Hold a stream against what hardware demands, run it, and compare with what it should give."""
    import numpy as np

    from tvmtune_vta import rules, simulator
    from tvmtune_vta.program import Program

    program = Program.load(file)
    rules.check(program)
    needed = [n for n, b in enumerate(program.buffers) if b.role in ("input", "constant")]
    lacking = [program.buffers[n].name for n in needed if n not in program.contents]
    if lacking or not program.expected:
        what = f"no contents of {', '.join(lacking)}" if lacking else "nothing expected"
        click.echo(f"{program.name} keeps the rules; the file has {what}, so that it is not run")
        return
    found = simulator.run_all_orders(program, {}).memory
    for number, wanted in program.expected.items():
        wrong = int(np.count_nonzero(found[number] != wanted))
        if wrong:
            raise TvmtuneError(
                f"{file}: {wrong} of {wanted.size} values of '{program.buffers[number].name}' are not "
                "what the file expects."
            )
    click.echo(f"{program.name} keeps the rules, and gives what it should in all orders")


@group.command()
@_FILE
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="A timeline as SVG."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def profile(file: Path, output: Path | None, as_json: bool) -> None:
    """Model a stream's time: cycles, what each engine waits for, bytes and steps."""
    from tvmtune.deploy import atomic
    from tvmtune_vta import clock
    from tvmtune_vta.program import Program

    program = Program.load(file)
    found = clock.model(program)
    if as_json:
        click.echo(json.dumps({"name": program.name, **found.to_json()}))
    else:
        click.echo("\n".join(_profile(program.name, found)))
    if output is not None:
        atomic.write_text(output, clock.picture(program, found))


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
