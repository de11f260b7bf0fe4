"""What the CPU of a target is and has."""

from __future__ import annotations

from typing import Any


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
