"""``tvmtune tasks``: what there is to tune in a network."""

from __future__ import annotations

import json
from typing import Any

import click

from tvmtune.cli.options import make_plan, network_options


@click.command("tasks")
@network_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(as_json: bool, **network: Any) -> None:
    """List a network's tasks: index, name, output shape, weight, GFLOP, keys, implementations."""
    plan = make_plan(**network)
    rows = [
        {
            "index": t.index,
            "name": t.name,
            "weight": t.weight,
            "gflop": t.flop / 1e9,
            "workload_key": t.key,
            "anchor_key": t.anchor_key,
            "args": [{"name": a.name, "shape": list(a.shape), "dtype": a.dtype} for a in t.args],
            "implementations": [
                {"name": i.name, "workload_key": i.workload_key, "exact": i.exact}
                for i in t.implementations
            ],
        }
        for t in plan.tasks
    ]
    if as_json:
        described = {
            "network": plan.network.name,
            "layout": plan.prepared.layout,
            "device": plan.device.to_json(),
            "tasks": rows,
        }
        click.echo(json.dumps(described, indent=2))
        return

    from rich.table import Table

    from tvmtune.cli.output import console

    total = sum(t.weight * t.flop for t in plan.tasks)
    table = Table(
        title=f"{plan.network.name} ({plan.prepared.layout}) on {plan.device.model}, "
        f"{plan.device.threads} threads: {len(rows)} tasks, {total / 1e9:.3f} GFLOP"
    )
    for column in ("#", "name", "output", "weight", "GFLOP", "key", "implementations"):
        table.add_column(column, justify="left" if column in ("name", "output") else "right")
    for task in plan.tasks:
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
