"""A session on a board: what a client can call, and the loop that serves it. Runs in a process of its own.

Beside TVM's functions there are those whose names begin with ``tvmtune.board.``; clients ask for them and
do without on boards that TVM's own server serves.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

PREFIX = "tvmtune.board."


class _Folder:
    """The session's working folder, as TVM's server wants it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.libs: list[Any] = []

    def relpath(self, name: str) -> str:
        return str(self.path / Path(name).name)


def serve(connection: int, folder: Path, options: dict[str, Any]) -> None:
    """Serve the client at the other end of ``connection`` until it leaves.

    ``options``: ``libraries``, paths to load first; ``target`` and ``options``, the backend whose
    ``serve_init`` is called, and with what.
    """
    import tvm
    import tvm_ffi
    from tvm.rpc import server

    logging.getLogger("RPCServer").setLevel(logging.WARNING)
    server._server_env(":".join(options.get("libraries", ())), _Folder(folder))
    tvm_ffi.register_global_func(PREFIX + "describe", _describe, override=True)
    if options.get("target"):
        from tvmtune import host

        host.backend(options["target"]).serve_init(dict(options.get("options", {})))
    tvm.get_global_func("rpc.ServerLoop")(connection)


def _describe() -> str:
    from tvmtune.farm import describe

    return json.dumps(describe.describe())
