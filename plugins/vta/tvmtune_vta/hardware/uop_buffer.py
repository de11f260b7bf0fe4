"""The on-chip uop buffer, as a program's loads fill it."""

from __future__ import annotations

import numpy as np

from tvmtune_vta.hardware import bounds, isa
from tvmtune_vta.hardware.bitfields import Columns
from tvmtune_vta.hardware.config import Memory
from tvmtune_vta.hardware.isa import Loops, Transfer
from tvmtune_vta.hardware.program import Program


class UopBuffer:
    """The uop buffer during a run."""

    def __init__(self, program: Program) -> None:
        self.columns = isa.unpack_uops(program.uops, program.config)
        self.held = np.full(program.config.depth(Memory.UOP), -1, np.int64)
        """The program's uop in each place; -1 if none has been loaded."""

    def load(self, transfer: Transfer) -> None:
        """Execute a LOAD of one row."""
        first, end = bounds.in_dram(transfer)
        self.held[bounds.on_chip(transfer)] = np.arange(first, end)

    def missing(self, loops: Loops) -> int | None:
        """The first place of the range that has not been loaded, or None."""
        empty = np.flatnonzero(self.held[loops.uop_bgn : loops.uop_end] < 0)
        return loops.uop_bgn + int(empty[0]) if len(empty) else None

    def of(self, loops: Loops) -> Columns:
        """The uops of an instruction, all of which must have been loaded."""
        held = self.held[loops.uop_bgn : loops.uop_end]
        return {name: column[held] for name, column in self.columns.items()}
