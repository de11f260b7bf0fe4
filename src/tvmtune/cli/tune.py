"""``tvmtune tune``: from a network to a tuned, verified, timed library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvmtune.cli import completion, messages, phases
from tvmtune.cli.json_output import emit, json_flag
from tvmtune.cli.options import (
    DURATION,
    PATH,
    duration_option,
    network_options,
    output_option,
    shipped_records_option,
    tasks_option,
    vs_option,
    wait_option,
)
from tvmtune.cli.parsing import parse_pairs, select_tasks
from tvmtune.cli.paths import check_library, check_writable
from tvmtune.cli.resolve import make_plan, network_name, prefix_errors, refuse_with
from tvmtune.command_help import Command, section
from tvmtune.errors import TvmtuneError
from tvmtune.tuning.budget import FAILURE_RATE, PATIENCE, SECONDS, Budget, space_size
from tvmtune.tuning.tuners import TUNERS

if TYPE_CHECKING:
    from tvmtune.compiling.ship import Shipped
    from tvmtune.tasks.plan import Plan
    from tvmtune.tuning.observer import SessionView
    from tvmtune.types import JSON, Task


@click.command(
    "tune",
    cls=Command,
    examples=[
        (
            "Tune a network of the zoo for half an hour, and compare with ONNX Runtime",
            "tvmtune tune mobilenet --time-budget 30m --vs onnxruntime",
        ),
        (
            "Tune a model file with 500 trials; the same command resumes the log",
            "tvmtune tune model.onnx --shape data:1x3x224x224 --trials 500 -o model.so",
        ),
        (
            "Tune for the GPU of a board",
            "tvmtune tune mobilenet --target mali --remote rk3588@tracker:9190",
        ),
    ],
    docs="docs/networks.md, docs/tuners.md, docs/log-format.md, docs/farm.md",
)
@network_options(
    "Tune on boards:",
    wait_option("10m", "How long to wait for a board, or for a machine of --build-cluster."),
)
@section(
    "When to stop",
    click.option(
        "--trials",
        type=int,
        metavar="N",
        help="Stop when the log holds N trials, or when no candidate is left.",
    ),
    click.option(
        "--trials-per-task", type=int, metavar="N", help="Measure at most N trials of each task."
    ),
    click.option(
        "--time-budget",
        type=DURATION,
        metavar="TIME",
        show_default=f"{SECONDS / 60:.0f}m without --trials or --trials-per-task",
        help="Stop after TIME, e.g. 90s, 30m or 1h30m.",
    ),
    click.option(
        "--patience",
        type=int,
        metavar="N",
        show_default=f"{PATIENCE} without any other limit",
        help="Stop when the last N trials lowered the estimated latency by less than 1%.",
    ),
    click.option(
        "--task-patience",
        type=int,
        metavar="N",
        help="Stop tuning a task when its last N trials improved it by less than 1%.",
    ),
    click.option(
        "--max-failure-rate",
        default=FAILURE_RATE,
        show_default=True,
        metavar="FRACTION",
        help="Abort when more than this fraction of the recent trials failed.",
    ),
)
@section(
    "Search",
    click.option(
        "--tuner",
        default="xgb",
        metavar="NAME",
        show_default=True,
        help=f"Tuner: {', '.join(TUNERS)}.",
        shell_complete=completion.completer(completion.tuners),
    ),
    click.option(
        "--tuner-option",
        multiple=True,
        metavar="K=V",
        help="Option of the tuner, e.g. population=256 for xgb. Repeatable.",
    ),
    click.option(
        "--scheduler",
        default="gradient",
        metavar="NAME",
        show_default=True,
        help="Task scheduler: gradient, round-robin or sequential.",
        shell_complete=completion.completer(completion.schedulers),
    ),
    tasks_option,
    click.option(
        "--transfer-from",
        multiple=True,
        type=PATH,
        metavar="LOG",
        help="Learn from the log of another network or device. Repeatable.",
    ),
    shipped_records_option,
    click.option("--seed", default=0, metavar="N", show_default=True, help="Seed of the search."),
)
@section(
    "Measurement",
    click.option(
        "--number",
        default=1,
        metavar="N",
        show_default=True,
        help="Calls per repeat. With 1, caches are flushed before each repeat.",
    ),
    click.option("--repeat", default=10, metavar="N", show_default=True, help="Repeats per trial."),
    click.option(
        "--min-repeat-ms",
        default=0,
        metavar="MS",
        show_default=True,
        help="Minimum duration of one repeat, in milliseconds.",
    ),
    duration_option("--build-timeout", "Time limit for building one candidate.", default="20s"),
    duration_option("--run-timeout", "Time limit for running one candidate.", default="10s"),
    click.option(
        "--build-cluster",
        metavar="ADDRESS",
        help="Build candidates on a Dask cluster, e.g. tcp://HOST:8786.",
    ),
)
@section(
    "Log and library",
    click.option(
        "--log",
        type=PATH,
        metavar="FILE",
        show_default="named after the network and target, e.g. resnet-18-NHWC-B1-cpu.json",
        help="Log of the trials; an existing one is resumed.",
    ),
    click.option("--fresh", is_flag=True, help="Start a new log; an existing one is renamed."),
    output_option("Library to write."),
    click.option("--no-compile", is_flag=True, help="Stop after tuning; write no library."),
    click.option(
        "--input",
        "input_file",
        type=PATH,
        metavar="FILE.npz",
        show_default="random inputs",
        help="Inputs to check and time the library with: one array per input, by name.",
    ),
    vs_option,
)
@section(
    "General",
    click.option(
        "--dry-run",
        is_flag=True,
        help="Print what would be tuned, without building or running anything.",
    ),
    json_flag("table"),
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
    as_json: bool,
    **network: Any,
) -> None:
    """Tune a network, then compile, verify and time it.

    Measures variants of each kernel on the device, and keeps the fastest. An existing log is resumed:
    its trials count toward --trials and --patience, and none is measured again.
    """
    from tvmtune.bench.peers import parse
    from tvmtune.networks.inputs import read_inputs
    from tvmtune.tuning import transfer
    from tvmtune.tuning.options import TuneOptions
    from tvmtune.types import Timing

    given = network_name(network["network"], network["positional"])
    if no_compile:
        refuse_with(ctx, "no_compile", "vs", "output", "input_file")
    if dry_run:
        refuse_with(ctx, "dry_run", "fresh")
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
    plan = make_plan(**network, purpose="describe" if dry_run else "measure")
    inputs = read_inputs(input_file, plan.network.inputs) if input_file else None
    path = log or plan.default_log()
    library = output or plan.default_library()
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
    described = _describe_plan(
        plan, tasks, options.budget, path, library if not no_compile else None
    )
    if dry_run:
        if as_json:
            emit(described)
        else:
            click.echo(_plan_text(described))
        return
    messages.info(_plan_text(described))
    if fresh:
        _rename_log(path)
    verbose = messages.shown(messages.DEBUG)
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
                    if messages.shown(messages.INFO):
                        progress.summary(observer.session)
                    if not isinstance(error, LogLost):  # which says where the trials are
                        _say_what_is_kept(path)
                raise
        if messages.shown(messages.INFO):
            progress.summary(session)
        tuned = described | {"tuning": _describe_session(session)} if as_json else {}
        if no_compile:
            if as_json:
                emit(tuned | {"library": None, "bench": None})
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
    if as_json:
        emit(tuned | _describe_shipped(shipped))
    else:
        _show(shipped)


def _say(message: str) -> None:
    messages.info(message)


def _say_what_is_kept(log: Path) -> None:
    _say(
        f"every trial is in {log}: run the same command to continue, or tvmtune compile --log {log} to "
        "use the best found so far"
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
        + (", all modeled" if shipped.modelled else "")
    )
    click.echo(describe(shipped.compiled))


def _describe_plan(
    plan: Plan, tasks: Sequence[Task], budget: Budget, log: Path, library: Path | None
) -> JSON:
    """What will be tuned, where and until when."""
    budget = budget.with_defaults()
    return {
        "network": plan.network.name,
        "layout": plan.prepared.layout,
        "device": plan.device.to_json(),
        "tasks": {
            "chosen": len(tasks),
            "total": len(plan.tasks),
            "gflop": sum(t.weight * t.flop for t in tasks) / 1e9,
            "points": space_size(tasks),
        },
        "budget": {
            "trials": budget.trials,
            "trials_per_task": budget.per_task,
            "seconds": budget.seconds,
            "patience": budget.patience,
            "task_patience": budget.task_patience,
        },
        "log": str(log),
        "output": None if library is None else str(library),
    }


def _plan_text(described: JSON) -> str:
    from tvmtune.cli.output import clock

    tasks, budget, device = described["tasks"], described["budget"], described["device"]
    points, trials = tasks["points"], budget["trials"]
    whole = points is not None and (trials is None or trials >= points)
    limits = [
        f"all {points} points of the space" if whole else "",
        f"{trials} trials" if trials and not whole else "",
        clock(budget["seconds"]) if budget["seconds"] else "",
        f"{budget['trials_per_task']} trials a task" if budget["trials_per_task"] else "",
        f"{budget['patience']} trials without 1% gain" if budget["patience"] else "",
        f"{budget['task_patience']} trials of each task without 1% gain"
        if budget["task_patience"]
        else "",
    ]
    return (
        f"{described['network']} ({described['layout']}) on {device['model']}, "
        f"{device['threads']} threads, target {device['target']}\n"
        f"{tasks['chosen']} of {tasks['total']} tasks, {tasks['gflop']:.2f} GFLOP; until "
        f"{' or '.join(x for x in limits if x)}\n"
        f"log: {described['log']}"
        + (f"; library: {described['output']}" if described["output"] else "")
    )


def _describe_session(session: SessionView) -> JSON:
    """What tuning found; times in milliseconds, None if unknown."""
    return {
        "trials": session.total,
        "new_trials": session.new,
        "seconds": session.elapsed,
        "stopped_because": session.stopped_because,
        "estimate_ms": 1e3 * session.estimate(),
        "peak_gflops": session.peak,
        "tasks": [
            {
                "index": state.task.index,
                "name": state.task.name,
                "weight": state.task.weight,
                "trials": state.count,
                "failed": sum(not trial.ok for trial in state.trials),
                "best_ms": 1e3 * state.best,
                "gflops": state.gflops,
                "implementation": state.incumbent.implementation if state.incumbent else None,
                "verified": state.incumbent.verified if state.incumbent else None,
            }
            for state in session.states
        ],
    }


def _describe_shipped(shipped: Shipped) -> JSON:
    from tvmtune.cli.compile import describe_json

    return {
        "library": describe_json(shipped.compiled)
        | {
            "kind": shipped.kind,
            "remark": shipped.remark,
            "verdict": str(shipped.verdict),
            "given_error": shipped.given_error,
        },
        "bench": shipped.bench.to_json(),
    }


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
