"""``tvmtune networks``: list the networks of the zoo."""

from __future__ import annotations

from typing import Any

import click

from tvmtune.cli.json_output import emit, json_flag
from tvmtune.command_help import Command


@click.command(
    "networks",
    cls=Command,
    examples=[("List the networks", "tvmtune networks"), ("Tune one", "tvmtune tune resnet-18")],
    docs="docs/networks.md",
)
@json_flag("table")
def command(as_json: bool) -> None:
    """List the networks of the zoo.

    Prints the name, the inputs (as --shape takes them) and the aliases of each. The weights are random
    but always the same, scaled to keep activations near unit variance.
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
        emit({"networks": rows})
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
