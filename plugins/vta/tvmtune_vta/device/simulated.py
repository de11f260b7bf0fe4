"""The simulated accelerator."""

from __future__ import annotations

import importlib.util
from typing import Any

from tvmtune.errors import TvmtuneError
from tvmtune_vta.device.accelerator import LoadedProgram, Tensors, description
from tvmtune_vta.hardware import rules, work
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.hardware.program import Program

MOST_OPERATIONS, MOST_REFERENCE_OPERATIONS = 1 << 39, 1 << 35
"""Operations of a served program on the fast simulator and on the reference: a minute's work.
ResNet-18 takes 2^31, VGG-16 2^34."""


class SimulatedAccelerator:
    """Runs programs on the fast simulator if TVM can compile it here, else on the reference.

    ``bounded``: refuse programs that would take longer than a minute or so.
    """

    def __init__(self, config: Config | None = None, *, bounded: bool = False) -> None:
        self.config = config
        self._bounded = bounded

    def load(self, program: Program) -> LoadedProgram:
        fast = _can_compile()
        if self._bounded:
            work.check(program, MOST_OPERATIONS if fast else MOST_REFERENCE_OPERATIONS)
        if not fast:
            return _ReferenceProgram(program)
        from tvmtune_vta.simulator.fast import FastSimulator

        return FastSimulator(program)

    def describe(self) -> dict[str, Any]:
        return description("sim", self.config, None)

    def program_fpga(self, path: str) -> None:
        raise TvmtuneError(
            "this board simulates VTA and has no FPGA to program: serve it with device=fpga"
        )


def _can_compile() -> bool:
    """Whether TVM is installed with its compiler; boards do without."""
    if importlib.util.find_spec("tvm") is None:
        return False
    import tvm

    return tvm.get_global_func("target.llvm_get_system_cpu", allow_missing=True) is not None


class _ReferenceProgram:
    """A program on the reference simulator."""

    def __init__(self, program: Program) -> None:
        rules.check(program)
        self._program = program

    def run(self, memory: Tensors) -> Tensors:
        from tvmtune_vta.simulator import reference

        return reference.run(self._program, memory).memory

    def close(self) -> None:
        """Nothing to release."""
