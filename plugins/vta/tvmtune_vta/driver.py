"""Runs a library's programs on the simulator: what the packed function of :mod:`tvmtune_vta.pack`
does."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tvmtune.errors import TvmtuneError
from tvmtune_vta.layers import DIGEST
from tvmtune_vta.pack import RUN
from tvmtune_vta.program import Program

KEPT = 16
"""Programs that stay ready to run."""

Memory = dict[int, npt.NDArray[Any]]
_ready: OrderedDict[bytes, tuple[Program, Callable[[Memory], Memory]]] = OrderedDict()
_lock = threading.Lock()


def register() -> None:
    """Make the function known to TVM in this process."""
    import tvm_ffi

    tvm_ffi.register_global_func(RUN, run, override=True)


def run(blob: Any, *tensors: Any) -> None:
    """Run a program: ``blob`` is its digest and file, ``tensors`` its inputs and then its outputs,
    int8 in VTA's layout."""
    program, machine = _prepared(np.from_dlpack(blob).view(np.uint8))
    roles = [buffer.role for buffer in program.buffers]
    inputs = [n for n, role in enumerate(roles) if role == "input"]
    outputs = [n for n, role in enumerate(roles) if role == "output"]
    if len(tensors) != len(inputs) + len(outputs):
        raise TvmtuneError(
            f"the program '{program.name}' has {len(inputs)} inputs and {len(outputs)} outputs, and "
            f"was called with {len(tensors)} tensors."
        )
    memory = {n: np.from_dlpack(t) for n, t in zip(inputs, tensors, strict=False)}
    after = machine(memory)
    for number, tensor in zip(outputs, tensors[len(inputs) :], strict=True):
        np.copyto(_writable(tensor), after[number])


def _prepared(blob: npt.NDArray[np.uint8]) -> tuple[Program, Callable[[Memory], Memory]]:
    key = blob[:DIGEST].tobytes()
    with _lock:
        if key in _ready:
            _ready.move_to_end(key)
            return _ready[key]
        program = Program.from_bytes(blob[DIGEST:].tobytes(), "the library's program")
        _ready[key] = program, _machine(program)
        if len(_ready) > KEPT:
            _ready.popitem(last=False)
        return _ready[key]


def _machine(program: Program) -> Callable[[Memory], Memory]:
    from tvmtune_vta.quick import Machine

    return Machine(program).run


def _writable(tensor: Any) -> npt.NDArray[Any]:
    """The tensor's memory: NumPy takes what it is given by DLPack for read-only."""
    import ctypes

    shape = tuple(int(d) for d in tensor.shape)
    pointer = ctypes.cast(tensor.data_ptr(), ctypes.POINTER(ctypes.c_int8))
    return np.ctypeslib.as_array(pointer, shape)
