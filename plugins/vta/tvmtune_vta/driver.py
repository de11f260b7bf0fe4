"""Runs a library's programs: the packed function that libraries call, on a simulator or in an FPGA."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from tvmtune.errors import TvmtuneError, UsageError, nearest
from tvmtune_vta.config import Config
from tvmtune_vta.program import Program

if TYPE_CHECKING:
    from tvmtune_vta.fpga import Board


class Full(TvmtuneError):
    """No memory of the board is left for a program."""


RUN, DESCRIBE, PROGRAM = (f"tvmtune.vta.{name}" for name in ("run", "describe", "program_fpga"))
"""The packed functions: a program's :func:`blob`, its inputs, its outputs; what there is to run them;
a bitstream's path."""
KEPT = 256
"""Programs that stay ready to run: more than a network has."""
OPTIONS = ["config", "device", "memory", "registers", "base", "loaded"]
DEVICES = ["sim", "fpga"]
_DIGEST = 32

Memory = dict[int, npt.NDArray[Any]]


class Machine(Protocol):
    """A program that is ready to run."""

    def run(self, memory: Memory) -> Memory:
        """Outputs by the numbers of their buffers, of inputs by theirs."""
        ...

    def close(self) -> None: ...


@dataclass
class _Accelerator:
    """What runs the programs of this process."""

    config: Config | None = None
    """The one that it has for good; None simulates whatever a program is for."""
    board: Board | None = None
    """None for the simulator."""
    trusted: bool = False
    """Whether its bitstream is somebody else's business."""

    def machine(self, program: Program) -> Machine:
        if self.board is not None:
            from tvmtune_vta import fpga

            self._check_loaded()
            return fpga.Machine(program, self.board)
        from tvmtune_vta import quick

        return quick.Machine(program)

    def _check_loaded(self) -> None:
        """To touch registers that are not there stops some boards for good."""
        from tvmtune_vta import bitstream

        assert self.config is not None
        name = (bitstream.loaded() or {}).get("name")
        if not self.trusted and name != self.config.bitstream:
            raise TvmtuneError(
                f"the FPGA {f'has {name}' if name else 'was not loaded since the board was started'}, "
                f"and {self.config.bitstream} is needed: tvmtune vta program-fpga loads it; where "
                "something else does, serve the board with --target-attr loaded=yes."
            )


_accelerator = _Accelerator()
_ready: OrderedDict[bytes, tuple[Program, Machine]] = OrderedDict()
_lock = threading.Lock()


def register(options: dict[str, Any]) -> None:
    """Make the functions known to TVM in this process.

    ``options``: ``config``, the one that the accelerator has, a sample's name or a file. ``device``:
    ``sim``, the simulator, which without a ``config`` simulates whatever a program is for, or
    ``fpga``, for which a ``config`` is needed. For this: ``memory``, ``pynq`` or the path of a
    u-dma-buf; ``registers``, the file that is the machine's memory; ``base``, the first register's
    address there; ``loaded``, ``yes`` where somebody else loads the bitstream.
    Raises :class:`UsageError` for others, :class:`TvmtuneError` where an FPGA cannot be reached.
    """
    import tvm_ffi

    global _accelerator
    for name in options:
        if name not in OPTIONS:
            raise UsageError(f"vta: option '{name}' is not known.{nearest(name, OPTIONS)}")
    chosen = _chosen(options)
    with _lock:
        while _ready:
            _forget_oldest()
        _accelerator = chosen
    for name, function in ((RUN, run), (DESCRIBE, describe), (PROGRAM, program_fpga)):
        tvm_ffi.register_global_func(name, function, override=True)


