"""The packed functions that libraries call, in this process, on whatever accelerator it was given."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tvmtune.errors import TvmtuneError
from tvmtune_vta import accelerator
from tvmtune_vta.accelerator import Shelf
from tvmtune_vta.program import Program

RUN, DESCRIBE, PROGRAM = (f"tvmtune.vta.{name}" for name in ("run", "describe", "program_fpga"))
"""The packed functions: a program's :func:`blob`, its inputs, its outputs; what there is to run them;
a bitstream's path."""
_DIGEST = 32

shelf = Shelf(accelerator.Simulated())
"""What libraries of this process have run."""
_recording: list[Program] | None = None


def register(options: dict[str, Any]) -> None:
    """Make the functions known to TVM in this process, for the accelerator that
    :func:`tvmtune_vta.accelerator.choose` makes of ``options``, with its errors."""
    import tvm_ffi

    global shelf
    chosen = Shelf(accelerator.choose(options))
    shelf.clear()
    shelf = chosen
    for name, function in ((RUN, run), (DESCRIBE, describe), (PROGRAM, program_fpga)):
        tvm_ffi.register_global_func(name, function, override=True)


def describe() -> str:
    """JSON of :meth:`tvmtune_vta.accelerator.Accelerator.describe`."""
    return json.dumps(shelf.accelerator.describe())


def program_fpga(path: Any) -> None:
    """Load the FPGA with the bitstream at ``path``, which has to be for its configuration."""
    shelf.program_fpga(str(path))


def blob(program: Program) -> bytes:
    """A program's file behind its digest."""
    data = program.to_bytes()
    return accelerator.digest(data) + data


def run(blob: Any, *tensors: Any) -> None:
    """Run a program: ``blob`` is its digest and file, ``tensors`` its inputs and then its outputs,
    int8 in VTA's layout."""
    words = np.from_dlpack(blob).view(np.uint8)
    found = shelf.get(words[:_DIGEST].tobytes(), words[_DIGEST:].tobytes)
    assert found is not None, "its file was given"
    program, machine = found
    inputs, outputs = program.numbers("input"), program.numbers("output")
    if len(tensors) != len(inputs) + len(outputs):
        raise TvmtuneError(
            f"the program '{program.name}' has {len(inputs)} inputs and {len(outputs)} outputs, and "
            f"was called with {len(tensors)} tensors."
        )
    memory = {n: np.from_dlpack(t) for n, t in zip(inputs, tensors, strict=False)}
    after = machine.run(memory)
    for number, tensor in zip(outputs, tensors[len(inputs) :], strict=True):
        np.copyto(_writable(tensor), after[number])
    if _recording is not None:
        held = {number: array.copy() for number, array in memory.items()}
        wanted = {number: np.array(after[number]) for number in outputs}
        _recording.append(replace(program, contents={**program.contents, **held}, expected=wanted))


@contextlib.contextmanager
def recorded() -> Iterator[list[Program]]:
    """Collects the programs that run meanwhile, with what went into them and came out."""
    global _recording
    found: list[Program] = []
    _recording = found
    try:
        yield found
    finally:
        _recording = None


def _writable(tensor: Any) -> npt.NDArray[Any]:
    """The tensor's memory: NumPy takes what it is given by DLPack for read-only."""
    import ctypes

    shape = tuple(int(d) for d in tensor.shape)
    pointer = ctypes.cast(tensor.data_ptr(), ctypes.POINTER(ctypes.c_int8))
    return np.ctypeslib.as_array(pointer, shape)
