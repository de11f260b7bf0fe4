"""``tvmtune inspect``: show a library's metadata without loading it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tvmtune.cli.json_output import emit, json_flag
from tvmtune.cli.output import counted
from tvmtune.command_help import Command
from tvmtune.library import state
from tvmtune.networks import quantization


@click.command(
    "inspect",
    cls=Command,
    examples=[
        (
            "Show what a library was compiled from, and for which device",
            "tvmtune inspect mobilenet.so",
        ),
        ("Print one field", "tvmtune inspect mobilenet.so --json | jq .threads"),
    ],
    docs="docs/deploy.md",
)
@click.argument("library", metavar="LIB", type=click.Path(path_type=Path))
@json_flag("summary and table")
def command(library: Path, as_json: bool) -> None:
    """Print the metadata of a library without loading it.

    LIB may be compiled for any device. --json prints all metadata.
    """
    from tvmtune.library import metadata

    stored, machine = metadata.read_any(library)
    if as_json:
        emit(stored)
        return
    lines = list(_lines(stored, machine))
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        click.echo(f"{name:<{width}}  {value}")
    rows = stored["tasks"]["list"]
    if rows:
        click.echo()
        _table(rows)
    quantized = stored["network"]["source"].get(quantization.KEY, {})
    if quantized.get("layers"):
        click.echo()
        _layer_table(quantized)


def _lines(stored: dict[str, Any], machine: str) -> Iterator[tuple[str, str]]:
    network, device, tasks = stored["network"], stored["device"], stored["tasks"]
    yield "network", f"{network['name']}, layout {network['layout']}"
    for name, value in network["source"].items():
        if name == quantization.KEY:
            quantization.check(value, network["name"])
            yield f"  {name}", quantization.describe(value)
            continue
        yield f"  {name}", json.dumps(value) if isinstance(value, dict) else str(value)
    yield "  structure", network["structure_hash"]
    yield "  weights", network["weights_hash"]
    for part, specs in zip(("inputs", "outputs", "state"), state.split(stored), strict=True):
        for index, spec in enumerate(specs):
            shape = "x".join(map(str, spec["shape"])) or "scalar"
            yield "" if index else part, f"{spec['name']}: {shape} {spec['dtype']}"
    yield "device", f"{device['backend']}: {device.get('model') or 'unnamed'}"
    yield "  machine", machine
    yield "  target", json.dumps(device["target"])
    chosen = {**device.get("params", {}), **device["attrs"]}
    if enabled := [name for name, value in chosen.items() if value is True]:
        yield "  with", ", ".join(enabled)
    if stored.get("cpu_features"):
        yield "  needs", ", ".join(stored["cpu_features"])
    yield "threads", str(stored["threads"])
    yield (
        "tasks",
        f"{tasks['total']}: {tasks['exact']} with their own record, "
        f"{tasks['anchor']} with that of a similar task, "
        f"{tasks.get('shipped', 0)} with a shipped record, "
        f"{tasks['default']} with the default schedule",
    )
    if stored.get("estimate_ms") is not None:
        yield "estimate", f"{stored['estimate_ms']:.3f} ms"
    check = stored.get("check")
    summary = "none"
    if check:
        summary = f"{counted(len(check['outputs']), 'output')}, seed {check['seed']}"
    yield "check", summary
    versions = ", ".join(f"{name} {v}" for name, v in stored["versions"].items() if v)
    yield "versions", versions
    when = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(stored["created"]))
    host = stored.get("machine", {})
    yield "compiled", f"{when}, on {host.get('cpu', 'an unknown machine')}"


def _layer_table(quantized: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from tvmtune.cli.output import console

    table = Table()
    table.add_column("", justify="right")
    table.add_column("layer", overflow="fold")
    table.add_column("operator")
    table.add_column("computed in")
    table.add_column("SQNR dB", justify="right")
    skipped = set(quantized.get("skipped", ()))
    for place, layer in enumerate(quantized["layers"]):
        sqnr = layer["sqnr"]
        table.add_row(
            str(place),
            Text(layer["name"]),
            Text(layer["operator"]),
            "float" if layer["name"] in skipped else "int8",
            "" if sqnr is None else f"{sqnr:.1f}",
        )
    console().print(table)


def _table(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from tvmtune.cli.output import console

    table = Table()
    table.add_column("task", overflow="fold")
    table.add_column("weight", justify="right")
    table.add_column("implementation")
    table.add_column("record")
    table.add_column("us", justify="right")
    table.add_column("GFLOPS", justify="right")
    for row in rows:
        latency = row.get("latency")
        table.add_row(
            Text(row["name"]),
            str(row["weight"]),
            Text(row["implementation"]),
            Text(row["record"]),
            "" if latency is None else f"{1e6 * latency:.1f}",
            f"{row['flop'] / latency / 1e9:.1f}" if latency and row["flop"] else "",
        )
    console().print(table)
