"""``tvmtune distill``: write the best records of large logs to a small one."""

from __future__ import annotations

from pathlib import Path

import click

from tvmtune.cli.options import PATH, positive
from tvmtune.cli.paths import check_writable


@click.command("distill")
@click.argument("logs", nargs=-1, required=True, type=PATH)
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="FILE",
    help="Default: LOG with the suffix .best.json; for metaschedule a directory, LOG.metaschedule.",
)
@click.option(
    "--top",
    metavar="N",
    default=1,
    show_default=True,
    callback=positive,
    help="Records to keep per task and device.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["tvmtune", "metaschedule"]),
    default="tvmtune",
    show_default=True,
    help="metaschedule: a JSONDatabase for tvm.s_tir.meta_schedule.",
)
@click.option(
    "--force", is_flag=True, help="Replace FILE even if it is something other than a distilled log."
)
def command(logs: tuple[Path, ...], output: Path | None, top: int, form: str, force: bool) -> None:
    """Extract the best records of one or more logs.

    Writes the best per task and device to a new log.
    """
    from tvmtune.records.best import counts, distill, select
    from tvmtune.records.log import read_log

    read = [read_log(path) for path in logs]
    if form == "tvmtune":
        target = output or logs[0].with_suffix(".best.json")
        check_writable("-o", target)
        kept = distill(read, target, top=top, force=force)
    else:
        from tvmtune.records.database import export

        target = output or logs[0].with_suffix(".metaschedule")
        selections = select(read, top)
        export(selections, target)
        kept = counts(read, selections)
    click.echo(
        f"{target}: {kept['kept']} records of {kept['tasks']} tasks on "
        f"{kept['devices']} device(s), out of {kept['trials']} trials"
    )
