"""``tvmtune report``: a page about logs, or about the results of ``tvmtune bench``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tvmtune.cli import messages
from tvmtune.cli.json_output import emit, json_flag
from tvmtune.cli.options import PATH
from tvmtune.cli.paths import check_writable
from tvmtune.command_help import Command
from tvmtune.errors import UsageError


@click.command(
    "report",
    cls=Command,
    examples=[
        ("Make a report of a log", "tvmtune report mobilenet.json -o mobilenet.html"),
        ("Compare two logs", "tvmtune report before.json after.json -o compared.html"),
        ("Compare runtimes and devices", "tvmtune report --matrix cpu.json board.json"),
    ],
    docs="docs/report.md",
)
@click.argument("files", metavar="LOG...", nargs=-1, required=True, type=PATH)
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="FILE",
    show_default="LOG with the suffix .html; with --matrix, matrix.html",
    help="Report to write; with --matrix, in Markdown if the name ends in .md.",
)
@click.option("--watch", is_flag=True, help="Update the report whenever a log grows, until Ctrl-C.")
@click.option("--no-code", is_flag=True, help="Leave out traces, TensorIR and generated code.")
@click.option(
    "--csv",
    "csv_path",
    type=PATH,
    metavar="DIR|FILE",
    help="Also write the trials and the tasks as CSV tables: DIR/trials.csv and DIR/tasks.csv, or "
    "FILE.csv and FILE.tasks.csv.",
)
@click.option("--png", type=PATH, metavar="DIR", help="Also write the charts as PNG files.")
@click.option(
    "--matrix",
    is_flag=True,
    help="Compare networks, devices and runtimes: the arguments are files written by tvmtune "
    "bench --json.",
)
@json_flag("summary")
def command(
    files: tuple[Path, ...],
    output: Path | None,
    watch: bool,
    no_code: bool,
    csv_path: Path | None,
    png: Path | None,
    matrix: bool,
    as_json: bool,
) -> None:
    """Make an HTML report of logs or benchmarks.

    The report is one page that needs nothing but a browser. It shows the latency over time, tasks,
    implementations, failures, drift, and the best schedules with their code, and compares further
    logs with the first.
    """
    if matrix:
        if watch or no_code or csv_path:
            raise UsageError("--watch, --no-code and --csv are for logs, not for --matrix")
        summary = _matrix(files, output or Path("matrix.html"), png)
        if as_json:
            emit(summary)
        return
    target = output or files[0].with_name(_stem(files[0]) + ".html")
    if target.suffix not in (".html", ".htm"):
        raise UsageError(f"-o {target}: a report is an HTML page; choose a name that ends in .html")
    check_writable("-o", target, *files)
    if csv_path is not None:
        from tvmtune.report.export import csv_paths

        for path in csv_paths(csv_path):
            if path.parent.is_dir():
                check_writable("--csv", path, *files, target)
    summary = _logs(files, target, watch=watch, with_code=not no_code, csv_path=csv_path, png=png)
    if as_json:
        emit(summary)


def _logs(
    files: Sequence[Path],
    target: Path,
    *,
    watch: bool,
    with_code: bool,
    csv_path: Path | None,
    png: Path | None,
) -> dict[str, Any]:
    from tvmtune import atomic_write
    from tvmtune.cli import phases
    from tvmtune.records.log import read_log
    from tvmtune.report import export, needs
    from tvmtune.report.page import Report
    from tvmtune.report.watch import SECONDS, follow

    needs.jinja2()
    needs.vl_convert()

    def write(*, growing: bool = False) -> Report:
        report = Report([read_log(path) for path in files])
        # The compiler would disturb the measurements of whoever tunes here.
        page = report.html(
            with_code=with_code and not growing, reload_after=SECONDS if growing else None
        )
        atomic_write.write_text(target, page)
        return report

    def write_growing() -> None:
        write(growing=True)

    if watch:
        messages.info(f"{target}: open it in a browser; Ctrl-C ends")
        try:
            follow(
                files,
                write_growing,
                failed=lambda error: messages.warning(f"the page was not updated: {error}"),
            )
        except KeyboardInterrupt:
            from tvmtune.machine import interrupts

            interrupts.install()  # it was meant for the loop only
            messages.info("writing the final page")
    with phases.shown(verbose=False):
        report = write()
    size = target.stat().st_size / 1e6
    trials = sum(len(log.trials) for log in report.logs)
    click.echo(f"{target}: {size:.1f} MB, {trials:,} trials")
    tables = [] if csv_path is None else export.write_csv(report.logs, csv_path)
    if tables:
        click.echo(", ".join(str(path) for path in tables))
    return {
        "path": str(target),
        "trials": trials,
        "tables": [str(path) for path in tables],
        "pictures": _pictures(report.charts(), png),
    }


def _matrix(files: Sequence[Path], target: Path, png: Path | None) -> dict[str, Any]:
    from tvmtune import atomic_write
    from tvmtune.report import matrix

    if target.suffix not in (".html", ".htm", ".md"):
        raise UsageError(f"-o {target}: choose a name that ends in .html or .md")
    check_writable("-o", target, *files)
    made = matrix.Matrix([matrix.read(path) for path in files])
    page = made.markdown() if target.suffix == ".md" else made.html()
    atomic_write.write_text(target, page)
    click.echo(f"{target}: {len(made.rows)} results of {len(made.networks)} networks")
    return {
        "path": str(target),
        "results": len(made.rows),
        "networks": len(made.networks),
        "pictures": _pictures(made.charts(), png),
    }


def _pictures(charts: Any, folder: Path | None) -> list[str]:
    """Write the charts as pictures, if there is a folder for them, and return their paths."""
    from tvmtune.report import export

    if folder is None:
        return []
    written = export.write_png(charts, folder)
    click.echo(f"{folder}: {len(written)} pictures")
    return [str(path) for path in written]


def _stem(log: Path) -> str:
    """The name without ``.json`` and the suffix of a compressed log."""
    name = log.name
    for suffix in (".gz", ".xz", ".json"):
        name = name.removesuffix(suffix)
    return name or log.name
