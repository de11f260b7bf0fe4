"""``tvmtune devices``: list the boards of a tracker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tvmtune.cli import messages
from tvmtune.cli.json_output import emit, json_flag
from tvmtune.cli.options import tracker_option, wait_option
from tvmtune.command_help import Command

if TYPE_CHECKING:
    from tvmtune.remote.client.boards import KeySummary, Probe


@click.command(
    "devices",
    cls=Command,
    examples=[
        ("List the boards", "tvmtune devices --tracker 192.168.1.2:9190"),
        ("Check each board", "tvmtune devices --probe --wait 30s"),
    ],
    docs="docs/farm.md",
)
@tracker_option("Tracker to query.")
@click.option(
    "--probe",
    is_flag=True,
    help="Lease each board briefly, to check that it responds and runs the same version of TVM, and "
    "to show its hardware.",
)
@wait_option("10s", "How long to wait for a board that is in use.")
@json_flag("tables")
def command(tracker: str | None, probe: bool, wait: float, as_json: bool) -> None:
    """List the boards registered with a tracker.

    Prints, for each key, how many boards there are, how many are free, and how many clients wait.
    Exits with 1 if a probed board cannot be used.
    """
    from tvmtune.remote.client import boards
    from tvmtune.remote.protocol import Tracker, tracker_address

    address = tracker_address(tracker)
    with Tracker(address) as connection:
        rows = boards.queues(connection)
    probes = boards.probe_all(address, rows, wait) if probe else []
    if as_json:
        document = {
            "tracker": str(address),
            "boards": [row.to_json() for row in rows],
            "probes": [each.to_json() for each in probes],
        }
        emit(document)
    else:
        _show(rows, probes)
    if any(not each.usable for each in probes):
        raise SystemExit(1)


def _show(rows: list[KeySummary], probes: list[Probe]) -> None:
    from rich.table import Table
    from rich.text import Text

    from tvmtune.cli.output import console

    if not rows:
        click.echo("no board is registered")
        messages.info("on a board, run tvmtune serve --key KEY --tracker HOST:PORT")
        return
    table = Table()
    table.add_column("key")
    for column in ("total", "free", "pending"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(Text(row.key), str(row.total), str(row.free), str(row.pending))
    console().print(table)
    if not probes:
        return
    details = Table()
    for column in ("key", "address", "round trip", "board", "CPUs", "features, GPUs", "TVM"):
        details.add_column(column)
    for each in probes:
        if not each.reachable:
            trouble = Text(each.message, style="red")
            details.add_row(Text(each.key), each.address, "-", trouble, "", "", "")
            continue
        described = each.described or {}
        versions = described.get("versions", {})
        details.add_row(
            Text(each.key),
            each.address,
            f"{1e3 * (each.seconds or 0):.1f} ms",
            # Text, because a board may give itself and its parts any name.
            Text(each.message, style="red")
            if each.message
            else Text(str(described.get("cpu", "unknown"))),
            _cpus(described),
            Text(" ".join([*each.features, *each.gpus])),
            Text(str(versions.get("apache-tvm") or "-")),
        )
    console().print(details)


def _cpus(described: dict[str, object]) -> str:
    """``4``, or ``2+4`` for two kinds of cores."""
    groups = described.get("clusters") or []
    assert isinstance(groups, list)
    return "+".join(str(len(g["cpus"])) for g in groups) or str(described.get("cpus", "-"))
