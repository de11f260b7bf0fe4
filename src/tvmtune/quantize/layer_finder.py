"""Finds layers in a Relax graph: a convolution or sum with the operations that fuse into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.passes.bindings import is_constant
from tvmtune.quantize.graph import shape_of, variable_users
from tvmtune.quantize.layers import LAYOUT, ConvolutionLayer, Layer, SumLayer, constant_values

if TYPE_CHECKING:
    import tvm

_PER_CHANNEL = {"relax.add", "relax.subtract", "relax.multiply", "relax.divide"}
_TRANSPOSED = "relax.nn.conv2d_transpose"
_KERNEL_LAYOUTS = {"relax.nn.conv2d": "OIHW", _TRANSPOSED: "IOHW"}


class LayerFinder:
    """Fuses into each convolution and sum what its only user does to its output."""

    def __init__(self, bindings: list[Any], first: int, graph: tvm.IRModule) -> None:
        """``bindings`` of ``graph`` up to the region's end; layers begin at index ``first``."""
        self.bindings, self.first = bindings, first
        self._users = variable_users(graph)
        self._by_name = {str(b.var.name): b for b in bindings[first:]}

    def layers(self) -> Iterator[Layer]:
        """The layers in program order."""
        taken: set[str] = set()
        for binding in self.bindings[self.first :]:
            name, value = str(binding.var.name), binding.value
            if name in taken:
                continue
            op = getattr(getattr(value, "op", None), "name", "")
            layer: Layer
            if op in _KERNEL_LAYOUTS and _is_supported_convolution(value):
                layer = self._convolution(binding)
            elif op == "relax.add" and _is_sum(value):
                layer = self._sum(binding)
            else:
                continue
            taken.update(layer.covers)
            yield layer

    def _convolution(self, binding: Any) -> ConvolutionLayer:
        call = binding.value
        transposed = call.op.name == _TRANSPOSED
        constants: list[Any] = [_flipped_kernel(call) if transposed else call.args[1]]
        covers, name = [str(binding.var.name)], str(binding.var.name)
        channels = shape_of(call)[1]
        while (follower := self._only_user(name)) is not None:
            op, args = follower.value.op.name, follower.value.args
            if op not in _PER_CHANNEL or len(args) != 2:
                break
            constant = next((a for a in args if is_constant(a)), None)
            if constant is None or not _is_per_channel(constant, channels):
                break
            if op in ("relax.subtract", "relax.divide") and is_constant(args[0]):
                break
            constants.append((op, constant))
            name = str(follower.var.name)
            covers.append(name)
        low, high, name = self._activation(name, covers)
        attrs = call.attrs
        return ConvolutionLayer(
            (str(call.args[0].name),),
            name,
            (shape_of(call.args[0]),),
            shape_of(call),
            low,
            high,
            tuple(covers),
            strides=(1, 1) if transposed else _pair(attrs.strides),
            padding=_equivalent_padding(call) if transposed else _four(attrs.padding),
            dilation=_pair(attrs.dilation),
            groups=int(attrs.groups),
            input_dilation=_pair(attrs.strides) if transposed else (1, 1),
            constants=tuple(constants),
        )

    def _sum(self, binding: Any) -> SumLayer:
        covers, name = [str(binding.var.name)], str(binding.var.name)
        low, high, name = self._activation(name, covers)
        args = binding.value.args
        return SumLayer(
            tuple(str(a.name) for a in args),
            name,
            tuple(shape_of(a) for a in args),
            shape_of(binding.value),
            low,
            high,
            tuple(covers),
        )

    def _activation(self, name: str, covers: list[str]) -> tuple[float | None, float | None, str]:
        """The bounds of the activation after ``name``, and the variable that holds its result.

        ``covers`` grows by the variables on the way: a file may clip by a maximum and a minimum.
        """
        low: float | None = None
        high: float | None = None
        while (follower := self._only_user(name)) is not None:
            bounds = _clip_bounds(follower.value)
            if bounds is None:
                break
            low = _tighter(max, low, bounds[0])
            high = _tighter(min, high, bounds[1])
            name = str(follower.var.name)
            covers.append(name)
        return low, high, name

    def _only_user(self, name: str) -> Any:
        """The one binding that uses a variable, if it is an operator call in the region."""
        users = self._users.get(name, [])
        if len(users) != 1 or users[0] not in self._by_name:
            return None
        user = self._by_name[users[0]]
        return user if hasattr(user.value, "op") and hasattr(user.value.op, "name") else None


