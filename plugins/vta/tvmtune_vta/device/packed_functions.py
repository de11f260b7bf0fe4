"""The packed functions that libraries call, bound to this process's accelerator."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tvmtune.errors import TvmtuneError
from tvmtune_vta.device.options import open_accelerator
from tvmtune_vta.device.program_cache import ProgramCache
from tvmtune_vta.device.simulated import SimulatedAccelerator
from tvmtune_vta.hardware.program import Program, digest

RUN, DESCRIBE, PROGRAM = (f"tvmtune.vta.{name}" for name in ("run", "describe", "program_fpga"))
"""Names of the packed functions :func:`run`, :func:`describe` and :func:`program_fpga`."""
_DIGEST_BYTES = 32

cache = ProgramCache(SimulatedAccelerator())
"""The programs that libraries in this process have run."""
_recording: list[Program] | None = None


def register(options: dict[str, Any]) -> None:
    """Register the functions with TVM, bound to the accelerator that ``options`` describe
    (:func:`tvmtune_vta.device.options.open_accelerator`, with its errors)."""
    import tvm_ffi

    global cache
    opened = ProgramCache(open_accelerator(options))
    cache.clear()
    cache = opened
    for name, function in ((RUN, run), (DESCRIBE, describe), (PROGRAM, program_fpga)):
        tvm_ffi.register_global_func(name, function, override=True)


def describe() -> str:
    """JSON of :meth:`tvmtune_vta.device.accelerator.Accelerator.describe`."""
    return json.dumps(cache.accelerator.describe())


def program_fpga(path: Any) -> None:
    """Load the FPGA with the bitstream at ``path``, which must match its configuration."""
    cache.program_fpga(str(path))


def blob(program: Program) -> bytes:
    """A program's digest followed by its file."""
    data = program.to_bytes()
    return digest(data) + data


def run(blob: Any, *tensors: Any) -> None:
    """Run a program: ``blob`` as :func:`blob` makes it, ``tensors`` its inputs and then its outputs,
    int8 in VTA's layout."""
    words = np.from_dlpack(blob).view(np.uint8)
    entry = cache.get(words[:_DIGEST_BYTES].tobytes(), words[_DIGEST_BYTES:].tobytes)
    assert entry is not None, "loaded on a miss"
    program, loaded = entry
    inputs, outputs = program.numbers("input"), program.numbers("output")
    if len(tensors) != len(inputs) + len(outputs):
        raise TvmtuneError(
            f"the program '{program.name}' has {len(inputs)} inputs and {len(outputs)} outputs, and "
            f"was called with {len(tensors)} tensors"
        )
    memory = {n: np.from_dlpack(t) for n, t in zip(inputs, tensors, strict=False)}
    after = loaded.run(memory)
    for number, tensor in zip(outputs, tensors[len(inputs) :], strict=True):
        np.copyto(_writable(tensor), after[number])
    if _recording is not None:
        given = {number: array.copy() for number, array in memory.items()}
        expected = {number: np.array(after[number]) for number in outputs}
        _recording.append(
            replace(program, contents={**program.contents, **given}, expected=expected)
        )


@contextlib.contextmanager
def recorded() -> Iterator[list[Program]]:
    """Collect the programs that run in this context, with their inputs and outputs."""
    global _recording
    programs: list[Program] = []
    _recording = programs
    try:
        yield programs
    finally:
        _recording = None


def _writable(tensor: Any) -> npt.NDArray[Any]:
    """The tensor's memory as a writable array: NumPy imports DLPack tensors read-only."""
    import ctypes

    shape = tuple(int(d) for d in tensor.shape)
    pointer = ctypes.cast(tensor.data_ptr(), ctypes.POINTER(ctypes.c_int8))
    return np.ctypeslib.as_array(pointer, shape)
