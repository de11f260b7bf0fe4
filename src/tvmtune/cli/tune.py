"""``tvmtune tune``: from a network to a tuned, verified, timed library."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvmtune.cli import completion
from tvmtune.cli.options import (
    PATH,
    above_zero,
    check_library,
    check_writable,
    duration,
    make_plan,
    naming,
    network_name,
    network_options,
    not_negative,
    parse_pairs,
    part,
    positive,
    select_tasks,
    tasks_option,
    vs_option,
)
from tvmtune.errors import TvmtuneError
from tvmtune.tuning.budget import FAILURE_RATE, PATIENCE, SECONDS, Budget, space_size
from tvmtune.tuning.tuners import TUNERS

if TYPE_CHECKING:
    from tvmtune.api import Plan
    from tvmtune.deploy.ship import Shipped


@click.command("tune")
@network_options
@click.option(
    "--trials",
    type=int,
    callback=positive,
    help="Trials in all, earlier runs included; at most the points of the space.",
)
@click.option("--trials-per-task", type=int, callback=positive, help="At most so many per task.")
@click.option(
    "--time-budget",
    callback=duration,
    metavar="TIME",
    help="For tuning, e.g. 90s, 30m, 2h. "
    f"{SECONDS / 60:.0f}m where nothing limits the trials or the time.",
)
@click.option(
    "--patience",
    type=int,
    callback=positive,
    help="Stop when so many trials improved the estimate by less than 1%. "
    f"{PATIENCE} where nothing limits the trials or the time.",
)
@click.option(
    "--task-patience",
    type=int,
    callback=positive,
    help="Leave a task when so many of its own trials improved it by less than 1%.",
)
@click.option(
    "--max-failure-rate",
    default=FAILURE_RATE,
    show_default=True,
    callback=part,
    help="Give up when a larger part of the latest trials failed.",
)
@click.option(
    "--tuner",
    default="xgb",
    show_default=True,
    help=f"One of {', '.join(TUNERS)}.",
    shell_complete=completion.completer(completion.tuners),
)
@click.option(
    "--tuner-option",
    multiple=True,
    metavar="K=V",
    help="An option of the tuner, e.g. population=256 (xgb).",
)
@click.option(
    "--transfer-from",
    multiple=True,
    type=PATH,
    metavar="LOG",
    help="Learn from another network's or device's log; may be repeated.",
)
@click.option(
    "--scheduler",
    default="effect",
    show_default=True,
    help="Who gets the next trials: effect, round-robin or sequential.",
    shell_complete=completion.completer(completion.schedulers),
)
@tasks_option
@click.option(
    "--number",
    default=1,
    show_default=True,
    callback=positive,
    help="Calls per repeat; with 1 the weights are flushed from the caches before each.",
)
@click.option(
    "--repeat", default=10, show_default=True, callback=positive, help="Repeats per trial."
)
@click.option(
    "--min-repeat-ms",
    default=0,
    show_default=True,
    callback=not_negative,
    help="Calls until it lasts so long.",
)
@click.option(
    "--build-timeout",
    default=20.0,
    show_default=True,
    callback=above_zero,
    help="Seconds per candidate.",
)
@click.option(
    "--run-timeout",
    default=10.0,
    show_default=True,
    callback=above_zero,
    help="Seconds per candidate.",
)
@click.option(
    "--wait",
    default="600s",
    show_default=True,
    callback=duration,
    metavar="TIME",
    help="With --remote or --build-cluster: give up after so long without any board or builder.",
)
@click.option(
    "--build-cluster",
    metavar="ADDRESS",
    help="Build the candidates on the machines of a Dask cluster: tcp://HOST:8786.",
)
@click.option("--log", type=PATH, help="Default: NETWORK-LAYOUT-Bbatch-KIND.json; resumed.")
@click.option("--fresh", is_flag=True, help="Put an existing log aside and begin anew.")
@click.option("--seed", default=0, show_default=True, help="Seed of the search.")
@click.option("--dry-run", is_flag=True, help="Print the plan and stop.")
@click.option("--no-compile", is_flag=True, help="Stop after tuning.")
@vs_option
@click.option(
    "--input",
    "input_file",
    type=PATH,
    metavar="FILE.npz",
    help="Inputs to check and time the library with; random ones without it.",
)
@click.option("-o", "--output", type=PATH, help="The library; default NETWORK.so.")
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
    """Tune a network; then compile the best records, verify the library and time it.

    An existing log is continued: its trials count towards --trials and --patience, and none is
    repeated.
    """
    from tvmtune.deploy.peers import parse
    from tvmtune.networks.inputs import read_inputs
    from tvmtune.tuning import scheduler as schedulers
    from tvmtune.tuning import transfer, tuners

    given = network_name(network["network"], network["positional"])
    tuner = tuners.canonical(tuner)
    options = tuners.check_options(tuner, parse_pairs("--tuner-option", tuner_option))
    schedulers.check(scheduler)
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
    from tvmtune.records.log import refuse_compressed
    from tvmtune.types import Timing

    refuse_compressed(path)
    with naming("--transfer-from"):
        others = transfer.read(transfer_from, path)
    budget = Budget(
        trials=trials,
        seconds=time_budget,
        per_task=trials_per_task,
        patience=patience,
        task_patience=task_patience,
        failure_rate=max_failure_rate,
    )
    tasks = select_tasks(plan.tasks, only)
    tuners.check_space(tuner, tasks, budget.limited)
    _print_plan(plan, tasks, budget, path, library if not no_compile else None)
    if dry_run:
        return
    if fresh:
        _put_aside(path)
    verbose = bool((ctx.obj or {}).get("verbose"))
    with tempfile.TemporaryDirectory(prefix=f"tvmtune-{os.getpid()}-") as scratch:
        untuned = None
        if not no_compile:
            click.echo("compiling the untuned library and checking its output", err=True)
            untuned = api.compile_untuned(
                plan,
                Path(scratch) / "untuned.so",
                path,
                inputs=inputs,
                seed=seed,
                wait=wait,
                say=_say,
            )
        observer = progress.observer(verbose)
        try:
            session = api.tune(
                plan,
                path,
                budget=budget,
                timing=Timing(number, repeat, min_repeat_ms, build_timeout, run_timeout),
                tuner=tuner,
                tuner_options=options,
                transfer=others,
                scheduler=scheduler,
                tasks=tasks,
                seed=seed,
                wait=wait,
                build_cluster=build_cluster,
                observer=observer,
            )
        except (KeyboardInterrupt, TvmtuneError):
            if observer.session is not None:
                progress.summary(observer.session)
                _say_what_is_kept(path)
            raise
        progress.summary(session)
        if no_compile:
            return
        click.echo("compiling the tuned library", err=True)
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
    """The table of runtimes, then what was shipped."""
    from tvmtune.cli.bench import show
    from tvmtune.cli.compile import describe

    show(shipped.bench)
    for note in shipped.bench.notes:
        click.echo(f"note: {note}", err=True)
    if shipped.remark:
        click.echo(shipped.remark, err=True)
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
    plan: Plan, tasks: list[Any], budget: Budget, log: Path, library: Path | None
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
    click.echo(
        f"{plan.network.name} ({plan.prepared.layout}) on {plan.device.model}, "
        f"{plan.device.threads} threads, target {plan.device.target}\n"
        f"{len(tasks)} of {len(plan.tasks)} tasks, {gflop:.2f} GFLOP; until "
        f"{' or '.join(x for x in limits if x)}\n"
        f"log: {log}" + (f"; library: {library}" if library else ""),
        err=True,
    )


def _put_aside(path: Path) -> None:
    """Rename the log to the first free ``NAME.1``, ``NAME.2``, ...: nothing measured is lost."""
    if not path.exists():
        return
    from tvmtune.records.log import LogWriter

    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    with LogWriter(path):  # refused while another session writes to it
        path.rename(aside)
    click.echo(f"the log that was there is now {aside}", err=True)
