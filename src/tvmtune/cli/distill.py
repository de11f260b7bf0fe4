"""``tvmtune distill``: write the best records of large logs to a small one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tvmtune.cli.choices import OneOf
from tvmtune.cli.json_output import emit, json_flag
from tvmtune.cli.options import PATH, positive
from tvmtune.cli.output import counted
from tvmtune.cli.paths import check_writable
from tvmtune.command_help import Command

if TYPE_CHECKING:
    from tvmtune.records.log import Log


@click.command(
    "distill",
    cls=Command,
    examples=[
        ("Keep the best record of each task", "tvmtune distill mobilenet.json -o best.json"),
        (
            "Turn two logs into a database for TVM's MetaSchedule",
            "tvmtune distill a.json b.json --format metaschedule -o database",
        ),
    ],
    docs="docs/log-format.md",
)
@click.argument("logs", metavar="LOG...", nargs=-1, required=True, type=PATH)
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="FILE",
    show_default="LOG with the suffix .best.json, .metaschedule or .t4.json",
    help="File to write; for metaschedule, a directory.",
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
    type=OneOf(["tvmtune", "metaschedule", "kernel-tuner"]),
    metavar="NAME",
    default="tvmtune",
    show_default=True,
    help="Format to write: tvmtune (a log), metaschedule (a database for TVM's MetaSchedule) or "
    "kernel-tuner (Kernel Tuner's T4 results).",
)
@click.option("--force", is_flag=True, help="Replace FILE even if distill did not write it.")
@json_flag("summary")
def command(
    logs: tuple[Path, ...], output: Path | None, top: int, form: str, force: bool, as_json: bool
) -> None:
    """Extract the best records from logs.

    Writes the best records of each task and device to a small log, which compile and tune read like
    any other. A LOG may also be the directory of a MetaSchedule database; its records count as
    measured on this machine if its target matches.
    """
    from tvmtune.records.best import counts, distill, select

    read = [_read(path) for path in logs]
    if form == "tvmtune":
        target = output or logs[0].with_suffix(".best.json")
        check_writable("-o", target)
        kept = distill(read, target, top=top, force=force)
    elif form == "kernel-tuner":
        from tvmtune.records import t4

        target = output or logs[0].with_suffix(".t4.json")
        check_writable("-o", target, *logs)
        selections = select(read, top)
        t4.write(selections, target, force=force)
        kept = counts(read, selections)
    else:
        from tvmtune.records.database import export

        target = output or logs[0].with_suffix(".metaschedule")
        selections = select(read, top)
        export(selections, target)
        kept = counts(read, selections)
    if as_json:
        emit({"path": str(target), "format": form, **kept})
        return
    click.echo(
        f"{target}: {counted(kept['kept'], 'record')} of {counted(kept['tasks'], 'task')} on "
        f"{counted(kept['devices'], 'device')}, out of {counted(kept['trials'], 'trial')}"
    )


def _read(path: Path) -> Log:
    from tvmtune import host
    from tvmtune.records.database import check_kind, read_records, target_of
    from tvmtune.records.log import read_log

    if not path.is_dir():
        return read_log(path)
    check_kind(path)
    target = target_of(path)
    kind, cores = str(target.get("kind", "llvm")), target.get("num-cores")
    attrs = {"threads": int(cores)} if kind == "llvm" and cores else {}
    return read_records(path, host.backend(kind).make_target(attrs, None))
