"""The simulated accelerator."""

from __future__ import annotations

import importlib.util
from typing import Any

from tvmtune.errors import TvmtuneError
from tvmtune_vta.device.accelerator import LoadedProgram, Tensors, description
from tvmtune_vta.hardware import rules
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.hardware.program import Program


class SimulatedAccelerator:
    """Runs programs on the fast simulator if TVM can compile it here, else on the reference."""

    def __init__(self, config: Config | None = None) -> None:
        self.config = config

    def load(self, program: Program) -> LoadedProgram:
        if not _can_compile():
            return _ReferenceProgram(program)
        from tvmtune_vta.simulator.fast import FastSimulator

        return FastSimulator(program)

    def describe(self) -> dict[str, Any]:
        return description("sim", self.config, None)

    def program_fpga(self, path: str) -> None:
        raise TvmtuneError(
            "this board simulates VTA and has no FPGA to program: serve it with device=fpga."
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
