"""A software model of VTA with its registers and memory in files, as a board exposes them to
the driver."""

from __future__ import annotations

import mmap
import threading
import time
from pathlib import Path

import numpy as np

from tvmtune_vta.device import contiguous_memory, fpga
from tvmtune_vta.hardware import isa
from tvmtune_vta.hardware.config import Config, Memory
from tvmtune_vta.hardware.isa import Transfer
from tvmtune_vta.hardware.program import NO_OPERAND, UOPS, Buffer, Program
from tvmtune_vta.simulator import reference

ADDRESS = 0x10000000
"""Physical address of the memory."""


class Device:
    """Starts when fetch is started, follows the registers, and signals when it is done.

    It does not know programs: it executes instructions with absolute addresses from memory.
    """

    def __init__(self, folder: Path, config: Config, size: int = 1 << 20) -> None:
        self.config = config
        self.registers = folder / "registers"
        self.registers.write_bytes(bytes(4 * fpga.PAGE))
        self.memory, self.sysfs = folder / "udmabuf0", folder / "sys"
        self.memory.write_bytes(bytes(size))
        udmabuf = self.sysfs / "udmabuf0"
        udmabuf.mkdir(parents=True)
        (udmabuf / "size").write_text(f"{size}\n")
        (udmabuf / "phys_addr").write_text(f"0x{ADDRESS:016x}\n")
        self.runs, self.dead = 0, False
        self._words = np.frombuffer(self._open(self.registers), np.uint32)
        self._bytes = np.frombuffer(self._open(self.memory), np.uint8)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def board(self) -> fpga.FpgaBoard:
        memory = contiguous_memory.UdmabufAllocator(self.memory)
        return fpga.FpgaBoard(self.config, fpga.Registers(self.registers, 0), memory)

    def _open(self, path: Path) -> mmap.mmap:
        with path.open("r+b") as file:
            return mmap.mmap(file.fileno(), 0)

    def _register(self, offset: int) -> int:
        return int(self._words[offset // 4])

    def _serve(self) -> None:
        while not self._ended.is_set():
            pages = (fpga.LOAD, fpga.COMPUTE, fpga.STORE)
            ready = all(self._register(page) == fpga.AUTORESTART for page in pages)
            if self.dead or not ready or self._register(fpga.FETCH) != fpga.START:
                time.sleep(1e-4)
                continue
            self._words[fpga.FETCH // 4] = 0
            assert all(self._register(offset) == 0 for offset in fpga.ORIGINS)
            self._words[fpga.DONE // 4] = 0
            self._run(self._register(fpga.INSTRUCTIONS) - ADDRESS, self._register(fpga.COUNT))
            self.runs += 1
            self._words[fpga.DONE // 4] = fpga.FINISHED

    def _run(self, begin: int, count: int) -> None:
        words = self._bytes[begin : begin + 16 * count].view(np.uint64).reshape(count, 2).copy()
        operands = np.full(count, NO_OPERAND, np.int32)
        for index, instruction in enumerate(isa.decode_all(words, self.config)):
            if isinstance(instruction, Transfer) and instruction.x_size:
                kind = instruction.memory
                operands[index] = {Memory.UOP: UOPS, Memory.ACC: 1}.get(kind, 0)
                words[index, 0] -= np.uint64(ADDRESS // self.config.element_bytes(kind) << 26)
        buffers = (
            Buffer("memory", "output", "int8", self._bytes.shape),
            Buffer("the same", "input", "int32", (len(self._bytes) // 4,)),
        )
        uops = self._bytes.view(np.uint32).copy()
        program = Program(self.config, words, uops, buffers, operands)
        held = {0: self._bytes.view(np.int8).copy(), 1: self._bytes.view(np.int32).copy()}
        self._bytes.view(np.int8)[:] = reference.run(program, held).memory[0]
