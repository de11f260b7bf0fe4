"""A session on a board: what a client can call, and the loop that serves it, in a process of its own.

Beside TVM's functions there are those whose names begin with ``tvmtune.board.``; clients ask for them
and do without on boards that TVM's own server serves.
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
"""TVM's names for what it knows of a GPU."""
_FILLER = "tvm.contrib.random.random_fill_for_measure"
"""MetaSchedule's runner fills inputs with it."""
_initialised: set[str] = set()
"""Backends for which this process is ready."""


class _Folder:
    """The session's working folder, as TVM's server wants it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.libs: list[Any] = []

    def relpath(self, name: str) -> str:
        return os.path.join(self.path, name)  # noqa: PTH118, "" stands for the folder itself

    def upload(self, name: str, data: bytes) -> None:
        """In the place of TVM's own, which takes no notice of a full disk: what is loaded then would
        end the process (SIGBUS)."""
        Path(self.relpath(name)).write_bytes(data)


def check(options: dict[str, Any]) -> None:
    """Once, before the first session: raise what would keep every session from being served."""
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
    """Raise :class:`UsageError` for options that a backend does not take: found out in a process of
    its own, with which goes whatever driver it loads. What is merely not there yet, sessions say."""
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
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    if said:
        raise UsageError(said)


def prepare(folder: Path, options: dict[str, Any]) -> Callable[[int], None]:
    """Make this process a session whose files lie in ``folder``; what it returns serves the client at
    the other end of a connection until it leaves.

    ``options``: ``libraries``, paths to load first; ``target`` and ``options``, the backend whose
    ``serve_init`` is called, and with what.
    """
    import tvm
    import tvm_ffi
    from tvm.rpc import server

    from tvmtune.farm import functions

    logging.getLogger("RPCServer").setLevel(logging.WARNING)
    files = _Folder(folder)
    server._server_env(":".join(options.get("libraries", ())), files)
    tvm_ffi.register_global_func("tvm.rpc.server.upload", files.upload, override=True)
    tvm_ffi.register_global_func(PREFIX + "describe", _describe, override=True)
    tvm_ffi.register_global_func(PREFIX + "provide", provide, override=True)
    functions.register()
    told = {options["target"]: dict(options.get("options", {}))} if options.get("target") else {}
    for backend in told:
        initialise(backend, told)
    tvm_ffi.register_global_func(
        PREFIX + "initialise", lambda backend: initialise(str(backend), told), override=True
    )
    loop: Callable[[int], None] = tvm.get_global_func("rpc.ServerLoop")
    return loop


def initialise(backend: str, options: dict[str, dict[str, Any]]) -> None:
    """Call a backend's ``serve_init``, with what the board was told for it; once."""
    from tvmtune import host

    if backend not in _initialised:
        host.backend(backend).serve_init(options.get(backend, {}))
        _initialised.add(backend)


def provide(module: str) -> None:
    """Import a module of tvmtune's and call its ``register``: functions that only some clients need."""
    if not module.startswith("tvmtune."):
        raise ValueError(f"'{module}' is not of tvmtune")
    importlib.import_module(module).register()


def _describe() -> str:
    import tvm

    from tvmtune.farm import describe

    found = describe.describe()
    # LLVM's name for the processor, where there is an LLVM
    processor = tvm.get_global_func("target.llvm_get_system_cpu", allow_missing=True)
    if processor is not None:
        found["mcpu"] = str(processor())
    found["gpus"] = _gpus()
    return json.dumps(found)


def _gpus() -> list[dict[str, Any]]:
    """The accelerators that TVM's runtime finds, with what it knows of them, and under ``details`` what
    a backend's runtime tells beyond that (a packed function ``tvmtune.KIND.describe``, which returns
    JSON)."""
    import tvm

    found: list[dict[str, Any]] = []
    for kind in ("cuda", "rocm", "opencl", "vulkan", "metal"):
        for index in range(_MOST_GPUS):
            with contextlib.suppress(Exception):  # a driver may be there in part
                device = tvm.device(kind, index)
                if not device.exist:
                    break
                asked = {name: getattr(device, name, None) for name in _GPU}
                found.append({"kind": kind, "index": index, **asked})
        more = tvm.get_global_func(f"tvmtune.{kind}.describe", allow_missing=True)
        if more is not None:
            with contextlib.suppress(Exception):
                details = {row["id"]: row for row in json.loads(str(more()))["devices"]}
                for row in found:
                    if row["kind"] == kind:
                        row["details"] = details.get(row["index"])
    return found
