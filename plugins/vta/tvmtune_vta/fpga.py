"""VTA in an FPGA: its registers, and the memory that it shares with the CPU.

Registers and their meaning are those of VTA's hardware repository (``config/pkg_config.py`` and
``src/pynq/pynq_driver.cc``): four pages, for fetch, load, compute and store. Nothing of this has been
run on a board; the tests hold it against a device in software behind the same registers.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tvmtune.errors import TvmtuneError
from tvmtune_vta import clock
from tvmtune_vta.config import Config
from tvmtune_vta.program import ALIGNMENT, Program

BASES = {"pynq": 0x43C00000, "ultra96": 0xA0000000, "zcu104": 0xA0000000, "de10nano": 0xFF220000}
"""Physical address of the first page, by the configuration's TARGET."""
REGISTERS = "/dev/mem"
PAGE = 0x1000
FETCH, LOAD, COMPUTE, STORE = (n * PAGE for n in range(4))
CONTROL = 0x00
COUNT, INSTRUCTIONS = FETCH + 0x10, FETCH + 0x18
DONE = COMPUTE + 0x18
ORIGINS = (LOAD + 0x10, LOAD + 0x18, COMPUTE + 0x20, COMPUTE + 0x28, STORE + 0x10)
"""What the addresses in instructions count from: inputs, weights, uops, biases, outputs."""
START, AUTORESTART, FINISHED = 0x01, 0x81, 1
PATIENCE, LEAST = 50.0, 1.0
"""A program may take so many times what the model says, and at least so many seconds."""
SETTLE = 2e-3
"""Seconds within which compute has taken its first instruction, if it ever does."""
SYSFS = Path("/sys/class/u-dma-buf")
_REACH = 1 << 32


class Full(TvmtuneError):
    """No memory of the board is left for a program."""


class Region(Protocol):
    """Contiguous memory that both sides see."""

    array: npt.NDArray[np.uint8]
    address: int
    """Physical, of its first byte."""

    def flush(self) -> None:
        """Let the accelerator see what was written."""
        ...

    def invalidate(self) -> None:
        """See what the accelerator has written."""
        ...

    def free(self) -> None: ...


class Memory(Protocol):
    """Gives regions."""

    def allocate(self, size: int) -> Region:
        """At least ``size`` bytes, at a multiple of :data:`ALIGNMENT`. Raises :class:`TvmtuneError`
        where there are not so many."""
        ...


