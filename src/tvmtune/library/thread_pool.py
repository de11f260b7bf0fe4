"""The thread pool of a library for x86-64: ``thread_pool.ll``, compiled and linked with the kernels.

Libraries for other machines use the pool of TVM's runtime.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune.library import llvm_ir
from tvmtune.machine.triples import processor

if TYPE_CHECKING:
    from tvmtune.types import Device

SETTER = "tvmtune_threads"
"""A function of the library: sets the number of threads if its argument is positive, and returns it."""
LAUNCH = "__TVMBackendParallelLaunch"
"""The pointer that kernels call. TVM's runtime sets it to its own pool wherever it finds it."""
LIMIT = 256
"""Threads at most."""

_SOURCE = Path(__file__).with_suffix(".ll")


def is_supported(device: Device) -> bool:
    """Whether libraries for the device get a pool of their own."""
    is_x86_64 = processor(device.mtriple or platform.machine()) == "x86_64"
    return is_x86_64 and llvm_ir.can_link(device)


def write_object(path: Path, device: Device) -> str:
    """Write the object file of a pool with as many threads as the device has; returns its path."""
    return llvm_ir.write_filled(
        _SOURCE, path, device, THREADS=device.threads, LIMIT=LIMIT, SETTER=SETTER
    )


def set_threads(module: Any, threads: int) -> int | None:
    """Have a loaded library compute with ``threads`` threads. Returns the number that it uses, or None
    if it has no pool of its own and uses TVM's."""
    try:
        function = module.get_function(SETTER, query_imports=True)
    except AttributeError:
        return None
    return int(function(threads))