def _chosen(options: dict[str, Any]) -> _Accelerator:
    from tvmtune_vta import target

    config = target.configuration(str(options["config"])) if "config" in options else None
    device = str(options.get("device", "sim"))
    if device not in DEVICES:
        raise UsageError(f"vta: there is no device '{device}'.{nearest(device, DEVICES)}")
    if device == "sim":
        if other := sorted(options.keys() - {"config", "device"}):
            raise UsageError(
                f"vta: {other[0]}= is for an FPGA: say --target-attr device=fpga, too."
            )
        return _Accelerator(config)
    if config is None:
        raise UsageError("vta: an FPGA has one configuration: name it with --target-attr config=.")
    from tvmtune_vta import fpga

    memory = str(options.get("memory", "pynq"))
    base = fpga.BASES.get(config.target)
    if "base" in options:
        try:
            base = int(str(options["base"]), 0)
        except ValueError:
            raise UsageError(
                f"vta: base={options['base']} is no address, as 0x43C00000 is."
            ) from None
    if base is None:
        raise UsageError(
            f"vta: where the registers of {config.target} are is not known: say it with "
            "--target-attr base=0x43C00000."
        )
    registers = fpga.Registers(str(options.get("registers", fpga.REGISTERS)), base)
    given: fpga.Memory = fpga.PynqMemory() if memory == "pynq" else fpga.DmaMemory(memory)
    board = fpga.Board(config, registers, given)
    return _Accelerator(config, board, str(options.get("loaded", "no")) == "yes")


def describe() -> str:
    """JSON: ``device``, its ``config`` (None where any is simulated), and the bitstream that was
    ``loaded`` (None where nobody knows)."""
    from tvmtune_vta import bitstream

    own = _accelerator
    return json.dumps(
        {
            "device": "sim" if own.board is None else "fpga",
            "config": None if own.config is None else own.config.as_dict(),
            "loaded": None if own.board is None else bitstream.loaded(),
        }
    )


def program_fpga(path: Any) -> None:
    """Load the FPGA with the bitstream at ``path``, which has to be for its configuration."""
    from tvmtune_vta import bitstream

    if _accelerator.board is None or _accelerator.config is None:
        raise TvmtuneError(
            "this board simulates VTA, and has nothing to load: serve it with --target-attr "
            "device=fpga."
        )
    bitstream.load(str(path), _accelerator.config)


def blob(program: Program) -> bytes:
    """A program's file behind its SHA-256, by which it is recognised."""
    data = program.to_bytes()
    return hashlib.sha256(data).digest() + data


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
    after = machine.run(memory)
    for number, tensor in zip(outputs, tensors[len(inputs) :], strict=True):
        np.copyto(_writable(tensor), after[number])


def ready() -> list[Program]:
    """The programs that this process has run, those that it ran last at the end."""
    with _lock:
        return [program for program, _ in _ready.values()]


def _prepared(blob: npt.NDArray[np.uint8]) -> tuple[Program, Machine]:
    key = blob[:_DIGEST].tobytes()
    with _lock:
        if key in _ready:
            _ready.move_to_end(key)
            return _ready[key]
        data = blob[_DIGEST:].tobytes()
        if hashlib.sha256(data).digest() != key:
            raise TvmtuneError("the library's program is damaged: compile it again.")
        program = Program.from_bytes(data, "the library's program", _accelerator.config)
        while len(_ready) >= KEPT:
            _forget_oldest()
        while True:
            try:
                machine = _accelerator.machine(program)
                break
            except Full:
                if not _ready:
                    raise
                _forget_oldest()
        _ready[key] = program, machine
        return _ready[key]


def _forget_oldest() -> None:
    _, (_, machine) = _ready.popitem(last=False)
    machine.close()


def _writable(tensor: Any) -> npt.NDArray[Any]:
    """The tensor's memory: NumPy takes what it is given by DLPack for read-only."""
    import ctypes

    shape = tuple(int(d) for d in tensor.shape)
    pointer = ctypes.cast(tensor.data_ptr(), ctypes.POINTER(ctypes.c_int8))
    return np.ctypeslib.as_array(pointer, shape)
