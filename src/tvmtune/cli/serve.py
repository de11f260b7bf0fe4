"""``tvmtune serve``: this machine as a board that others tune and time on."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from tvmtune.cli.options import PATH, host_option, parse_pairs, port, tracker_option, warn_if_open
from tvmtune.cli.tracker import say
from tvmtune.farm.protocol import SERVER_PORTS


@click.command("serve")
@click.option("--key", required=True, help="What the board is called, e.g. rk3399.")
@tracker_option("Tracker to register with; without it, clients have to know this address.")
@host_option
@click.option(
    "--port",
    type=int,
    callback=port,
    help=f"Port to listen on; by default the first free one from {SERVER_PORTS[0]} on.",
)
@click.option(
    "--address",
    metavar="HOST",
    help="What clients connect to, where that is not what the tracker sees (a tunnel, two networks).",
)
@click.option("--target", help="A backend that sessions prepare for, e.g. mali or vta.")
@click.option("--target-attr", multiple=True, metavar="K=V", help="What that backend is told.")
@click.option(
    "--load-library",
    "libraries",
    multiple=True,
    type=PATH,
    metavar="FILE",
    help="Load a library into every session; may be repeated.",
)
def command(
    key: str,
    tracker: str | None,
    host: str,
    port: int | None,
    address: str | None,
    target: str | None,
    target_attr: tuple[str, ...],
    libraries: tuple[Path, ...],
) -> None:
    """Serve this machine as a board until interrupted.

    Whatever a client runs here, runs in a process of its own: it may crash, hang or leak, and the
    next client is served all the same. TVM's own clients and trackers work with it, too.
    """
    from tvmtune.errors import TvmtuneError, UsageError
    from tvmtune.farm.protocol import Address, check_key
    from tvmtune.farm.server import Server, Serving

    if sys.platform != "linux":
        raise TvmtuneError(
            "boards are served on Linux alone; elsewhere TVM's own server may do: "
            f"python -m tvm.exec.rpc_server --key {key}"
        )
    check_key(key)
    for path in libraries:
        if not path.is_file():
            raise UsageError(f"--load-library: there is no file {path}.")
    warn_if_open(host, "server")
    serving = Serving(
        key=key,
        host=host,
        ports=SERVER_PORTS if port is None else range(port, port + 1),
        tracker=Address.parse(tracker) if tracker else None,
        custom_address=address,
        nursery={
            "libraries": [str(path.resolve()) for path in libraries],
            "target": target,
            "options": parse_pairs("--target-attr", target_attr),
        },
    )
    where = serving.tracker
    if where and not where.is_local and Address(host, 1).is_local and not address:
        say(
            f"warning: the tracker at {where} will send clients to this machine's address on the "
            f"network, but the server listens at {host} alone. Give --host ADDRESS, or run a tunnel "
            "and say where it begins with --address (docs/farm.md)."
        )
    if where is None:
        say("not registered with any tracker: --tracker HOST:PORT lets clients find this board")
    server = Server(serving, say)
    asyncio.run(server.run())
