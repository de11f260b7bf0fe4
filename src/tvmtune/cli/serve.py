"""``tvmtune serve``: offer this machine as a board for tuning and benchmarking."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from tvmtune.cli.options import (
    PATH,
    check_if_open,
    host_option,
    insecure_option,
    port,
    tracker_option,
)
from tvmtune.cli.parsing import parse_pairs
from tvmtune.cli.tracker import report
from tvmtune.command_help import Command, section
from tvmtune.remote.protocol import SERVER_PORTS


@click.command(
    "serve",
    cls=Command,
    examples=[
        (
            "Register this board with a tracker",
            "tvmtune serve --key rk3588 --tracker 192.168.1.2:9190 --host 0.0.0.0 "
            "--secret-file ~/.tvmtune-secret",
        ),
        (
            "Serve clients that connect through SSH (--remote ssh://USER@HOST)",
            "tvmtune serve --key rk3588",
        ),
    ],
    docs="docs/farm.md, docs/arm.md, docs/mali.md",
)
@section(
    "Board",
    click.option(
        "--key",
        metavar="KEY",
        required=True,
        help="Name that boards of this kind share, e.g. rk3399.",
    ),
    tracker_option("Tracker to register with.", default="none; clients connect directly"),
)
@section(
    "Address",
    host_option,
    click.option(
        "--port",
        type=int,
        metavar="PORT",
        callback=port,
        show_default=f"the first free port from {SERVER_PORTS[0]} on",
        help="Port to listen on.",
    ),
    click.option(
        "--address",
        metavar="HOST",
        show_default="the address that the tracker sees",
        help="Host that clients connect to instead of this one, e.g. where a tunnel to it starts.",
    ),
    insecure_option,
)
@section(
    "Sessions",
    click.option(
        "--target", metavar="NAME", help="Backend to initialize in each session, e.g. mali or vta."
    ),
    click.option(
        "--target-attr",
        multiple=True,
        metavar="K=V",
        help="Attribute for that backend. Repeatable.",
    ),
    click.option(
        "--load-library",
        "libraries",
        multiple=True,
        type=PATH,
        metavar="FILE",
        help="Shared library to load into each session. Repeatable.",
    ),
)
def command(
    key: str,
    tracker: str | None,
    host: str,
    insecure: bool,
    port: int | None,
    address: str | None,
    target: str | None,
    target_attr: tuple[str, ...],
    libraries: tuple[Path, ...],
) -> None:
    """Make this machine a board, for others to tune and benchmark on.

    Runs until interrupted. Each client's code runs in a process of its own, so a crash, a hang or a
    leak does not affect the next client. TVM's own RPC clients and trackers work, too.
    """
    from tvmtune.errors import TvmtuneError, UsageError
    from tvmtune.remote import access
    from tvmtune.remote.protocol import Address, check_key
    from tvmtune.remote.server.server import BoardServer, ServerConfig

    if sys.platform != "linux":
        raise TvmtuneError(
            "tvmtune serve runs on Linux only; elsewhere try TVM's own server: "
            f"python -m tvm.exec.rpc_server --key {key}"
        )
    check_key(key)
    for path in libraries:
        if not path.is_file():
            raise UsageError(f"--load-library: there is no file {path}")
    check_if_open(host, "server", insecure)
    config = ServerConfig(
        key=key,
        host=host,
        ports=SERVER_PORTS if port is None else range(port, port + 1),
        tracker=Address.parse(tracker) if tracker else None,
        custom_address=address,
        secret=access.secret(),
        session_options={
            "libraries": [str(path.resolve()) for path in libraries],
            "target": target,
            "options": parse_pairs("--target-attr", target_attr),
        },
    )
    tracker_at = config.tracker
    if tracker_at and not tracker_at.is_local and Address(host, 1).is_local and not address:
        report(
            f"warning: the tracker at {tracker_at} will send clients to this machine's address on the "
            f"network, but the server listens only at {host}. Give --host ADDRESS, or open a tunnel "
            "and give --address the host where it starts (docs/farm.md)."
        )
    if tracker_at is None:
        report("not registered with a tracker (--tracker HOST:PORT)")
    server = BoardServer(config, report)
    if tracker_at is None and Address(host, server.port).is_local:
        own = "" if server.port == SERVER_PORTS[0] else f"/{server.port}"
        report(f"other machines reach it with --remote ssh://[USER@]HOST{own}")
    asyncio.run(server.run())
