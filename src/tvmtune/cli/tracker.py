"""``tvmtune tracker``: where boards register and users find them."""

from __future__ import annotations

import asyncio
import contextlib

import click

from tvmtune.cli.options import host_option, port, warn_if_open
from tvmtune.farm.protocol import TRACKER_PORT


@click.command("tracker")
@host_option
@click.option(
    "--port", default=TRACKER_PORT, show_default=True, callback=port, help="Port to listen on."
)
def command(host: str, port: int) -> None:
    """Run TVM's RPC tracker until it is interrupted; it is started again if it dies.

    Boards register with it (tvmtune serve); tune, bench and run find them through it.
    """
    from tvmtune.farm.protocol import Address
    from tvmtune.farm.tracker import Supervised

    warn_if_open(host, "tracker")
    asyncio.run(Supervised(Address(host, port), say).run())


def say(message: str) -> None:
    """Tell whoever looks; boards and their clients are not to suffer where nobody does."""
    with contextlib.suppress(OSError):
        click.echo(message, err=True)
