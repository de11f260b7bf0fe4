"""CUDA kernels as machine code in a library, whether or not there is a GPU here.

Without CUDA's runtime TVM leaves the source in the library, to be compiled wherever it is loaded, by
a compiler that would have to be there. Here it is always done so, and the source is then replaced:
builders need no GPU and use none, and where the library runs nothing is left to compile.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tvmtune.deploy import image, program
from tvmtune.errors import TvmtuneError
from tvmtune.measure import local
from tvmtune.types import Device
from tvmtune_cuda import tensor_cores, toolkit
from tvmtune_cuda.target import GRAPHS
from tvmtune_cuda.toolkit import Compiler

KIND = "cuda"
_ONLY_SOURCES = "TVM_COMPILE_FORCE_FALLBACK"


def init(options: dict[str, Any]) -> None:
    """Called once in each process that builds kernels: TVM hands out sources."""
    os.environ[_ONLY_SOURCES] = "1"


@contextlib.contextmanager
def sources() -> Iterator[None]:
    """TVM hands out sources, in this process too, which may have CUDA's runtime."""
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
    """What TVM's PassContext has to say wherever kernels for the device are built."""
    return tensor_cores.PASSES if tensor_cores.NAME in device.attrs else {}


def passes_of_libraries(device: Device) -> dict[str, Any]:
    """And where a whole network is."""
    return {**passes(device), "relax.backend.use_cuda_graph": device.params.get(GRAPHS, False)}


def options(device: Device) -> dict[str, Any]:
    """What :func:`build` takes besides the linker."""
    return {"compiler": toolkit.find().command, "config": passes(device)}


def build(mod: Any, target: dict[str, Any], options: dict[str, Any], directory: str) -> str:
    """As :func:`tvmtune.measure.local.build`, with the kernels compiled by ``options["compiler"]`` for
    the target's architecture."""
    if target["kind"] != KIND:  # a reference, for this machine's CPU
        return local.build(mod, target, options, directory)
    change = translate(Compiler(options["compiler"]), str(target["arch"]))

    def pack(library: Any, system_library: bool, prefix: str, workspace: str) -> str:
        packed = Path(workspace) / "devc.o"
        image.write_object(library, [], Path(workspace) / "lib0.o", packed, change)
        return str(packed)

    return local.build(mod, target, options, directory, pack)


def translate(compiler: Compiler, arch: str) -> Callable[[Any, bytes], bytes]:
    """What makes machine code of the CUDA sources in a library's program; for
    :func:`tvmtune.deploy.image.write_object`."""

    def change(library: Any, blob: bytes) -> bytes:
        for source in _sources(library):
            binary = compiler.compile(source, arch)
            blob = program.recoded(blob, KIND, KIND, source.encode(), "cubin", binary)
        return blob

    return change


def _sources(library: Any) -> list[str]:
    """Those of a module and of all that it imports."""
    found = [str(library.inspect_source(KIND))] if library.kind == KIND else []
    for module in library.imports:
        found += _sources(module)
    if not all(found):
        raise TvmtuneError(
            "TVM gives no CUDA source of a kernel: check the versions with tvmtune doctor"
        )
    return [*dict.fromkeys(found)]  # several may import the same one
