"""Math functions that TVM calls by their names in the C library, which OpenCL C lacks."""

from __future__ import annotations

import functools
from typing import Any

MISNAMED = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "copysign", "hypot"),
    *("ldexp", "log1p", "nextafter", "tan"),
)
"""TVM has lowering rules for other functions; its general rule turns float32 ``tan`` into ``tanf``."""


def init(options: dict[str, Any]) -> None:
    """Called once in each build worker."""
    register()


@functools.cache
def register() -> None:
    """Make kernels call these by their OpenCL names, which are overloaded for all types."""
    import tvm
    from tvm.tirx.op import register_intrin_lowering

    def rule(name: str) -> Any:
        return lambda call: tvm.tirx.call_pure_extern(call.ty, name, *call.args)

    for name in MISNAMED:
        register_intrin_lowering(f"tirx.{name}", target="opencl", f=rule(name))
