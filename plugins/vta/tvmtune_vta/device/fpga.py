"""VTA in the FPGA of this board: its registers, and programs in shared memory.

Registers follow VTA's hardware repository (``config/pkg_config.py``, ``src/pynq/pynq_driver.cc``): four
pages, for fetch, load, compute and store. This driver is untested on hardware; the tests run it against
a software model of the device behind the same registers.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tvmtune.errors import TvmtuneError
from tvmtune_vta.device import bitstream
from tvmtune_vta.device.accelerator import LoadedProgram, description
from tvmtune_vta.device.contiguous_memory import Allocator, map_device
from tvmtune_vta.hardware import rules
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.hardware.program import ALIGNMENT, Program, alignment
from tvmtune_vta.timing import time_model

BASES = {"pynq": 0x43C00000, "ultra96": 0xA0000000, "zcu104": 0xA0000000, "de10nano": 0xFF220000}
"""Physical address of the first page, by the configuration's TARGET."""
REGISTERS = "/dev/mem"
PAGE = 0x1000
FETCH, LOAD, COMPUTE, STORE = (n * PAGE for n in range(4))
CONTROL = 0x00
COUNT, INSTRUCTIONS = FETCH + 0x10, FETCH + 0x18
DONE = COMPUTE + 0x18
ORIGINS = (LOAD + 0x10, LOAD + 0x18, COMPUTE + 0x20, COMPUTE + 0x28, STORE + 0x10)
"""Base addresses that instructions are relative to: inputs, weights, uops, biases, outputs."""
START, AUTORESTART, FINISHED = 0x01, 0x81, 1
TIMEOUT_FACTOR, MIN_TIMEOUT = 50.0, 1.0
"""A program's timeout: a multiple of its modelled time, and at least so many seconds."""
SETTLE = 2e-3
"""Seconds for compute to start its first instruction."""
_ADDRESS_SPACE = 1 << 32


