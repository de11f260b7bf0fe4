"""``tvmtune tune``: from a network to a tuned, verified, timed library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvmtune.cli import completion, phases
from tvmtune.cli.options import (
    PATH,
    duration,
    network_options,
    shipped_records_option,
    tasks_option,
    vs_option,
    wait_option,
)
from tvmtune.cli.parsing import parse_pairs, select_tasks
from tvmtune.cli.paths import check_library, check_writable
from tvmtune.cli.resolve import make_plan, network_name, prefix_errors
from tvmtune.errors import TvmtuneError
from tvmtune.tuning.budget import FAILURE_RATE, PATIENCE, SECONDS, Budget, space_size
from tvmtune.tuning.tuners import TUNERS

if TYPE_CHECKING:
    from tvmtune.compiling.ship import Shipped
    from tvmtune.tasks.plan import Plan
    from tvmtune.types import Task


@click.command("tune")
@network_options("Tune for, and measure on, boards registered under KEY.")
@click.option(
    "--trials",
    type=int,
    metavar="N",
    help="Total number of trials in the log after which to stop. Tuning also stops when the space is "
    "exhausted.",
)
@click.option("--trials-per-task", type=int, metavar="N", help="At most N trials for each task.")
@click.option(
    "--time-budget",
    callback=duration,
    metavar="TIME",
    help="Stop tuning after this time, e.g. 90s, 30m, 2h. "
    f"Default without --trials and --trials-per-task: {SECONDS / 60:.0f}m.",
)
@click.option(
    "--patience",
    type=int,
    metavar="N",
    help="Stop after N trials with under 1% improvement of the estimated latency. "
    f"Default without any limit of trials or time: {PATIENCE}.",
)
@click.option(
    "--task-patience",
    type=int,
    metavar="N",
    help="Stop tuning a task after N of its trials with under 1% improvement.",
)
@click.option(
    "--max-failure-rate",
    default=FAILURE_RATE,
    show_default=True,
    metavar="FRACTION",
    help="Abort when more than this fraction of recent trials fails.",
)
@click.option(
    "--tuner",
    default="xgb",
    metavar="NAME",
    show_default=True,
    help=f"Tuner: {', '.join(TUNERS)}.",
    shell_complete=completion.completer(completion.tuners),
)
@click.option(
    "--tuner-option",
    multiple=True,
    metavar="K=V",
    help="Option of the tuner, e.g. population=256 (xgb).",
)
@click.option(
    "--transfer-from",
    multiple=True,
    type=PATH,
    metavar="LOG",
    help="Log of another network or device to learn from; may be repeated.",
)
@shipped_records_option
@click.option(
    "--scheduler",
    default="gradient",
    metavar="NAME",
    show_default=True,
    help="Task scheduler: gradient, round-robin or sequential.",
    shell_complete=completion.completer(completion.schedulers),
)
@tasks_option
@click.option(
    "--number",
    default=1,
    metavar="N",
    show_default=True,
    help="Calls per repeat; with 1, caches are flushed before each repeat.",
)
@click.option("--repeat", default=10, metavar="N", show_default=True, help="Repeats per trial.")
@click.option(
    "--min-repeat-ms",
    default=0,
    metavar="MS",
    show_default=True,
    help="Minimum duration of one repeat, in milliseconds.",
)
@click.option(
    "--build-timeout",
    default=20.0,
    show_default=True,
    metavar="SECONDS",
    help="Timeout for building one candidate, in seconds.",
)
@click.option(
    "--run-timeout",
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Timeout for running one candidate, in seconds.",
)
@wait_option("10m", "Give up after TIME without any board (--remote) or builder (--build-cluster).")
@click.option(
    "--build-cluster",
    metavar="ADDRESS",
    help="Build candidates on a Dask cluster, e.g. tcp://HOST:8786.",
)
@click.option(
    "--log",
    type=PATH,
    metavar="FILE",
    help="Log of the trials, resumed if it exists. Default: NETWORK-LAYOUT-Bbatch-KIND.json.",
)
@click.option("--fresh", is_flag=True, help="Rename an existing log and start a new one.")
@click.option("--seed", default=0, metavar="N", show_default=True, help="Seed of the search.")
@click.option("--dry-run", is_flag=True, help="Print the plan and stop.")
@click.option("--no-compile", is_flag=True, help="Stop after tuning.")
@vs_option
@click.option(
    "--input",
    "input_file",
    type=PATH,
    metavar="FILE.npz",
    help="Inputs for checking and timing the library; random by default.",
)
@click.option(
    "-o", "--output", type=PATH, metavar="FILE", help="Output library. Default: NETWORK.so."
)
@click.pass_context
def command(
    ctx: click.Context,
    trials: int | None,
    trials_per_task: int | None,
    time_budget: float | None,
    patience: int | None,
    task_patience: int | None,
    max_failure_rate: float,
    tuner: str,
    tuner_option: tuple[str, ...],
    transfer_from: tuple[Path, ...],
    no_shipped_records: bool,
    scheduler: str,
    only: str | None,
    number: int,
    repeat: int,
    min_repeat_ms: int,
    build_timeout: float,
    run_timeout: float,
    wait: float,
    build_cluster: str | None,
    log: Path | None,
    fresh: bool,
    seed: int,
    dry_run: bool,
    no_compile: bool,
    vs: str | None,
    input_file: Path | None,
    output: Path | None,
    **network: Any,
) -> None:
    """Tune a network, then compile, verify and time it.

    An existing log is resumed: its trials count towards --trials and --patience, and none is
    measured again.
    """
    from tvmtune.bench.peers import parse
    from tvmtune.networks.inputs import read_inputs
    from tvmtune.tuning import transfer
    from tvmtune.tuning.options import TuneOptions
    from tvmtune.types import Timing

    given = network_name(network["network"], network["positional"])
    options = TuneOptions(
        budget=Budget(
            trials=trials,
            seconds=time_budget,
            per_task=trials_per_task,
            patience=patience,
            task_patience=task_patience,
            failure_rate=max_failure_rate,
        ),
        timing=Timing(number, repeat, min_repeat_ms, build_timeout, run_timeout),
        tuner=tuner,
        tuner_options=parse_pairs("--tuner-option", tuner_option),
        scheduler=scheduler,
        seed=seed,
        wait=wait,
        build_cluster=build_cluster,
        shipped_records=not no_shipped_records,
    )
    peers = parse(vs) if vs else []
    plan = make_plan(**network, measured=True)
    inputs = read_inputs(input_file, plan.network.inputs) if input_file else None
    path = log or plan.default_log()
    library = output or Path(f"{plan.network.name}.so")
    check_writable("--log", path, given, input_file)
    if not no_compile:
        check_library("-o", library, path, given, input_file)

    from tvmtune import api
    from tvmtune.cli import progress
    from tvmtune.machine import scratch
    from tvmtune.records.log import LogLost
    from tvmtune.tuning.run import TuningRun

    with prefix_errors("--transfer-from"):
        others = transfer.read(transfer_from, path)
    tasks = select_tasks(plan.tasks, only)
    run = TuningRun(plan, path, options, tasks=tasks, transfer=others)
    _print_plan(plan, tasks, options.budget, path, library if not no_compile else None)
    if dry_run:
        return
    if fresh:
        _rename_log(path)
    verbose = bool((ctx.obj or {}).get("verbose"))
    with scratch.folder(scratch.WORK) as folder:
        untuned = None
        with run:
            if not no_compile:
                _say("compiling the untuned library and checking its output")
                with phases.shown(verbose=verbose, lines=False):
                    untuned = api.compile_untuned(
                        plan,
                        folder / "untuned.so",
                        inputs=inputs,
                        seed=seed,
                        wait=wait,
                        shipped_records=not no_shipped_records,
                        say=_say,
                    )
            observer = progress.observer(verbose)
            try:
                session = run.tune(observer)
            except (KeyboardInterrupt, TvmtuneError) as error:
                if observer.session is not None:
                    progress.summary(observer.session)
                    if not isinstance(error, LogLost):  # which says where the trials are
                        _say_what_is_kept(path)
                raise
        progress.summary(session)
        if no_compile:
            return
        _say("compiling the tuned library")
        try:
            shipped = api.ship(
                plan,
                library,
                [path],
                untuned=untuned,
                peers=peers,
                inputs=inputs,
                seed=seed,
                wait=wait,
                shipped_records=not no_shipped_records,
                say=_say,
            )
        except (KeyboardInterrupt, TvmtuneError):
            _say_what_is_kept(path)
            raise
    _show(shipped)


def _say(message: str) -> None:
    click.echo(message, err=True)


def _say_what_is_kept(log: Path) -> None:
    _say(
        f"every trial is in {log}; the same command continues, "
        f"tvmtune compile --log {log} uses what is there"
    )


def _show(shipped: Shipped) -> None:
    """Print the table of runtimes, then what was shipped."""
    from tvmtune.cli.bench import show
    from tvmtune.cli.compile import describe

    show(shipped.bench)
    for note in shipped.bench.notes:
        _say(f"note: {note}")
    if shipped.remark:
        _say(shipped.remark)
    click.echo(f"the output is {shipped.verdict}")
    if shipped.given_error is not None:
        click.echo(f"the output for the given inputs is right ({shipped.given_error:.1e})")
    estimate = shipped.compiled.metadata["estimate_ms"]
    click.echo(
        str(shipped)
        + (f", {estimate:.3f} ms estimated from its kernels" if estimate else "")
        + (", all modelled" if shipped.modelled else "")
    )
    click.echo(describe(shipped.compiled))


def _print_plan(
    plan: Plan, tasks: Sequence[Task], budget: Budget, log: Path, library: Path | None
) -> None:
    from tvmtune.cli.output import clock

    budget = budget.with_defaults()
    points = space_size(tasks)
    whole = points is not None and (budget.trials is None or budget.trials >= points)
    limits = [
        f"all {points} points of the space" if whole else "",
        f"{budget.trials} trials" if budget.trials and not whole else "",
        clock(budget.seconds) if budget.seconds else "",
        f"{budget.per_task} trials a task" if budget.per_task else "",
        f"{budget.patience} trials without 1% gain" if budget.patience else "",
        f"{budget.task_patience} trials of each task without 1% gain"
        if budget.task_patience
        else "",
    ]
    gflop = sum(t.weight * t.flop for t in tasks) / 1e9
    _say(
        f"{plan.network.name} ({plan.prepared.layout}) on {plan.device.model}, "
        f"{plan.device.threads} threads, target {plan.device.target}\n"
        f"{len(tasks)} of {len(plan.tasks)} tasks, {gflop:.2f} GFLOP; until "
        f"{' or '.join(x for x in limits if x)}\n"
        f"log: {log}" + (f"; library: {library}" if library else "")
    )


def _rename_log(path: Path) -> None:
    """Rename the log to the first free ``NAME.1``, ``NAME.2``, ...: no measurement is lost."""
    if not path.exists():
        return
    from tvmtune import atomic_write
    from tvmtune.records.log import LogWriter

    number = 1
    while (new := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    with LogWriter(path):  # refused while another session writes to it
        path.rename(new)
        atomic_write.sync_directory(path.parent)
    _say(f"the existing log is now {new}")
