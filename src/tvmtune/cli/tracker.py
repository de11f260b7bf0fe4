"""``tvmtune tracker``: run the tracker that boards register with."""

from __future__ import annotations

import asyncio
import contextlib

import click

from tvmtune.cli import messages
from tvmtune.cli.options import check_if_open, host_option, insecure_option, port, secret_option
from tvmtune.command_help import Command
from tvmtune.remote.protocol import TRACKER_PORT


@click.command(
    "tracker",
    cls=Command,
    examples=[
        ("For boards that reach this machine through SSH tunnels", "tvmtune tracker"),
        (
            "For boards on the network",
            "tvmtune tracker --host 0.0.0.0 --secret-file ~/.tvmtune-secret",
        ),
    ],
    docs="docs/farm.md",
)
@host_option
@click.option(
    "--port",
    metavar="PORT",
    default=TRACKER_PORT,
    show_default=True,
    callback=port,
    help="Port to listen on.",
)
@secret_option("File with a secret that clients and boards must know.")
@insecure_option
def command(host: str, insecure: bool, port: int) -> None:
    """Run the tracker that boards register with.

    Runs until interrupted, and restarts TVM's RPC tracker if it dies or hangs. Boards register with
    it (tvmtune serve); tune, bench and run find them through it.
    """
    from tvmtune.remote.protocol import Address
    from tvmtune.remote.tracker import TrackerSupervisor

    check_if_open(host, "tracker", insecure)
    asyncio.run(TrackerSupervisor(Address(host, port), report).run())


def report(message: str) -> None:
    """Print a line to stderr. If that fails, boards and their clients must not suffer."""
    with contextlib.suppress(OSError):
        if message.startswith("warning"):
            messages.warning(message)
        else:
            messages.info(message)
