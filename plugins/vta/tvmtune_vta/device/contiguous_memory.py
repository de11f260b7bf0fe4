"""Physically contiguous memory that the CPU and the FPGA share."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tvmtune.errors import TvmtuneError
from tvmtune_vta.hardware.program import ALIGNMENT

SYSFS = Path("/sys/class/u-dma-buf")


class OutOfContiguousMemory(TvmtuneError):
    """The board has no contiguous memory left for a program."""


class MemoryRegion(Protocol):
    """Contiguous memory that both sides see."""

    array: npt.NDArray[np.uint8]
    address: int
    """Physical address of its first byte."""

    def flush(self) -> None:
        """Make the CPU's writes visible to the accelerator."""
        ...

    def invalidate(self) -> None:
        """Make the accelerator's writes visible to the CPU."""
        ...

    def free(self) -> None: ...


class Allocator(Protocol):
    """Allocates memory regions."""

    def allocate(self, size: int) -> MemoryRegion:
        """At least ``size`` bytes, aligned to :data:`ALIGNMENT`. Raises
        :class:`OutOfContiguousMemory` if there are too few."""
        ...


class PynqAllocator:
    """Allocates with PYNQ's Python package (``pynq.allocate``)."""

    def allocate(self, size: int) -> MemoryRegion:
        try:
            import pynq
        except ImportError:
            raise TvmtuneError(
                "no Python package pynq, which allocates memory for the accelerator: use a PYNQ "
                "image, or u-dma-buf with --target-attr memory=/dev/udmabuf0"
            ) from None
        try:
            return _PynqRegion(pynq.allocate(shape=(size + ALIGNMENT,), dtype="u1"))
        except (MemoryError, RuntimeError, OSError) as error:
            raise _out_of_memory(size, str(error)) from None


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


class UdmabufAllocator:
    """A first-fit allocator on a device of the kernel module u-dma-buf, mapped uncached
    (https://github.com/ikwzm/udmabuf)."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises :class:`TvmtuneError` if there is no such device."""
        path = Path(path)
        try:
            attributes = SYSFS / path.name
            self.size = int((attributes / "size").read_text())
            self.address = int((attributes / "phys_addr").read_text(), 16)
            self._map = map_device(path, self.size)
        except (OSError, ValueError) as error:
            raise TvmtuneError(
                f"{path} is not a device of the kernel module u-dma-buf: {error}. Is it loaded?"
            ) from None
        self.array = np.frombuffer(self._map, np.uint8)
        first = -self.address % ALIGNMENT
        self.free_ranges = [(first, self.size)]
        """(begin, end) of the free ranges, sorted."""

    def allocate(self, size: int) -> MemoryRegion:
        size = -(-size // ALIGNMENT) * ALIGNMENT
        for number, (begin, end) in enumerate(self.free_ranges):
            if end - begin >= size:
                self.free_ranges[number] = (begin + size, end)
                return _UdmabufRegion(self, begin, size)
        free = sum(end - begin for begin, end in self.free_ranges)
        raise _out_of_memory(size, f"{free} of {self.size} bytes are free")

    def release(self, begin: int, size: int) -> None:
        """Return a range, merged with its free neighbors."""
        ranges = sorted([*self.free_ranges, (begin, begin + size)])
        self.free_ranges = ranges[:1]
        for each in ranges[1:]:
            if self.free_ranges[-1][1] == each[0]:
                self.free_ranges[-1] = (self.free_ranges[-1][0], each[1])
            else:
                self.free_ranges.append(each)


class _UdmabufRegion:
    def __init__(self, memory: UdmabufAllocator, begin: int, size: int) -> None:
        self._memory, self._begin, self._size = memory, begin, size
        self.array = memory.array[begin : begin + size]
        self.address = memory.address + begin

    def flush(self) -> None:
        """The mapping is uncached."""

    def invalidate(self) -> None:
        """The mapping is uncached."""

    def free(self) -> None:
        self._memory.release(self._begin, self._size)


def map_device(path: str | os.PathLike[str], size: int, offset: int = 0) -> mmap.mmap:
    """Map part of a device's memory, uncached."""
    descriptor = os.open(path, os.O_RDWR | os.O_SYNC)
    try:
        return mmap.mmap(descriptor, size, offset=offset)
    finally:
        os.close(descriptor)


def _out_of_memory(size: int, why: str) -> OutOfContiguousMemory:
    return OutOfContiguousMemory(
        f"the board has no {size} bytes of contiguous memory for a program: {why}. Enlarge it (the "
        "kernel's cma=, or the size of the u-dma-buf device)."
    )