class Registers:
    """The four pages, mapped from a file that is the machine's physical memory."""

    def __init__(self, path: str | os.PathLike[str], base: int) -> None:
        """Raises :class:`TvmtuneError` where the file cannot be mapped."""
        try:
            self._map = _mapped(path, 4 * PAGE, base)
        except (OSError, ValueError) as error:
            raise TvmtuneError(
                f"VTA's registers cannot be reached in {path}: {error}. Serve the board as root."
            ) from None
        # one access of 32 bits each, whatever Python makes of slices
        self._words = (ctypes.c_uint32 * PAGE).from_buffer(self._map)

    def write(self, offset: int, value: int) -> None:
        self._words[offset // 4] = value

    def read(self, offset: int) -> int:
        return int(self._words[offset // 4])


class Board:
    """One accelerator, which runs one program at a time."""

    def __init__(self, config: Config, registers: Registers, memory: Memory) -> None:
        self.config, self.registers, self.memory = config, registers, memory
        self._lock = threading.Lock()

    def run(self, address: int, count: int, limit: float) -> None:
        """Run ``count`` instructions that lie at ``address``. Raises :class:`TvmtuneError` where they
        have not ended after ``limit`` seconds."""
        with self._lock:
            before = self.registers.read(DONE)
            self.registers.write(COUNT, count)
            self.registers.write(INSTRUCTIONS, address)
            for offset in ORIGINS:
                self.registers.write(offset, 0)
            self.registers.write(FETCH + CONTROL, START)
            for page in (LOAD, COMPUTE, STORE):
                self.registers.write(page + CONTROL, AUTORESTART)
            if before == FINISHED:  # of the last program, until compute takes its first instruction
                self._wait(lambda done: done != FINISHED, SETTLE)
            if not self._wait(lambda done: done == FINISHED, limit):
                raise TvmtuneError(
                    f"the accelerator has not ended after {limit:.1f} s: is a bitstream "
                    f"{self.config.bitstream} loaded?"
                )

    def _wait(self, wanted: Callable[[int], bool], limit: float) -> bool:
        end = time.monotonic() + limit
        while not wanted(self.registers.read(DONE)):
            if time.monotonic() > end:
                return False
            time.sleep(0)
        return True


class Machine:
    """A program in the memory of a board; stands in for :class:`tvmtune_vta.quick.Machine`."""

    def __init__(self, program: Program, board: Board) -> None:
        self.program, self.board = program, board
        sizes = [program.instructions.nbytes, program.uops.nbytes]
        sizes += [buffer.nbytes for buffer in program.buffers]
        places = np.cumsum([0, *(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)]).tolist()
        self._region = board.memory.allocate(places[-1])
        self._places, start = places[2:-1], self._region.address
        try:
            if start + places[-1] > _REACH:
                raise TvmtuneError(f"memory at {start:#x} is beyond the accelerator's 32 bits.")
            words = program.link([start + place for place in self._places], start + places[1])
            self._put(places[0], words)
            self._put(places[1], program.uops)
            for number, buffer in enumerate(program.buffers):
                zeros = np.zeros(buffer.shape, buffer.dtype)
                self._put(self._places[number], program.contents.get(number, zeros))
        except BaseException:
            self._region.free()
            raise
        self._limit = max(LEAST, PATIENCE * clock.model(program).seconds)

    def run(self, memory: Mapping[int, npt.NDArray[Any]]) -> dict[int, npt.NDArray[Any]]:
        """The outputs, by their numbers, after a run on ``memory``, which maps operands to arrays of
        their buffers' types and shapes."""
        for number, array in memory.items():
            self._put(self._places[number], array)
        self._region.flush()
        self.board.run(self._region.address, len(self.program.instructions), self._limit)
        self._region.invalidate()
        return {
            number: self._get(self._places[number], buffer.dtype, buffer.shape)
            for number, buffer in enumerate(self.program.buffers)
            if buffer.role == "output"
        }

    def close(self) -> None:
        """Give the memory back."""
        self._region.free()

    def _put(self, place: int, array: npt.NDArray[Any]) -> None:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._region.array[place : place + data.nbytes] = data

    def _get(self, place: int, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        size = np.dtype(dtype).itemsize * int(np.prod(shape))
        return self._region.array[place : place + size].view(dtype).reshape(shape).copy()


class PynqMemory:
    """What the Python package of boards with PYNQ allocates."""

    def allocate(self, size: int) -> Region:
        try:
            import pynq
        except ImportError:
            raise TvmtuneError(
                "the board has no package pynq, which gives memory that the accelerator sees: take "
                "an image with PYNQ, or u-dma-buf and --target-attr memory=/dev/udmabuf0."
            ) from None
        try:
            return _PynqRegion(pynq.allocate(shape=(size + ALIGNMENT,), dtype="u1"))
        except (MemoryError, RuntimeError, OSError) as error:
            raise _full(size, str(error)) from None


class _PynqRegion:
    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        first = -int(buffer.device_address) % ALIGNMENT
        self.array: npt.NDArray[np.uint8] = np.asarray(buffer)[first:]
        self.address = int(buffer.device_address) + first

    def flush(self) -> None:
        self._buffer.flush()

    def invalidate(self) -> None:
        self._buffer.invalidate()

    def free(self) -> None:
        self._buffer.freebuffer()


class DmaMemory:
    """A device of the kernel module u-dma-buf, mapped without caches and shared out first come, first
    served (https://github.com/ikwzm/udmabuf)."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises :class:`TvmtuneError` where there is no such device."""
        path = Path(path)
        try:
            told = SYSFS / path.name
            self.size = int((told / "size").read_text())
            self.address = int((told / "phys_addr").read_text(), 16)
            self._map = _mapped(path, self.size)
        except (OSError, ValueError) as error:
            raise TvmtuneError(
                f"{path} is no memory of the kernel module u-dma-buf: {error}. Is it loaded?"
            ) from None
        self.array = np.frombuffer(self._map, np.uint8)
        first = -self.address % ALIGNMENT
        self.holes = [(first, self.size)]
        """Begin and end of what is free, in order."""

    def allocate(self, size: int) -> Region:
        size = -(-size // ALIGNMENT) * ALIGNMENT
        for number, (begin, end) in enumerate(self.holes):
            if end - begin >= size:
                self.holes[number] = (begin + size, end)
                return _DmaRegion(self, begin, size)
        free = sum(end - begin for begin, end in self.holes)
        raise _full(size, f"{free} of {self.size} bytes are free")

    def take_back(self, begin: int, size: int) -> None:
        holes = sorted([*self.holes, (begin, begin + size)])
        self.holes = holes[:1]
        for each in holes[1:]:
            if self.holes[-1][1] == each[0]:
                self.holes[-1] = (self.holes[-1][0], each[1])
            else:
                self.holes.append(each)


class _DmaRegion:
    def __init__(self, memory: DmaMemory, begin: int, size: int) -> None:
        self._memory, self._begin, self._size = memory, begin, size
        self.array = memory.array[begin : begin + size]
        self.address = memory.address + begin

    def flush(self) -> None:
        """Nothing is cached."""

    def invalidate(self) -> None:
        """Nothing is cached."""

    def free(self) -> None:
        self._memory.take_back(self._begin, self._size)


def _mapped(path: str | os.PathLike[str], size: int, offset: int = 0) -> mmap.mmap:
    """A part of a device's memory, without caches."""
    descriptor = os.open(path, os.O_RDWR | os.O_SYNC)
    try:
        return mmap.mmap(descriptor, size, offset=offset)
    finally:
        os.close(descriptor)


def _full(size: int, why: str) -> Full:
    return Full(
        f"the board has no {size} bytes of contiguous memory for a program: {why}. Enlarge it (the "
        "kernel's cma=, or u-dma-buf's size)."
    )
