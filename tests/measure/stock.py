"""Run TVM's own tracker and servers until terminated: ``stock.py TRACKER KEY PORT...``."""

from __future__ import annotations

import signal
import sys

from tvmtune import block_torch_import

block_torch_import.install()  # a quicker start

from tvm.rpc.server import Server  # noqa: E402
from tvm.rpc.tracker import Tracker  # noqa: E402


def main(tracker_port: int, key: str, ports: list[int]) -> None:
    host = "127.0.0.1"
    tracker = Tracker(host, port=tracker_port, port_end=tracker_port + 1, silent=True)
    servers = [
        Server(host, port, port + 1, key=key, tracker_addr=(host, tracker_port), silent=True)
        for port in ports
    ]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("stock tracker and servers are up", flush=True)
    try:
        signal.pause()
    finally:
        for server in servers:
            server.terminate()
        tracker.terminate()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], [int(port) for port in sys.argv[3:]])
