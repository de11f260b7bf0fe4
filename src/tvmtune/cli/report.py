"""``tvmtune report``: a page about logs, or about the results of ``tvmtune bench``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from tvmtune.cli.options import PATH
from tvmtune.cli.paths import check_writable
from tvmtune.errors import UsageError


@click.command("report")
@click.argument("files", metavar="LOG...", nargs=-1, required=True, type=PATH)
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="FILE",
    help="Page to write. Default: LOG with the suffix .html; with --matrix, matrix.html. With --matrix "
    "a name that ends in .md gets Markdown.",
)
@click.option(
    "--watch", is_flag=True, help="Make the page again whenever a log grows, until Ctrl-C."
)
@click.option("--no-code", is_flag=True, help="Leave out traces, TensorIR and generated code.")
@click.option(
    "--csv",
    "csv_path",
    type=PATH,
    metavar="DIR|FILE",
    help="Also write the trials and the tasks as tables: DIR/trials.csv and DIR/tasks.csv, or FILE.csv "
    "and FILE.tasks.csv.",
)
@click.option("--png", type=PATH, metavar="DIR", help="Also write the charts as pictures.")
@click.option(
    "--matrix",
    is_flag=True,
    help="The files are from tvmtune bench --json: compare networks, devices and runtimes.",
)
def command(
    files: tuple[Path, ...],
    output: Path | None,
    watch: bool,
    no_code: bool,
    csv_path: Path | None,
    png: Path | None,
    matrix: bool,
) -> None:
    """Show logs, or benchmarks, as a page.

    The page needs nothing but a browser: progress of the latency, tasks, implementations, failures,
    drift, and the best schedules with their code. Further logs are compared with the first.
    """
    if matrix:
        if watch or no_code or csv_path:
            raise UsageError("--watch, --no-code and --csv are for logs, not for --matrix.")
        _matrix(files, output or Path("matrix.html"), png)
        return
    target = output or files[0].with_name(_stem(files[0]) + ".html")
    if target.suffix not in (".html", ".htm"):
        raise UsageError(f"-o {target}: a report is a page; choose a name that ends in .html.")
    check_writable("-o", target, *files)
    if csv_path is not None:
        from tvmtune.report.export import csv_paths

        for path in csv_paths(csv_path):
            if path.parent.is_dir():
                check_writable("--csv", path, *files, target)
    _logs(files, target, watch=watch, with_code=not no_code, csv_path=csv_path, png=png)


def _logs(
    files: Sequence[Path],
    target: Path,
    *,
    watch: bool,
    with_code: bool,
    csv_path: Path | None,
    png: Path | None,
) -> None:
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
        click.echo(f"{target}: open it in a browser; Ctrl-C ends", err=True)
        try:
            follow(
                files,
                write_growing,
                failed=lambda error: click.echo(f"the page stays as it is: {error}", err=True),
            )
        except KeyboardInterrupt:
            from tvmtune.machine import interrupts

            interrupts.install()  # it was meant for the loop only
            click.echo("making the final page", err=True)
    with phases.shown(verbose=False):
        report = write()
    size = target.stat().st_size / 1e6
    trials = sum(len(log.trials) for log in report.logs)
    click.echo(f"{target}: {size:.1f} MB, {trials:,} trials")
    if csv_path is not None:
        click.echo(", ".join(str(path) for path in export.write_csv(report.logs, csv_path)))
    if png is not None:
        written = export.write_png(report.charts(), png)
        click.echo(f"{png}: {len(written)} pictures")


def _matrix(files: Sequence[Path], target: Path, png: Path | None) -> None:
    from tvmtune import atomic_write
    from tvmtune.report import export, matrix

    if target.suffix not in (".html", ".htm", ".md"):
        raise UsageError(f"-o {target}: choose a name that ends in .html or .md.")
    check_writable("-o", target, *files)
    made = matrix.Matrix([matrix.read(path) for path in files])
    page = made.markdown() if target.suffix == ".md" else made.html()
    atomic_write.write_text(target, page)
    click.echo(f"{target}: {len(made.rows)} results of {len(made.networks)} networks")
    if png is not None:
        written = export.write_png(made.charts(), png)
        click.echo(f"{png}: {len(written)} pictures")


def _stem(log: Path) -> str:
    """The name without ``.json`` and the suffix of a compressed log."""
    name = log.name
    for suffix in (".gz", ".xz", ".json"):
        name = name.removesuffix(suffix)
    return name or log.name
