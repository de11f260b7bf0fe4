"""One run of ``tvmtune tune``: from a plan to a log and a library, with messages on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tvmtune.cli import messages, phases
from tvmtune.cli.parsing import select_tasks
from tvmtune.cli.paths import check_library, check_writable
from tvmtune.cli.resolve import prefix_errors
from tvmtune.errors import TvmtuneError
from tvmtune.tuning.budget import Budget, space_size

if TYPE_CHECKING:
    from tvmtune.bench.peers import Peer
    from tvmtune.compiling.ship import Shipped
    from tvmtune.tasks.plan import Plan
    from tvmtune.tuning.observer import SessionView
    from tvmtune.tuning.options import TuneOptions
    from tvmtune.types import JSON, Task


@dataclass(frozen=True)
class TuneRequest:
    """What ``tvmtune tune`` was asked to do, apart from network, device, log and library."""

    options: TuneOptions
    given: str
    """The network's name or file, as given: no output may overwrite it."""
    only: str | None
    """``--tasks``."""
    peers: Sequence[Peer]
    bench_repeat: int | None
    input_file: Path | None
    transfer_from: Sequence[Path]
    fresh: bool
    no_compile: bool
    dry_run: bool
    as_json: bool
    """Whether the caller prints the document, and nothing else goes to stdout."""


def files_of(
    request: TuneRequest, plan: Plan, log: Path | None, output: Path | None
) -> tuple[Path, Path]:
    """The log and the library; raises :class:`UsageError` if one cannot be written."""
    path, library = log or plan.default_log(), output or plan.default_library()
    check_writable("--log", path, request.given, request.input_file)
    if not request.no_compile:
        check_library("-o", library, path, request.given, request.input_file)
    return path, library


def tune_one(request: TuneRequest, plan: Plan, log: Path | None, output: Path | None) -> JSON:
    """Tune, compile, verify and time; prints progress and results, and returns them as JSON.

    ``log`` and ``output`` default to the plan's. Raises as the functions of :mod:`tvmtune.api` do,
    after saying where the trials are.
    """
    from tvmtune import api
    from tvmtune.cli import progress
    from tvmtune.machine import scratch
    from tvmtune.networks.inputs import read_inputs
    from tvmtune.records.log import LogLost
    from tvmtune.tuning import transfer
    from tvmtune.tuning.run import TuningRun

    options = request.options
    seed, wait, shipped_records = options.seed, options.wait, options.shipped_records
    inputs = read_inputs(request.input_file, plan.network.inputs) if request.input_file else None
    path, library = files_of(request, plan, log, output)
    with prefix_errors("--transfer-from"):
        others = transfer.read(request.transfer_from, path)
    tasks = select_tasks(plan.tasks, request.only)
    run = TuningRun(plan, path, options, tasks=tasks, transfer=others)
    described = _describe_plan(
        plan, tasks, options.budget, path, None if request.no_compile else library
    )
    if request.dry_run:
        if not request.as_json:
            click.echo(_plan_text(described))
        return described
    messages.info(_plan_text(described))
    if request.fresh:
        _rename_log(path)
    verbose = messages.shown(messages.DEBUG)
    with scratch.folder(scratch.WORK) as folder:
        untuned = None
        with run:
            if not request.no_compile:
                _say("compiling the untuned library and checking its output")
                with phases.shown(verbose=verbose, lines=False):
                    untuned = api.compile_untuned(
                        plan,
                        folder / "untuned.so",
                        inputs=inputs,
                        seed=seed,
                        wait=wait,
                        shipped_records=shipped_records,
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
        tuned = described | {"tuning": _describe_session(session)}
        if request.no_compile:
            return tuned | {"library": None, "bench": None}
        _say("compiling the tuned library")
        try:
            shipped = api.ship(
                plan,
                library,
                [path],
                untuned=untuned,
                peers=request.peers,
                inputs=inputs,
                seed=seed,
                repeat=request.bench_repeat,
                wait=wait,
                shipped_records=shipped_records,
                say=_say,
            )
        except (KeyboardInterrupt, TvmtuneError):
            _say_what_is_kept(path)
            raise
    if not request.as_json:
        _show(shipped)
    return tuned | _describe_shipped(shipped)


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
