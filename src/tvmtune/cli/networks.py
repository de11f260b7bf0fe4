"""``tvmtune networks``: list the networks of the zoo."""

from __future__ import annotations

import json
from typing import Any

import click


@click.command("networks")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(as_json: bool) -> None:
    """List the networks of the zoo.

    For each: name, inputs as --shape takes them, other names. Their weights are random but fixed,
    scaled to keep activations near unit variance.
    """
    from tvmtune.networks.zoo import ZOO

    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "input": [1, *entry.sample],
            "inputs": list(entry.inputs),
            "aliases": list(entry.aliases),
        }
        for name, entry in sorted(ZOO.items())
    ]
    if as_json:
        click.echo(json.dumps({"networks": rows}, indent=2))
        return
    from rich.table import Table

    from tvmtune.cli.output import console

    table = Table()
    for column in ("network", "inputs", "aliases"):
        table.add_column(column)
    for row in rows:
        shape = "x".join(map(str, row["input"]))
        inputs = "\n".join(f"{name}:{shape}" for name in row["inputs"])
        table.add_row(row["name"], inputs, ", ".join(row["aliases"]))
    console().print(table)