class Registers:
    """The four pages, mapped from a file of physical memory such as ``/dev/mem``."""

    def __init__(self, path: str | os.PathLike[str], base: int) -> None:
        """Raises :class:`TvmtuneError` if the file cannot be mapped."""
        try:
            self._map = map_device(path, 4 * PAGE, base)
        except (OSError, ValueError) as error:
            raise TvmtuneError(
                f"VTA's registers cannot be mapped from {path}: {error}. Serve the board as root."
            ) from None
        # ctypes makes each access a single one of 32 bits, which slices of the map do not promise
        self._words = (ctypes.c_uint32 * PAGE).from_buffer(self._map)

    def write(self, offset: int, value: int) -> None:
        self._words[offset // 4] = value

    def read(self, offset: int) -> int:
        return int(self._words[offset // 4])


class FpgaBoard:
    """The registers and the memory of one accelerator, which runs one program at a time."""

    def __init__(self, config: Config, registers: Registers, memory: Allocator) -> None:
        self.config, self.registers, self.memory = config, registers, memory
        self._lock = threading.Lock()

    def run(self, address: int, count: int, limit: float) -> None:
        """Run ``count`` instructions at ``address``. Raises :class:`TvmtuneError` if they do not
        finish within ``limit`` seconds."""
        with self._lock:
            before = self.registers.read(DONE)
            self.registers.write(COUNT, count)
            self.registers.write(INSTRUCTIONS, address)
            for offset in ORIGINS:
                self.registers.write(offset, 0)
            self.registers.write(FETCH + CONTROL, START)
            for page in (LOAD, COMPUTE, STORE):
                self.registers.write(page + CONTROL, AUTORESTART)
            if before == FINISHED:  # of the last program, until compute starts an instruction
                self._wait(lambda done: done != FINISHED, SETTLE)
            if not self._wait(lambda done: done == FINISHED, limit):
                raise TvmtuneError(
                    f"the accelerator has not finished after {limit:.1f} s: is a bitstream "
                    f"{self.config.bitstream} loaded?"
                )

    def _wait(self, condition: Callable[[int], bool], limit: float) -> bool:
        end = time.monotonic() + limit
        while not condition(self.registers.read(DONE)):
            if time.monotonic() > end:
                return False
            time.sleep(0)
        return True


class FpgaProgram:
    """A program in the memory of a board."""

    def __init__(self, program: Program, board: FpgaBoard) -> None:
        self.program, self.board = program, board
        sizes = [program.instructions.nbytes, program.uops.nbytes]
        sizes += [buffer.nbytes for buffer in program.buffers]
        unit = alignment(program.config)
        places = np.cumsum([0, *(-(-size // unit) * unit for size in sizes)]).tolist()
        self._region = board.memory.allocate(places[-1] + unit - ALIGNMENT)
        first = -self._region.address % unit
        places = [first + place for place in places]
        self._places, start = places[2:-1], self._region.address
        self._instructions = start + places[0]
        try:
            if start + places[-1] > _ADDRESS_SPACE:
                raise TvmtuneError(
                    f"memory at {start:#x} exceeds the accelerator's 32-bit addresses"
                )
            words = program.link([start + place for place in self._places], start + places[1])
            self._put(places[0], words)
            self._put(places[1], program.uops)
            for number, buffer in enumerate(program.buffers):
                zeros = np.zeros(buffer.shape, buffer.dtype)
                self._put(self._places[number], program.contents.get(number, zeros))
        except BaseException:
            self._region.free()
            raise
        self._limit = max(
            MIN_TIMEOUT, TIMEOUT_FACTOR * time_model.program_timeline(program).seconds
        )

    def run(self, memory: Mapping[int, npt.NDArray[Any]]) -> dict[int, npt.NDArray[Any]]:
        """The outputs by buffer number, after a run on ``memory``, which maps buffer numbers to
        arrays of their dtypes and shapes."""
        for number, array in memory.items():
            self._put(self._places[number], array)
        self._region.flush()
        self.board.run(self._instructions, len(self.program.instructions), self._limit)
        self._region.invalidate()
        return {
            number: self._get(self._places[number], buffer.dtype, buffer.shape)
            for number, buffer in enumerate(self.program.buffers)
            if buffer.role == "output"
        }

    def close(self) -> None:
        """Free the memory."""
        self._region.free()

    def _put(self, place: int, array: npt.NDArray[Any]) -> None:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._region.array[place : place + data.nbytes] = data

    def _get(self, place: int, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        size = np.dtype(dtype).itemsize * int(np.prod(shape))
        return self._region.array[place : place + size].view(dtype).reshape(shape).copy()


class FpgaAccelerator:
    """VTA in the FPGA of this board.

    ``trusted``: the bitstream is loaded by other means, so its name is not checked.
    ``check_programs``: check programs against the hardware's rules before they run, as compiling a
    library does.
    """

    def __init__(
        self, board: FpgaBoard, *, trusted: bool = False, check_programs: bool = False
    ) -> None:
        self.board, self._trusted, self._check_programs = board, trusted, check_programs

    @property
    def config(self) -> Config:
        return self.board.config

    def load(self, program: Program) -> LoadedProgram:
        """Raises :class:`TvmtuneError` unless the FPGA is known to be loaded: accessing registers that
        do not exist hangs some boards until they are power-cycled."""
        name = (bitstream.loaded() or {}).get("name")
        if not self._trusted and name != self.config.bitstream:
            state = f"has {name}" if name else "has not been loaded since the board was started"
            raise TvmtuneError(
                f"the FPGA {state}, and {self.config.bitstream} is needed: load it with tvmtune vta "
                "program-fpga, or serve the board with loaded=yes if it is loaded by other means"
            )
        if self._check_programs:
            rules.check(program)
        return FpgaProgram(program, self.board)

    def describe(self) -> dict[str, Any]:
        return description("fpga", self.config, bitstream.loaded())

    def program_fpga(self, path: str) -> None:
        bitstream.load(path, self.config)
