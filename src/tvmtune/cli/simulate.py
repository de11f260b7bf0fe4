"""``tvmtune simulate``: tuners compared on a space that was measured in full, without a device."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tvmtune.cli import completion
from tvmtune.cli.options import (
    PATH,
    check_writable,
    json_option,
    not_negative,
    parse_pairs,
    positive,
    select_tasks,
    tasks_option,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tvmtune.tuning.logged import Measured
    from tvmtune.tuning.simulate import Run, Simulation


@click.command("simulate")
@click.argument("log", type=PATH)
@click.option(
    "--tuner",
    "wanted",
    multiple=True,
    default=["xgb"],
    show_default=True,
    metavar="NAME",
    help="A tuner of tvmtune tune, or metaschedule for MetaSchedule's own search; may be repeated.",
    shell_complete=completion.completer(completion.simulated),
)
@click.option(
    "--tuner-option",
    multiple=True,
    metavar="K=V",
    help="An option for those of the tuners that have it, e.g. population=256 (xgb).",
)
@click.option(
    "--trials", type=int, callback=positive, help="Trials per run; default: the whole space."
)
@click.option(
    "--seeds", default=10, show_default=True, callback=positive, help="Runs, a seed for each."
)
@click.option(
    "--seed", default=0, show_default=True, callback=not_negative, help="Seed of the first run."
)
@tasks_option
@json_option("tables")
def command(
    log: Path,
    wanted: Sequence[str],
    tuner_option: tuple[str, ...],
    trials: int | None,
    seeds: int,
    seed: int,
    only: str | None,
    json_file: Path | None,
) -> None:
    """Compare tuners on the spaces that LOG holds in full: trials until they come near the best.

    Latencies come from LOG; nothing is built or run, and the same seeds give the same result. A log
    of tvmtune tune FILE.py --tuner grid holds such a space.
    """
    from tvmtune import system
    from tvmtune.tuning import simulate

    options = parse_pairs("--tuner-option", tuner_option)
    chosen = simulate.check(wanted, options)
    if json_file is not None and str(json_file) != "-":
        check_writable("--json", json_file, log)
    system.check_pins()
    from tvmtune.deploy import atomic
    from tvmtune.records.log import read_log
    from tvmtune.tuning import logged

    read = read_log(log)
    found = logged.spaces_of(read)
    tasks = list({m.task.key: m.task for m in found}.values())
    keys = {task.key for task in select_tasks(tasks, only)}
    spaces, refused = simulate.full_spaces(read, [m for m in found if m.task.key in keys])
    for reason in refused:
        click.echo(f"left out, as it was not measured in full: {reason}", err=True)
    with _progress(len(spaces) * len(chosen) * seeds) as on_run:
        result = simulate.simulate(
            read,
            chosen,
            spaces=spaces,
            seeds=range(seed, seed + seeds),
            trials=trials,
            on_run=on_run,
        )
    if json_file is not None and str(json_file) == "-":
        click.echo(json.dumps(result.to_json(), indent=2))
        return
    if json_file is not None:
        atomic.write_text(json_file, json.dumps(result.to_json(), indent=2) + "\n")
    _show(result)


def _show(result: Simulation) -> None:
    """A table per space, and one over all where there are several."""
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


def _table(result: Simulation, spaces: Sequence[Measured]) -> None:
    from rich.table import Table

    from tvmtune.cli.output import console
    from tvmtune.tuning.simulate import PARTS

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
def _progress(total: int) -> Iterator[Callable[[Measured, Run], None]]:
    """A line per run on stderr, and in a terminal a bar below them."""
    from rich.progress import Progress

    from tvmtune.cli.output import console

    screen = console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("simulating", total=total)

        def on_run(space: Measured, run: Run) -> None:
            screen.print(_line(space, run), markup=False)
            bar.advance(task)

        yield on_run


def _line(space: Measured, run: Run) -> str:
    from tvmtune.tuning.simulate import PARTS

    reached = ", ".join(
        f"{part:.0%} after {run.reached[part]}" if part in run.reached else f"{part:.0%} never"
        for part in PARTS
    )
    missed = f"; {run.missed} not in the log" if run.missed else ""
    return f"{space}: {run.tuner}, seed {run.seed}: {reached} ({run.trials} trials{missed})"
