"""A least-recently-used cache of loaded programs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from tvmtune.errors import TvmtuneError
from tvmtune_vta.device import bitstream
from tvmtune_vta.device.accelerator import Accelerator, LoadedProgram
from tvmtune_vta.device.contiguous_memory import OutOfContiguousMemory
from tvmtune_vta.hardware.program import Program, digest

CAPACITY = 256
"""Programs kept loaded: more than a network has."""


class ProgramCache:
    """Programs loaded on one accelerator; the least recently used make room for new ones."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self._loaded: OrderedDict[bytes, tuple[Program, LoadedProgram]] = OrderedDict()
        self._lock = threading.Lock()

    def get(
        self, key: bytes, data: Callable[[], bytes] | None = None
    ) -> tuple[Program, LoadedProgram] | None:
        """The program whose file has the digest ``key``, loaded from ``data`` on a miss; None on a
        miss without ``data``. Raises :class:`TvmtuneError` for a program that is damaged or that the
        accelerator cannot run."""
        with self._lock:
            if key in self._loaded:
                self._loaded.move_to_end(key)
            elif data is None:
                return None
            else:
                self._loaded[key] = self._load(key, data())
            return self._loaded[key]

    def programs(self) -> list[Program]:
        """The cached programs, most recently used last."""
        with self._lock:
            return [program for program, _ in self._loaded.values()]

    def drop(self, key: bytes) -> None:
        """Remove a program if it is cached."""
        with self._lock:
            if entry := self._loaded.pop(key, None):
                entry[1].close()

    def program_fpga(self, path: str) -> None:
        """Load the FPGA with the bitstream at ``path``; clears the cache."""
        if self.accelerator.config is not None:
            bitstream.Bitstream.read(path).check(self.accelerator.config)
        self.clear()
        self.accelerator.program_fpga(path)

    def clear(self) -> None:
        with self._lock:
            while self._loaded:
                self._evict()

    def _load(self, key: bytes, data: bytes) -> tuple[Program, LoadedProgram]:
        if digest(data) != key:
            raise TvmtuneError("the library's program is damaged: compile it again")
        program = Program.from_bytes(data, "the library's program", self.accelerator.config)
        while len(self._loaded) >= CAPACITY:
            self._evict()
        while True:
            try:
                return program, self.accelerator.load(program)
            except OutOfContiguousMemory:
                if not self._loaded:
                    raise
                self._evict()

    def _evict(self) -> None:
        _, (_, loaded) = self._loaded.popitem(last=False)
        loaded.close()
