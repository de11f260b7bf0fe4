"""``tvmtune tracker``: run the tracker that boards register with."""

from __future__ import annotations

import asyncio
import contextlib

import click

from tvmtune.cli.options import check_if_open, host_option, insecure_option, port, secret_option
from tvmtune.remote.protocol import TRACKER_PORT


@click.command("tracker")
@host_option
@secret_option("Serve only clients and boards that know the secret in FILE.")
@insecure_option
@click.option(
    "--port",
    metavar="PORT",
    default=TRACKER_PORT,
    show_default=True,
    callback=port,
    help="Port to listen on.",
)
def command(host: str, insecure: bool, port: int) -> None:
    """Run a tracker for boards to register with.

    Runs TVM's RPC tracker until interrupted, and restarts it if it dies or hangs. Boards register
    with it (tvmtune serve); tune, bench and run find them through it.
    """
    from tvmtune.remote.protocol import Address
    from tvmtune.remote.tracker import TrackerSupervisor

    check_if_open(host, "tracker", insecure)
    asyncio.run(TrackerSupervisor(Address(host, port), report).run())


def report(message: str) -> None:
    """Print a line to stderr. If that fails, boards and their clients must not suffer."""
    with contextlib.suppress(OSError):
        click.echo(message, err=True)
