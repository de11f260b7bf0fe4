"""Drops resizes to the same size, which decoders for several resolutions have for the finest one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tvmtune.passes.bindings import bindings, operator_of, rebind
from tvmtune.static_shapes import static_shape

if TYPE_CHECKING:
    import tvm

_COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
"""Modes in which a pixel of an image of the same size is at the place of that pixel. ``half_pixel`` for
TensorFlow's nearest neighbors is not one, nor are those that crop."""


def drop(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` without them; itself if there are none."""

    def data_of(value: Any, mutator: Any) -> Any:
        return mutator.visit_expr(value.args[0])

    same = [each for each in bindings(mod) if _is_same(each.value)]
    return rebind(mod, {each.var: partial(data_of, each.value) for each in same})


def _is_same(value: Any) -> bool:
    if not (operator_of(value) or "").startswith("image.resize"):
        return False
    shape = static_shape(value)
    return (
        shape is not None
        and shape == static_shape(value.args[0])
        and value.ty.dtype == value.args[0].ty.dtype
        and str(value.attrs.coordinate_transformation_mode) in _COORDINATES
    )
