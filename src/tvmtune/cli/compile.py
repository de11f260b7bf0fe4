"""``tvmtune compile``: a network and its records become a library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tvmtune.cli.options import (
    PATH,
    check_library,
    check_writable,
    make_plan,
    network_name,
    network_options,
)


@click.command("compile")
@network_options
@click.option("--log", "logs", multiple=True, type=PATH, help="Records to use; may be repeated.")
@click.option("-o", "--output", type=PATH, help="The library; default NETWORK.so.")
@click.option("--seed", default=0, show_default=True, help="Seed of the stored reference outputs.")
@click.option("--emit-module", type=PATH, help="Write the prepared Relax module as TVMScript.")
def command(
    logs: tuple[Path, ...],
    output: Path | None,
    seed: int,
    emit_module: Path | None,
    **network: Any,
) -> None:
    """Compile a network, with the records of a log, into a library.

    Tasks without a record get a sound default schedule.
    """
    from tvmtune.records.log import read_log

    given = network_name(network["network"], network["positional"])
    for path in logs:
        read_log(path)  # a wrong log fails before anything slow begins
    if output is not None:
        check_library("-o", output, *logs, given)
    if emit_module is not None:
        check_writable("--emit-module", emit_module, output, *logs, given)
    plan = make_plan(**network)
    target = output or Path(f"{plan.network.name}.so")
    check_library("-o", target, *logs, given)

    from tvmtune import api
    from tvmtune.deploy.atomic import write_text

    if emit_module is not None:
        write_text(emit_module, plan.prepared.graph.script(show_meta=False))
    compiled = api.compile(plan, target, logs, check_seed=seed)
    click.echo(describe(compiled))


def describe(compiled: Any) -> str:
    """One line: the library and how many of its tasks found a record."""
    counts = compiled.counts
    total = compiled.metadata["tasks"]["total"]
    size = compiled.path.stat().st_size / 1e6
    return (
        f"{compiled.path}: {size:.1f} MB, {total} tasks: {counts['exact']} with a record, "
        f"{counts['anchor']} with one of the same anchor, {counts['default']} by default schedule; "
        f"{compiled.metadata['threads']} threads"
    ) + (
        f"\n{compiled.given_up} of the tasks got a kernel that rounds less than their quickest: "
        "together those were off by more than is allowed"
        if compiled.given_up
        else ""
    )
