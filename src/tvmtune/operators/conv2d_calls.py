"""What algorithms for convolutions ask about a ``relax.nn.conv2d``."""

from __future__ import annotations

from typing import Any

from tvmtune.static_shapes import has_static_shapes


def is_plain(call: Any, *, grouped: bool = False) -> bool:
    """Whether it has NHWC, float32, constant weights, static shapes and, unless it may be ``grouped``,
    one group."""
    import tvm

    attrs = call.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    return (
        has_static_shapes(call)
        and (grouped or attrs.groups == 1)
        and layouts == ("NHWC", "HWIO", "NHWC")
        and isinstance(call.args[1], tvm.ir.GenericConst)
        and all(str(each.ty.dtype) == "float32" for each in (*call.args, call))
    )
