"""What instructions the CPU of a target has."""

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
