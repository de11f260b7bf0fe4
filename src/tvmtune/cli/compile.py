"""``tvmtune compile``: from a network and its records to a library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvmtune.cli import phases
from tvmtune.cli.options import PATH, network_options, shipped_records_option
from tvmtune.cli.paths import check_library, check_writable
from tvmtune.cli.resolve import make_plan, network_name

if TYPE_CHECKING:
    from tvmtune.compiling.compile import Compiled


@click.command("compile")
@network_options("Compile for the boards registered under KEY.")
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=PATH,
    metavar="LOG",
    help="Log with records to use, or directory of a MetaSchedule database; may be repeated.",
)
@shipped_records_option
@click.option(
    "-o", "--output", type=PATH, metavar="FILE", help="Output library. Default: NETWORK.so."
)
@click.option(
    "--seed",
    default=0,
    metavar="N",
    show_default=True,
    help="Seed of the stored reference outputs.",
)
@click.option(
    "--emit-module", type=PATH, metavar="FILE", help="Write the prepared Relax module as TVMScript."
)
@click.pass_context
def command(
    ctx: click.Context,
    logs: tuple[Path, ...],
    no_shipped_records: bool,
    output: Path | None,
    seed: int,
    emit_module: Path | None,
    **network: Any,
) -> None:
    """Compile a network into a library, using the best records of the given logs.

    Tasks without a record in the logs take one that comes with tvmtune for CPUs like this one, if
    there is one for as many threads, else a default schedule of the algorithm that should be the
    fastest.

    Where this machine can run the library, its output is compared with the network's reference. If it
    is off by more than the tolerance, kernels fall back to more accurate ones; if it is still wrong,
    nothing is written and the exit code is 1.
    """
    from tvmtune.records.database import check_kind
    from tvmtune.records.log import read_log

    given = network_name(network["network"], network["positional"])
    for path in logs:
        check_kind(path)  # fail on a wrong log before anything slow
        if not path.is_dir():
            read_log(path)
    if output is not None:
        check_library("-o", output, *logs, given)
    if emit_module is not None:
        check_writable("--emit-module", emit_module, output, *logs, given)
    with phases.shown(verbose=bool((ctx.obj or {}).get("verbose"))):
        plan = make_plan(**network)
        target = output or Path(f"{plan.network.name}.so")
        check_library("-o", target, *logs, given)

        from tvmtune import api
        from tvmtune.atomic_write import write_text

        if emit_module is not None:
            write_text(emit_module, plan.prepared.graph.script(show_meta=False))
        compiled = api.compile(
            plan, target, logs, check_seed=seed, shipped_records=not no_shipped_records
        )
    if compiled.warning:
        click.echo(f"warning: {compiled.warning}", err=True)
    click.echo(describe(compiled))


def describe(compiled: Compiled) -> str:
    """The library, and how many of its tasks have a record; further lines say what is unusual."""
    from tvmtune.cli.output import counted

    counts = compiled.counts
    total = compiled.metadata["tasks"]["total"]
    size = compiled.path.stat().st_size / 1e6
    lines = [
        f"{compiled.path}: {size:.1f} MB, {counted(total, 'task')}: {counts['exact']} with a record, "
        f"{counts['anchor']} with one of the same anchor, "
        + (f"{counts['shipped']} with a shipped record, " if counts["shipped"] else "")
        + f"{counts['default']} with the default schedule; {compiled.metadata['threads']} threads"
    ]
    if compiled.fallbacks:
        lines.append(
            f"{counted(compiled.fallbacks, 'task')} fell back to more accurate kernels: with the "
            "fastest, the network's error exceeded the tolerance"
        )
    if compiled.unverified:
        lines.append(
            f"the kernels of {', '.join(compiled.unverified)} are used unverified: no check of their "
            "output came to an end. tvmtune tune on the same log checks them again"
        )
    return "\n".join(lines)
