"""``tvmtune distill``: a small log with the best records of large ones."""

from __future__ import annotations

from pathlib import Path

import click

from tvmtune.cli.options import PATH, check_writable, positive


@click.command("distill")
@click.argument("logs", nargs=-1, required=True, type=PATH)
@click.option("-o", "--output", type=PATH, help="Default: LOG with .best.json for its suffix.")
@click.option(
    "--top",
    default=1,
    show_default=True,
    callback=positive,
    help="Records to keep per task and device.",
)
def command(logs: tuple[Path, ...], output: Path | None, top: int) -> None:
    """Keep only the best records of one or several logs, per task and device."""
    from tvmtune.records.best import distill
    from tvmtune.records.log import read_log

    target = output or logs[0].with_suffix(".best.json")
    read = [read_log(path) for path in logs]
    check_writable("-o", target)
    counts = distill(read, target, top=top)
    click.echo(
        f"{target}: {counts['kept']} records of {counts['tasks']} tasks on "
        f"{counts['devices']} device(s), out of {counts['trials']} trials"
    )
