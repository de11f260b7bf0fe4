"""What the CPU of a target is and has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class VectorUnit:
    """What a CPU computes in vectors with."""

    lanes: int
    """float32 values in a register."""
    sums: int
    """Registers that a tile's sums may take."""
    registers: int
    """Registers for sums and operands."""
    in_halves: bool = False
    """Whether an instruction on a register takes two cycles."""

    @property
    def has_few_registers(self) -> bool:
        """Whether there are 16, as in SSE, AVX and 32-bit NEON."""
        return self.registers <= AVX.registers

    def vectors(self, columns: int) -> int:
        """Registers that so many columns take."""
        return -(-columns // self.lanes)


AVX512 = VectorUnit(16, 28, 32)
ZEN_4 = replace(AVX512, in_halves=True)
AVX = VectorUnit(8, 12, 16)
SSE = VectorUnit(4, 12, 16)
NEON = VectorUnit(4, 24, 32)
NEON32 = VectorUnit(4, 12, 16)


def has(target: dict[str, Any], feature: str) -> bool:
    """Whether it has a feature, by LLVM's name. False for targets that LLVM does not compile for, and,
    as LLVM says, for features of another architecture."""
    if target["kind"] != "llvm":
        return False
    import tvm
    from tvm.target.codegen import llvm_cpu_has_features

    return bool(llvm_cpu_has_features(feature, tvm.target.Target(target)))


def triple(target: dict[str, Any]) -> str:
    """The triple of an LLVM target; this machine's if it has none."""
    from tvm.target.codegen import llvm_get_system_triple

    return str(target.get("mtriple") or llvm_get_system_triple())


def vector_unit(target: dict[str, Any]) -> VectorUnit:
    """The vector unit of an LLVM target; 128 bits with 16 registers if it is not known."""
    if target["kind"] != "llvm":
        return SSE
    # Not ``target.llvm_get_vector_width``: it says 512 bits for every x86-64.
    architecture = triple(target)
    if architecture.startswith(("aarch64", "arm64")):
        return NEON
    if architecture.startswith(("arm", "thumb")):
        return NEON32
    if has(target, "avx512f"):
        return ZEN_4 if target.get("mcpu") == "znver4" else AVX512
    return AVX if has(target, "avx") else SSE
