"""``tvmtune distill``: a small log with the best records of large ones."""

from __future__ import annotations

from pathlib import Path

import click

from tvmtune.cli.options import PATH, check_writable, positive


@click.command("distill")
@click.argument("logs", nargs=-1, required=True, type=PATH)
@click.option(
    "-o",
    "--output",
    type=PATH,
    help="Default: LOG with .best.json for its suffix; for metaschedule a directory, LOG.metaschedule.",
)
@click.option(
    "--top",
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
def command(logs: tuple[Path, ...], output: Path | None, top: int, form: str) -> None:
    """Keep only the best records of one or several logs, per task and device."""
    from tvmtune.records.best import counts, distill, select
    from tvmtune.records.log import read_log

    read = [read_log(path) for path in logs]
    if form == "tvmtune":
        target = output or logs[0].with_suffix(".best.json")
        check_writable("-o", target)
        kept = distill(read, target, top=top)
    else:
        from tvmtune.records.database import export

        target = output or logs[0].with_suffix(".metaschedule")
        found = select(read, top)
        export(found, target)
        kept = counts(read, found)
    click.echo(
        f"{target}: {kept['kept']} records of {kept['tasks']} tasks on "
        f"{kept['devices']} device(s), out of {kept['trials']} trials"
    )
