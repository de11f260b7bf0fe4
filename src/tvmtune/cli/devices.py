"""``tvmtune devices``: the boards that a tracker knows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from tvmtune.cli.options import above_zero, tracker_option

if TYPE_CHECKING:
    from tvmtune.farm.devices import Probe, Queue


@click.command("devices")
@tracker_option("The tracker to ask.")
@click.option(
    "--probe",
    is_flag=True,
    help="Borrow each board for a moment: is it there, does its TVM fit, what is it?",
)
@click.option(
    "--wait",
    default=10.0,
    show_default=True,
    callback=above_zero,
    help="Seconds to wait for boards in use.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def command(tracker: str | None, probe: bool, wait: float, as_json: bool) -> None:
    """List the boards: their key, how many there are, are free, and are waited for.

    Exits with 1 if a board that was probed cannot be used.
    """
    from tvmtune.farm import devices
    from tvmtune.farm.protocol import Tracker, tracker_address

    address = tracker_address(tracker)
    with Tracker(address) as line:
        rows = devices.queues(line)
    probes = devices.probe_all(address, rows, wait) if probe else []
    if as_json:
        document = {
            "tracker": str(address),
            "boards": [row.to_json() for row in rows],
            "probes": [each.to_json() for each in probes],
        }
        click.echo(json.dumps(document, indent=2))
    else:
        _show(rows, probes)
    if any(not each.usable for each in probes):
        raise SystemExit(1)


def _show(rows: list[Queue], probes: list[Probe]) -> None:
    from rich.table import Table
    from rich.text import Text

    from tvmtune.cli.output import console

    if not rows:
        click.echo("no board is registered")
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
    found = Table()
    for column in ("key", "address", "round trip", "board", "CPUs", "features, GPUs", "TVM"):
        found.add_column(column)
    for each in probes:
        if not each.reachable:
            trouble = Text(each.message, style="red")
            found.add_row(Text(each.key), each.address, "-", trouble, "", "", "")
            continue
        told = each.described or {}
        versions = told.get("versions", {})
        found.add_row(
            Text(each.key),
            each.address,
            f"{1e3 * (each.seconds or 0):.1f} ms",
            # whoever serves a board may call it, and its parts, anything
            Text(each.message, style="red")
            if each.message
            else Text(str(told.get("cpu", "not told"))),
            _cpus(told),
            Text(" ".join([*each.features, *each.gpus])),
            Text(str(versions.get("apache-tvm") or "-")),
        )
    console().print(found)


def _cpus(told: dict[str, object]) -> str:
    """``4`` or, where there are several kinds of cores, ``2+4``."""
    groups = told.get("clusters") or []
    assert isinstance(groups, list)
    return "+".join(str(len(g["cpus"])) for g in groups) or str(told.get("cpus", "-"))
