"""``tvmtune simulate``: compare tuners on completely measured spaces, without a device."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tvmtune.cli import completion, messages
from tvmtune.cli.json_output import STDOUT, emit, json_file_option, positional_and_json, text
from tvmtune.cli.options import PATH, not_negative, positive, tasks_option
from tvmtune.cli.parsing import parse_pairs, select_tasks
from tvmtune.cli.paths import check_writable
from tvmtune.command_help import Command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tvmtune.tuning.simulation.logged_spaces import MeasuredSpace
    from tvmtune.tuning.simulation.simulate import SimulatedRun, Simulation


@click.command(
    "simulate",
    cls=Command,
    examples=[
        (
            "Measure a space first",
            "tvmtune tune conv.py --tuner grid --trials 5000 --log conv.json",
        ),
        (
            "Compare two tuners on it, with ten runs each",
            "tvmtune simulate conv.json --tuner xgb --tuner random --seeds 10",
        ),
    ],
    docs="docs/simulate.md, docs/tuners.md, docs/json.md",
)
@click.argument("log", type=PATH, metavar="LOG", required=False)
@click.option(
    "--tuner",
    "wanted",
    multiple=True,
    default=["xgb"],
    show_default=True,
    metavar="NAME",
    help="Tuner, as in tvmtune tune, or metaschedule for MetaSchedule's own search. Repeatable.",
    shell_complete=completion.completer(completion.simulated),
)
@click.option(
    "--tuner-option",
    multiple=True,
    metavar="K=V",
    help="Option for the tuners that have it, e.g. population=256 for xgb. Repeatable.",
)
@click.option(
    "--trials",
    type=int,
    metavar="N",
    callback=positive,
    show_default="the whole space",
    help="Trials per run.",
)
@click.option(
    "--seeds",
    metavar="N",
    default=10,
    show_default=True,
    callback=positive,
    help="Runs per tuner, each with its own seed.",
)
@click.option(
    "--seed",
    metavar="N",
    default=0,
    show_default=True,
    callback=not_negative,
    help="Seed of the first run.",
)
@tasks_option
@json_file_option("tables")
def command(
    log: Path | None,
    wanted: Sequence[str],
    tuner_option: tuple[str, ...],
    trials: int | None,
    seeds: int,
    seed: int,
    only: str | None,
    json_file: Path | None,
) -> None:
    """Compare tuners on a fully measured space, without a device.

    Counts the trials until each tuner comes close to the best candidate. LOG must contain the whole
    space of a template, as benchmarks/spaces/measure.py writes it. Nothing is built or run; the same
    seeds give the same result.
    """
    from tvmtune.machine import package_versions
    from tvmtune.tuning.simulation import simulate

    log, json_file = positional_and_json("log", log, json_file)
    options = parse_pairs("--tuner-option", tuner_option)
    chosen = simulate.check(wanted, options)
    if json_file is not None and json_file != STDOUT:
        check_writable("--json", json_file, log)
    package_versions.check_pins()
    from tvmtune import atomic_write
    from tvmtune.records.log import read_log
    from tvmtune.tuning.simulation import logged_spaces

    read = read_log(log)
    logged = logged_spaces.spaces_of(read)
    tasks = list({m.task.key: m.task for m in logged}.values())
    keys = {task.key for task in select_tasks(tasks, only)}
    spaces, refused = simulate.full_spaces(read, [m for m in logged if m.task.key in keys])
    for reason in refused:
        messages.warning(f"skipped, not completely measured: {reason}")
    with _progress(len(spaces) * len(chosen) * seeds) as on_run:
        result = simulate.simulate(
            read,
            chosen,
            spaces=spaces,
            seeds=range(seed, seed + seeds),
            trials=trials,
            on_run=on_run,
        )
    if json_file == STDOUT:
        emit(result.to_json())
        return
    if json_file is not None:
        atomic_write.write_text(json_file, text(result.to_json()) + "\n")
    _show(result)


def _show(result: Simulation) -> None:
    """A table per space, and one over all if there are several."""
    for space in result.spaces:
        click.echo(
            f"{space} on {space.device['model'] or space.device['backend']}, "
            f"{space.device['threads']} threads: {space.size} points, best {space.best * 1e3:.4g} ms, "
            f"{space.within(0.95) / space.size:.2%} within 95% of it"
        )
        _table(result, [space])
    if len(result.spaces) > 1:
        click.echo(f"all {len(result.spaces)} spaces")
        _table(result, result.spaces)


def _table(result: Simulation, spaces: Sequence[MeasuredSpace]) -> None:
    from rich.table import Table

    from tvmtune.cli.output import console
    from tvmtune.tuning.simulation.simulate import PARTS

    table = Table(caption="trials: geometric mean, 95% bootstrap interval")
    table.add_column("tuner")
    for part in PARTS:
        table.add_column(f"to {part:.0%}", justify="right")
        table.add_column("reached", justify="right")
    for name in result.tuners:
        cells = []
        for part in PARTS:
            mean = result.mean(name, part, spaces)
            cells += [
                f"{mean.mean:.1f} ({mean.low:.1f}-{mean.high:.1f})",
                f"{mean.reached}/{mean.runs}",
            ]
        table.add_row(name, *cells)
    console().print(table)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[MeasuredSpace, SimulatedRun], None]]:
    """A line per run on stderr; in a terminal also a progress bar."""
    from rich.progress import Progress

    from tvmtune.cli.output import console

    screen = console(stderr=True)
    quiet = not messages.shown(messages.INFO)
    screen.quiet = quiet
    with Progress(console=screen, transient=True, disable=quiet or not screen.is_terminal) as bar:
        task = bar.add_task("simulating", total=total)

        def on_run(space: MeasuredSpace, run: SimulatedRun) -> None:
            screen.print(_line(space, run), markup=False)
            bar.advance(task)

        yield on_run


def _line(space: MeasuredSpace, run: SimulatedRun) -> str:
    from tvmtune.tuning.simulation.simulate import PARTS

    reached = ", ".join(
        f"{part:.0%} after {run.reached[part]}" if part in run.reached else f"{part:.0%} never"
        for part in PARTS
    )
    missed = f"; {run.missed} not in the log" if run.missed else ""
    return f"{space}: {run.tuner}, seed {run.seed}: {reached} ({run.trials} trials{missed})"
