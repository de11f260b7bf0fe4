"""Functions of OpenCL C that TVM calls by the names of C's library, which OpenCL has not."""

from __future__ import annotations

import functools
from typing import Any

MISNAMED = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "copysign", "hypot"),
    *("ldexp", "log1p", "nextafter", "tan"),
)
"""TVM has rules for other functions, and by its general one ``tan`` of float32 becomes ``tanf``."""


def init(options: dict[str, Any]) -> None:
    """Called once in each process that builds kernels."""
    register()


@functools.cache
def register() -> None:
    """Have kernels call these by their own names, which serve all types."""
    import tvm
    from tvm.tirx.op import register_intrin_lowering

    def rule(name: str) -> Any:
        return lambda call: tvm.tirx.call_pure_extern(call.ty, name, *call.args)

    for name in MISNAMED:
        register_intrin_lowering(f"tirx.{name}", target="opencl", f=rule(name))
