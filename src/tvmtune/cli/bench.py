"""``tvmtune bench``: measure a library, check its output, compare it with other runtimes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvmtune.cli import messages
from tvmtune.cli.json_output import STDOUT, emit, json_file_option, positional_and_json, text
from tvmtune.cli.options import bench_repeat_option, library_options, vs_option
from tvmtune.cli.paths import check_writable
from tvmtune.cli.resolve import lease_board, library_inputs
from tvmtune.command_help import Command, section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tvmtune.bench.peers import Peer
    from tvmtune.bench.results import BenchResult
    from tvmtune.bench.verify import CheckResult
    from tvmtune.remote.client.lease import BoardLease
    from tvmtune.runtime.library import Library
    from tvmtune.runtime.session import KernelTime


@click.command(
    "bench",
    cls=Command,
    examples=[
        (
            "Compare with two other runtimes, and check the outputs",
            "tvmtune bench mobilenet.so --vs onnxruntime,openvino --check",
        ),
        ("Show where the time goes", "tvmtune bench mobilenet.so --profile"),
    ],
    docs="docs/deploy.md, docs/json.md",
)
@section(
    "What to measure",
    vs_option,
    click.option(
        "--check",
        is_flag=True,
        help="Compare the outputs with the reference outputs in LIB; exit with 1 if they are wrong.",
    ),
    click.option("--profile", is_flag=True, help="Also print the time of each kernel."),
    bench_repeat_option("--repeat", "Number of timed repeats."),
    click.option(
        "--number",
        type=click.IntRange(min=1),
        metavar="N",
        default=1,
        show_default=True,
        help="Calls per repeat.",
    ),
    click.option(
        "--min-repeat-ms",
        type=click.FloatRange(min=0),
        metavar="MS",
        default=0,
        show_default=True,
        help="Minimum duration of one repeat, in milliseconds.",
    ),
)
@library_options("Measure on a board:", required=False)
@section("General", json_file_option("table"))
def command(
    library: Path | None,
    vs: str | None,
    repeat: int | None,
    number: int,
    min_repeat_ms: float,
    check: bool,
    profile: bool,
    json_file: Path | None,
    input_file: Path | None,
    threads: int | None,
    seed: int,
    remote: str | None,
    tracker: str | None,
    wait: float,
) -> None:
    """Time a library, alone or against other runtimes.

    Prints the median, mean, standard deviation, 95th percentile and throughput of LIB. With --remote,
    --vs compares with runtimes that are installed on the board.
    """
    from tvmtune.errors import TvmtuneError, UsageError

    library, json_file = positional_and_json("library", library, json_file)
    if profile and remote is not None:
        raise UsageError(
            "--profile: kernels are timed one by one on this machine only, not on boards"
        )
    if json_file is not None and json_file != STDOUT:
        check_writable("--json", json_file, library, input_file)
    from tvmtune import atomic_write
    from tvmtune.bench import peers
    from tvmtune.bench.bench import REPEATS, bench
    from tvmtune.library import metadata

    others = peers.parse(vs) if vs and remote is None else []
    if vs:
        peers.parse_names(vs)  # a wrong name fails before a board is leased
    stored = metadata.read(library)
    if check and not stored.get("check"):
        raise UsageError(f"{library} has no reference outputs to check against: compile it again")
    with lease_board(library, remote, tracker, wait) as board:
        loaded = _open(library, stored, threads, board)
        if vs and board is not None:
            from tvmtune.bench.peers import remote_peer

            others = remote_peer.parse(vs, board)
        inputs = library_inputs(loaded, input_file, seed)
        verdict = _check(loaded) if check else None
        with _progress(repeat or REPEATS, others) as on_round:
            result = bench(
                loaded,
                inputs=inputs,
                number=number,
                repeat=repeat,
                min_repeat_ms=min_repeat_ms,
                peers=others,
                on_round=on_round,
            )
        rows = loaded.profile(inputs) if profile else []
    result.runs[0].check = verdict
    report = result.to_json()
    if profile:
        report["runs"][0]["kernels"] = [row.to_json() for row in rows]

    if json_file == STDOUT:
        emit(report)
    else:
        if json_file is not None:
            atomic_write.write_text(json_file, text(report) + "\n")
        show(result, rows)
    for note in result.notes:
        messages.info(f"note: {note}")
    if verdict is not None:
        if not verdict.passed:
            raise TvmtuneError(f"the output of {library} is {verdict}")
        if json_file is not None:
            messages.info(f"the output is {verdict}")
        else:
            click.echo(f"the output is {verdict}")
    if vs and len(result.runs) == 1 and peers.ALL not in peers.parse_names(vs):
        raise TvmtuneError("no runtime of --vs took part in the comparison: the notes say why")


def show(result: BenchResult, rows: Sequence[KernelTime] = ()) -> None:
    """Print the table of runtimes, and a table of kernels if there are any, to stdout."""
    from rich.table import Table
    from rich.text import Text

    from tvmtune.cli.output import console

    network, device = result.network, result.device
    batch = result.runs[0].batch
    on_cpu = result.runs[0].device == "cpu"
    board = (result.board or {}).get("cpu") if on_cpu else None
    where = board or device.get("model") or "this device"
    table = Table(
        title=Text(f"{network['name']}, batch {batch}, on {where}"),
        title_justify="left",
    )
    table.add_column("runtime", no_wrap=True)
    table.add_column("version", no_wrap=True)
    is_modelled = any(run.modelled is not None for run in result.runs)
    columns = ["median ms", "mean ms", "std", "p95", "min"]
    if is_modelled and all(run.modelled is not None for run in result.runs):
        columns = []
    for column in ("threads", *["modeled ms"] * is_modelled, *columns, "items/s"):
        table.add_column(column, justify="right", no_wrap=True)
    on_device = any(run.device_ms is not None for run in result.runs)
    if on_device:
        table.add_column("on device ms", justify="right", no_wrap=True)
    if len(result.runs) > 1:
        table.add_column("time / tvmtune", justify="right", no_wrap=True)
        table.add_column("difference", justify="right", no_wrap=True)
    for run in result.runs:
        cells = [run.runtime, run.version, str(run.threads)]
        if is_modelled:
            cells.append("" if run.modelled is None else _ms(run.modelled.total_ms))
        times = (run.median_ms, run.mean_ms, run.std_ms, run.p95_ms, run.min_ms)
        if columns:  # those of a simulation say nothing about the accelerator
            cells += map(_ms, times) if run.modelled is None else [""] * len(times)
        cells.append(f"{run.throughput:.1f}")
        if on_device:
            cells.append("" if run.device_ms is None else _ms(run.device_ms))
        if len(result.runs) > 1:
            cells.append(f"{run.ratio:.2f}x")
            cells.append("" if run.error is None else f"{run.error:.1e}")
        table.add_row(*map(Text, cells))
    screen = console()
    screen.print(table)
    if rows:
        screen.print(_kernel_table(rows))


def _kernel_table(rows: Sequence[KernelTime]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(title="kernels", title_justify="left")
    table.add_column("task", overflow="fold")
    table.add_column("by", no_wrap=True)
    for column in ("calls", "ms", "GFLOPS", "share"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            Text(row.task or row.name),
            row.implementation or "",
            str(row.calls),
            _ms(row.ms),
            "-" if row.gflops is None else f"{row.gflops:.0f}",
            f"{100 * row.share:.1f}%",
        )
    return table


def _ms(value: float) -> str:
    return f"{value:.3f}" if value < 100 else f"{value:.1f}"


def _open(
    path: Path, stored: dict[str, Any], threads: int | None, board: BoardLease | None
) -> Library:
    from tvmtune.machine import cpu_count
    from tvmtune.machine.threads import choose
    from tvmtune.runtime.library import Library

    if board is None:
        threads = choose(threads, int(stored["threads"]))
        # Before peers are imported, whose libraries read these variables once.
        cpu_count.set_threads(threads)
    library = Library.open(path, threads, board=board)
    if library.threads != stored["threads"]:
        messages.info(f"note: tuned for {stored['threads']} threads, run with {library.threads}")
    return library


def _check(library: Library) -> CheckResult:
    from tvmtune.bench.verify import run_check

    return run_check(library, library.metadata["check"])


@contextlib.contextmanager
def _progress(repeat: int, peers: Sequence[Peer]) -> Iterator[Callable[[int], None] | None]:
    """A progress bar on a terminal's stderr: with peers a run takes ten seconds and more."""
    from rich.progress import Progress

    from tvmtune.cli.output import console

    screen = console(stderr=True)
    if not peers or not screen.is_terminal or not messages.shown(messages.INFO):
        yield None
        return
    # It is drawn only between rounds: a redrawing thread would disturb the timing.
    with Progress(console=screen, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("measuring", total=repeat)
        yield lambda done: bar.update(task, completed=done, refresh=True)
