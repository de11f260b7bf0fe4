"""``tvmtune tasks``: list the tasks of a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tvmtune.cli.json_output import emit, json_flag
from tvmtune.cli.options import network_options, tasks_option
from tvmtune.cli.parsing import select_tasks
from tvmtune.cli.resolve import make_plan
from tvmtune.command_help import Command, section

if TYPE_CHECKING:
    from tvmtune.spaces.knobs import Knob
    from tvmtune.tasks.plan import Plan
    from tvmtune.types import Task

    Spaces = dict[str, list[list[Knob]]]
    """The knobs of each design, by implementation."""


@click.command(
    "tasks",
    cls=Command,
    examples=[
        ("List the tasks of a network of the zoo", "tvmtune tasks resnet-18"),
        (
            "Show the knobs of the three with the most FLOP",
            "tvmtune tasks resnet-18 --tasks top3 --space",
        ),
    ],
    docs="docs/networks.md, docs/json.md",
)
@network_options("List the tasks for boards:")
@section(
    "What to print",
    tasks_option,
    click.option("--dag", is_flag=True, help="Also print the computation of each task."),
    click.option(
        "--space", is_flag=True, help="Also print the size and knobs of each design space."
    ),
)
@section("General", json_flag("table"))
def command(only: str | None, dag: bool, space: bool, as_json: bool, **network: Any) -> None:
    """List the tasks of a network.

    A task is a fused kernel. Prints the index, name, output shape, weight (number of calls), GFLOP, key
    and implementations of each.
    """
    plan = make_plan(**network, purpose="describe")
    tasks = select_tasks(plan.tasks, only)
    spaces = {task.index: _spaces(plan, task) for task in tasks} if space else {}
    if as_json:
        described = {
            "network": plan.network.name,
            "layout": plan.prepared.layout,
            "device": plan.device.to_json(),
            "tasks": [_row(task, dag, spaces.get(task.index)) for task in tasks],
        }
        emit(described)
        return
    _table(plan, tasks)
    for task in tasks:
        if dag or space:
            click.echo(f"\ntask {task.index}: {task.name}")
        if dag:
            from tvmtune.tasks.dag import stages

            for line in stages(task.implementations[0].mod):
                click.echo(f"  {line}")
        for name, designs in spaces.get(task.index, {}).items():
            _print_space(task, name, designs)


def _spaces(plan: Plan, task: Task) -> Spaces:
    import tvm

    from tvmtune.spaces.knobs import designs

    target = tvm.target.Target(plan.device.target)
    return {i.name: designs(i, target) for i in task.implementations}


def _row(task: Task, dag: bool, spaces: Spaces | None) -> dict[str, Any]:
    from tvmtune.spaces.knobs import size
    from tvmtune.tasks.dag import stages

    row: dict[str, Any] = {
        "index": task.index,
        "name": task.name,
        "weight": task.weight,
        "gflop": task.flop / 1e9,
        "workload_key": task.key,
        "anchor_key": task.anchor_key,
        "args": [each.to_json() for each in task.args],
        "implementations": [
            {"name": i.name, "workload_key": i.workload_key, "exact": i.exact}
            for i in task.implementations
        ],
    }
    if dag:
        row["dag"] = stages(task.implementations[0].mod)
    for implementation in row["implementations"] if spaces else ():
        designs = (spaces or {})[implementation["name"]]
        implementation["space"] = {
            "size": sum(map(size, designs)),
            "exact": all(k.options is not None for knobs in designs for k in knobs),
            "designs": [[k.to_json() for k in knobs] for knobs in designs],
        }
    return row


def _table(plan: Plan, tasks: list[Task]) -> None:
    from rich.table import Table

    from tvmtune.cli.output import console, counted

    total = sum(t.weight * t.flop for t in tasks)
    table = Table(
        title=f"{plan.network.name} ({plan.prepared.layout}) on {plan.device.model}, "
        f"{plan.device.threads} threads: {counted(len(tasks), 'task')}, {total / 1e9:.4g} GFLOP",
        title_justify="left",
    )
    for column in ("#", "name", "output", "weight", "GFLOP", "key", "implementations"):
        table.add_column(
            column, justify="left" if column in ("name", "output", "implementations") else "right"
        )
    for task in tasks:
        table.add_row(
            str(task.index),
            task.name,
            "x".join(map(str, task.args[-1].shape)),
            str(task.weight),
            f"{task.flop / 1e9:.4f}",
            task.key,
            ", ".join(i.name for i in task.implementations),
        )
    console().print(table)


def _print_space(task: Task, name: str, designs: list[list[Knob]]) -> None:
    """Print the knobs of one implementation, design by design."""
    from tvmtune.cli.output import counted
    from tvmtune.spaces.knobs import size

    open_ended = any(k.options is None for knobs in designs for k in knobs)
    points = sum(map(size, designs))
    click.echo(
        f"  {name}: {'at least ' if open_ended else ''}{counted(points, 'point')}"
        + (f" in {len(designs)} designs" if len(designs) > 1 else "")
    )
    for number, knobs in enumerate(designs):
        indent = "    "
        if len(designs) > 1:
            click.echo(f"{indent}design {number}: {size(knobs):,}")
            indent += "  "
        for knob in knobs:
            many = "depends" if knob.options is None else f"{knob.options:,}"
            click.echo(f"{indent}{knob.name:24} {knob.kind:8} {many:>8}  {knob.what}")
