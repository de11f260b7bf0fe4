"""A session on a board: the functions that a client can call, and the loop that serves it.

Each session is a process of its own.

Beside TVM's functions there are those whose names begin with ``tvmtune.board.``; boards that TVM's
own server serves do not have them.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tvmtune.errors import UsageError

PREFIX = "tvmtune.board."
_MOST_GPUS = 16
_GPU = (
    *("device_name", "compute_version", "multi_processor_count", "max_threads_per_block"),
    *("max_shared_memory_per_block", "warp_size", "total_global_memory"),
)
"""TVM's names of GPU properties."""
_FILLER = "tvm.contrib.random.random_fill_for_measure"
"""MetaSchedule's runner fills inputs with this function."""
_initialized: set[str] = set()
"""Backends whose ``serve_init`` this process has called."""


class _Folder:
    """The session's working folder, with the interface that TVM's server expects."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.libs: list[Any] = []

    def relpath(self, name: str) -> str:
        return os.path.join(self.path, name)  # noqa: PTH118, "" is the folder itself

    def upload(self, name: str, data: bytes) -> None:
        """Replaces TVM's own, which ignores a full disk; loading such a file would kill the process
        (SIGBUS)."""
        Path(self.relpath(name)).write_bytes(data)


def check(options: dict[str, Any]) -> None:
    """Raise anything that would prevent every session; called once, before the first."""
    import tvm

    if tvm.get_global_func("rpc.ServerLoop", allow_missing=True) is None:
        raise RuntimeError("its TVM was built without RPC")
    if tvm.get_global_func(_FILLER, allow_missing=True) is None:
        # A TVM without its compiler does not load this part of its runtime by itself.
        with contextlib.suppress(OSError):
            ctypes.CDLL(
                str(Path(tvm.__file__).parent / "lib" / "libtvm_runtime_extra.so"), os.RTLD_GLOBAL
            )
    if options.get("target"):
        from tvmtune import host

        host.backend(options["target"])
        if options.get("options"):
            _try(options["target"], dict(options["options"]))


def _try(backend: str, options: dict[str, Any]) -> None:
    """Raise :class:`UsageError` for options that a backend rejects. A child process tries them, so
    that no driver stays loaded here. Other failures may pass, such as a missing device: sessions
    report those."""
    from tvmtune import host

    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            host.backend(backend).serve_init(options)
        except UsageError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        message = pipe.read().decode()
    os.waitpid(pid, 0)
    if message:
        raise UsageError(message)


def prepare(folder: Path, options: dict[str, Any]) -> Callable[[int], None]:
    """Make this process a session with its files in ``folder``. Returns a function that serves the
    client of a connection until it leaves.

    ``options``: ``libraries``, paths to load first; ``target`` and ``options``, the backend whose
    ``serve_init`` is called, and its options.
    """
    import tvm
    import tvm_ffi
    from tvm.rpc import server

    from tvmtune.remote import board_functions

    logging.getLogger("RPCServer").setLevel(logging.WARNING)
    files = _Folder(folder)
    server._server_env(":".join(options.get("libraries", ())), files)
    tvm_ffi.register_global_func("tvm.rpc.server.upload", files.upload, override=True)
    tvm_ffi.register_global_func(PREFIX + "describe", _describe, override=True)
    tvm_ffi.register_global_func(PREFIX + "provide", provide, override=True)
    board_functions.register()
    target = options.get("target")
    board_options = {target: dict(options.get("options", {}))} if target else {}
    for backend in board_options:
        initialize(backend, board_options)
    tvm_ffi.register_global_func(
        PREFIX + "initialise",
        lambda backend: initialize(str(backend), board_options),
        override=True,
    )
    loop: Callable[[int], None] = tvm.get_global_func("rpc.ServerLoop")
    return loop


def initialize(backend: str, options: dict[str, dict[str, Any]]) -> None:
    """Call a backend's ``serve_init`` once, with the board's options for it."""
    from tvmtune import host

    if backend not in _initialized:
        host.backend(backend).serve_init(options.get(backend, {}))
        _initialized.add(backend)


def provide(module: str) -> None:
    """Import a tvmtune module and call its ``register``, for functions that only some clients need."""
    if not module.startswith("tvmtune."):
        raise ValueError(f"'{module}' is not a tvmtune module")
    importlib.import_module(module).register()


def _describe() -> str:
    import tvm

    from tvmtune.machine import describe, processor

    description = describe.describe()
    # LLVM's name for the processor, where there is an LLVM
    if tvm.get_global_func("target.llvm_get_system_cpu", allow_missing=True) is not None:
        description["mcpu"] = processor.name()
    description["gpus"] = _gpus()
    return json.dumps(description)


def _gpus() -> list[dict[str, Any]]:
    """The accelerators that TVM's runtime finds, and their properties; ``details`` are further ones
    from a backend's runtime (a packed function ``tvmtune.KIND.describe``, which returns JSON)."""
    import tvm

    gpus: list[dict[str, Any]] = []
    for kind in ("cuda", "rocm", "opencl", "vulkan", "metal"):
        for index in range(_MOST_GPUS):
            with contextlib.suppress(Exception):  # a driver may be incomplete
                device = tvm.device(kind, index)
                if not device.exist:
                    break
                properties = {name: getattr(device, name, None) for name in _GPU}
                gpus.append({"kind": kind, "index": index, **properties})
        more = tvm.get_global_func(f"tvmtune.{kind}.describe", allow_missing=True)
        if more is not None:
            with contextlib.suppress(Exception):
                details = {row["id"]: row for row in json.loads(str(more()))["devices"]}
                for row in gpus:
                    if row["kind"] == kind:
                        row["details"] = details.get(row["index"])
    return gpus
