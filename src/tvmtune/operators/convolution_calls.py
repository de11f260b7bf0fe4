"""What algorithms for convolutions ask about a ``relax.nn.conv1d``, ``conv2d`` or ``conv3d``."""

from __future__ import annotations

from typing import Any

from tvmtune.passes.bindings import is_float32
from tvmtune.static_shapes import has_static_shapes

_LAYOUTS = (("NWC", "WIO", "NWC"), ("NHWC", "HWIO", "NHWC"), ("NDHWC", "DHWIO", "NDHWC"))
"""Of data, weights and output, for one to three dimensions."""


def is_plain(call: Any, *, grouped: bool = False) -> bool:
    """Whether its channels come last and it has float32 values, constant weights, static shapes and,
    unless it may be ``grouped``, one group."""
    import tvm

    attrs = call.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    return (
        has_static_shapes(call)
        and (grouped or attrs.groups == 1)
        and layouts in _LAYOUTS
        and isinstance(call.args[1], tvm.ir.GenericConst)
        and is_float32(call)
    )
