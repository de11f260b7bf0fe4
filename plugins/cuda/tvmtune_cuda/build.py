"""Compiles CUDA kernels to machine code in the library, with or without a GPU in this machine.

Without the CUDA runtime, TVM leaves CUDA C++ source in the library, to be compiled wherever it is
loaded. tvmtune always makes it do so, then compiles the source and replaces it with the binary:
builders need no GPU, and nothing is left to compile where the library runs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tvmtune.errors import TvmtuneError
from tvmtune.library import embedded_weights, vm_program
from tvmtune.measure import local
from tvmtune.types import Device
from tvmtune_cuda import mma_tiles, tensor_cores, toolkit
from tvmtune_cuda.target import GRAPHS
from tvmtune_cuda.toolkit import Compiler

KIND = "cuda"
_ONLY_SOURCES = "TVM_COMPILE_FORCE_FALLBACK"


def init(options: dict[str, Any]) -> None:
    """Make TVM emit CUDA source; called once in each build worker."""
    os.environ[_ONLY_SOURCES] = "1"


@contextlib.contextmanager
def sources() -> Iterator[None]:
    """Make TVM emit CUDA source in this process, even if it has CUDA's runtime."""
    before = os.environ.get(_ONLY_SOURCES)
    os.environ[_ONLY_SOURCES] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ONLY_SOURCES]
        else:
            os.environ[_ONLY_SOURCES] = before


def passes(device: Device) -> dict[str, Any]:
    """Options of TVM's PassContext for building kernels for the device."""
    return tensor_cores.PASSES if tensor_cores.NAME in device.attrs else {}


def passes_of_libraries(device: Device) -> dict[str, Any]:
    """Options of TVM's PassContext for building a network for the device."""
    return {**passes(device), "relax.backend.use_cuda_graph": device.params.get(GRAPHS, False)}


def options(device: Device) -> dict[str, Any]:
    """Options of :func:`build` besides the linker."""
    return {"compiler": toolkit.find().command, "config": passes(device)}


def build(mod: Any, target: dict[str, Any], options: dict[str, Any], directory: str) -> str:
    """As :func:`tvmtune.measure.local.build`, with the kernels compiled by ``options["compiler"]`` for
    the target's architecture."""
    if target["kind"] != KIND:  # a reference, for this machine's CPU
        return local.build(mod, target, options, directory)
    change = translate(Compiler(options["compiler"]), str(target["arch"]))

    def pack(library: Any, system_library: bool, prefix: str, workspace: str) -> str:
        packed = Path(workspace) / "devc.o"
        embedded_weights.write_object(library, [], Path(workspace) / "lib0.o", packed, change)
        return str(packed)

    return local.build(mma_tiles.insert(mod), target, options, directory, pack)


def translate(compiler: Compiler, arch: str) -> Callable[[Any, bytes], bytes]:
    """A function that replaces the CUDA sources in a library's program with machine code, for
    :func:`tvmtune.library.embedded_weights.write_object`."""

    def change(library: Any, blob: bytes) -> bytes:
        for source in _sources(library):
            binary = compiler.compile(mma_tiles.with_functions(source), arch)
            blob = vm_program.replace_device_code(
                blob, KIND, KIND, source.encode(), "cubin", binary
            )
        return blob

    return change


def _sources(library: Any) -> list[str]:
    """The sources of a module and of all modules that it imports."""
    collected = [str(library.inspect_source(KIND))] if library.kind == KIND else []
    for module in library.imports:
        collected += _sources(module)
    if not all(collected):
        raise TvmtuneError(
            "TVM emits no CUDA source for a kernel: check the versions with tvmtune doctor"
        )
    return [*dict.fromkeys(collected)]  # several modules may import the same one