def _clip_bounds(call: Any) -> tuple[float | None, float | None] | None:
    """The bounds of an operator that clips; None for any other operator."""
    op, args = call.op.name, call.args
    if op == "relax.nn.relu":
        return 0.0, None
    if op == "relax.nn.relu6":
        return 0.0, 6.0
    if op == "relax.clip":
        return float(args[1].value), float(args[2].value)
    if op in ("relax.maximum", "relax.minimum"):
        for each in args:
            if is_constant(each) and int(np.prod(shape_of(each))) == 1:
                bound = float(constant_values(each).reshape(-1)[0])
                return (bound, None) if op == "relax.maximum" else (None, bound)
    return None


def _tighter(
    choose: Callable[[float, float], float], one: float | None, other: float | None
) -> float | None:
    if one is None or other is None:
        return one if other is None else other
    return choose(one, other)


def _is_supported_convolution(call: Any) -> bool:
    """Whether a :class:`ConvolutionLayer` can represent a convolution call."""
    attrs = call.attrs
    return (
        is_constant(call.args[1])
        and attrs.data_layout == LAYOUT
        and attrs.kernel_layout == _KERNEL_LAYOUTS[call.op.name]
        and call.args[1].ty.dtype == "float32"
        and (call.op.name != _TRANSPOSED or min(_equivalent_padding(call)) >= 0)
    )


def _flipped_kernel(call: Any) -> Any:
    """The kernel (I, O / groups, KH, KW) of a transposed convolution, as that of the equivalent
    convolution of the dilated input."""
    from tvm import relax

    weights, groups = call.args[1].value.numpy(), int(call.attrs.groups)
    ins, outs, *size = weights.shape
    parts = weights.reshape(groups, ins // groups, outs, *size).swapaxes(1, 2)
    flipped = parts.reshape(groups * outs, ins // groups, *size)[:, :, ::-1, ::-1]
    return relax.const(np.ascontiguousarray(flipped))


def _equivalent_padding(call: Any) -> tuple[int, int, int, int]:
    """The padding of the convolution that is equivalent to a transposed one."""
    top, left, bottom, right = _four(call.attrs.padding)
    extra_h, extra_w = _pair(call.attrs.output_padding)
    dilation_h, dilation_w = _pair(call.attrs.dilation)
    _, _, kernel_h, kernel_w = shape_of(call.args[1])
    reach_h, reach_w = (kernel_h - 1) * dilation_h, (kernel_w - 1) * dilation_w
    return reach_h - top, reach_w - left, reach_h - bottom + extra_h, reach_w - right + extra_w


def _pair(values: Any) -> tuple[int, int]:
    one, other = (int(v) for v in values)
    return one, other


def _four(values: Any) -> tuple[int, int, int, int]:
    top, left, bottom, right = (int(v) for v in values)
    return top, left, bottom, right


def _is_sum(call: Any) -> bool:
    one, other = call.args
    if is_constant(one) or is_constant(other):
        return False
    floats = {str(one.ty.dtype), str(other.ty.dtype)} == {"float32"}
    return floats and len(shape_of(one)) == 4 and shape_of(one) == shape_of(other)


def _is_per_channel(constant: Any, channels: int) -> bool:
    """Whether a constant has one value for each channel of NCHW, or one for all."""
    shape = shape_of(constant)
    size = int(np.prod(shape))
    return size == 1 or (size == channels and len(shape) >= 3 and shape[-3] == channels)
