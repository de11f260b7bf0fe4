"""Reads what the quantize and dequantize calls of a program say of its values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.passes.bindings import bindings, operator_of, reads
from tvmtune.passes.constants import constant_value
from tvmtune.passes.quantized_kernels import BOUNDS

if TYPE_CHECKING:
    import tvm


@dataclass(frozen=True)
class Quantized:
    """Bytes, and ``value = scale * (byte - zero)``."""

    bytes: Any
    scale: np.float32
    zero: int
    dtype: str


class QuantizedValues:
    """The expressions of a program, read as quantized values; variables stand for their expressions."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self.bindings = {b.var: b.value for b in bindings(mod)}
        """Expressions, by their variables."""
        self.readers = reads(mod)
        """How many bindings read each variable."""

    def dequantized(self, value: Any) -> Quantized | None:
        """The bytes of a dequantized value, if they are no constant and have one scale."""
        call = self.value(value)
        if operator_of(call) != "dequantize" or self.array(call.args[0]) is not None:
            return None
        return self.scaled(call)

    def scaled(self, call: Any) -> Quantized | None:
        """What quantize or dequantize says of the bytes, if they have one scale and one zero point."""
        dtype = str((call if operator_of(call) == "quantize" else call.args[0]).ty.dtype)
        if dtype not in BOUNDS:
            return None
        scale, zero = (self.array(each) for each in call.args[1:3])
        if scale is None or zero is None or scale.size != 1 or zero.size != 1:
            return None
        if not are_sound(scale):
            return None
        return Quantized(call.args[0], np.float32(scale.item()), int(zero.item()), dtype)

    def weights(self, value: Any) -> tuple[np.ndarray, np.ndarray] | None:
        """Constant weights without zero point, and their scales, of the same rank: as int8, or as int16
        if they do not fit."""
        call = self.value(value)
        if operator_of(call) in ("permute_dims", "reshape"):
            found = self.weights(call.args[0])
            if found is None:
                return None
            if operator_of(call) == "permute_dims":
                axes = None if call.attrs.axes is None else _integers(call.attrs.axes)
                return found[0].transpose(axes), found[1].transpose(axes)
            shape = _integers(call.ty.shape)
            whole, steps = found
            return whole.reshape(shape), np.broadcast_to(steps, whole.shape).reshape(shape)
        if operator_of(call) != "dequantize":
            return None
        weights, scales, zeros = (self.array(each) for each in call.args[:3])
        if weights is None or scales is None or zeros is None:
            return None
        if str(weights.dtype) not in BOUNDS or not are_sound(scales):
            return None
        scales, zeros = _along_axis(call, weights.ndim, scales, zeros)
        whole = weights.astype(np.int32) - zeros.astype(np.int32)
        fits = whole.min() >= -128 and whole.max() <= 127
        return whole.astype(np.int8 if fits else np.int16), scales.astype(np.float32)

    def constant(self, value: Any) -> np.ndarray | None:
        """The values of an expression of constants that tools write for a bias."""
        array = self.array(value)
        call = self.value(value)
        if array is not None or operator_of(call) not in ("dequantize", "reshape"):
            return array
        inner = self.constant(call.args[0])
        if inner is None or operator_of(call) == "reshape":
            return None if inner is None else inner.reshape(_integers(call.ty.shape))
        scales, zeros = (self.array(each) for each in call.args[1:3])
        if scales is None or zeros is None:
            return None
        scales, zeros = _along_axis(call, inner.ndim, scales, zeros)
        return (inner.astype(np.float64) - zeros) * scales

    def value(self, value: Any) -> Any:
        """The expression of a variable."""
        while value in self.bindings:
            value = self.bindings[value]
        return value

    def array(self, value: Any) -> np.ndarray | None:
        """The values of a constant."""
        return constant_value(self.value(value))

    def read_once(self, value: Any) -> Any:
        """The expression of a variable that is read once; None of another."""
        return self.bindings.get(value) if self.readers.get(value) == 1 else None


def are_sound(scales: np.ndarray) -> bool:
    """Whether scales are positive and finite."""
    return bool(np.isfinite(scales).all() and (scales > 0).all())


def _along_axis(call: Any, rank: int, *parameters: np.ndarray) -> list[np.ndarray]:
    """Scales or zero points of a dequantize call, each of one value or of one for each index of the
    axis, with the rank of the data."""
    shape = [1] * rank
    if rank:
        shape[int(call.attrs.axis) % rank] = -1
    return [each.reshape(shape if each.size > 1 else [1] * rank) for each in parameters]


def _integers(attribute: Any) -> tuple[int, ...]:
    """A shape's extents, or a list of axes."""
    return tuple(int(n) for n in attribute)
