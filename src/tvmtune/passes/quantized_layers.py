"""Finds the layers of quantized networks that can be computed in integers.

Tools that quantize put DequantizeLinear before an operator and QuantizeLinear behind it. A layer is a
convolution or product of dequantized bytes with constant weights, and the bias, the bounds and the
rounding behind it; it may return bytes, or the values that they stand for.

Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference", 2018, section 2: with x = sx (qx - zx) and w = sw qw,
y = sum(x w) + b = sx sw (sum(qx qw) - zx sum(qw) + qb).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.dot_instructions import DotInstruction, computes_groups, is_depthwise
from tvmtune.passes import quantized_kernels as kernels
from tvmtune.passes.bindings import operator_of
from tvmtune.passes.quantized_kernels import BOUNDS, Rounding
from tvmtune.passes.quantized_values import Quantized, QuantizedValues, are_sound
from tvmtune.static_shapes import has_static_shapes, static_shape
from tvmtune.types import product

if TYPE_CHECKING:
    import tvm

_KERNELS = {"matmul": "KN", "nn.conv1d": "OIW", "nn.conv2d": "OIHW"}
"""Operators with kernels in integers, and the axes of their weights."""
_MOVES = ("nn.max_pool2d", "reshape", "flatten", "squeeze", "expand_dims", "permute_dims")
"""Operators that return some of their input's values: bytes remain what they are."""


@dataclass(frozen=True)
class Layer:
    """A convolution or product with what is behind it."""

    call: Any
    x: Quantized
    weights: np.ndarray
    """int8 (O, I/groups, KH, KW), or (N, K) of a product. KH is 1 if the convolution has one
    dimension. int16 if there is one group, or one for each channel, and they do not fit in int8."""
    bias: np.ndarray
    """int32, with that for the zero point of ``x``."""
    factors: np.ndarray | None
    """float32, from a sum to a step of the output, or to its value; None for sums as they are."""
    rounding: Rounding | None
    fuses: bool = True
    """Whether elementwise operators behind it may become part of its kernel."""


class LayerFinder:
    """Finds layers by the variables that hold their results."""

    def __init__(self, mod: tvm.IRModule, instruction: DotInstruction) -> None:
        self._instruction = instruction
        self._values = QuantizedValues(mod)
        self.layers: dict[Any, Layer] = {}
        """By the variables that hold their results: bytes, their values, or sums."""
        self.moves: dict[Any, tuple[Any, Any]] = {}
        """Operators that only move bytes, and the bytes, by the variables that hold their results."""
        self._find_rounded()
        self._find_unrounded()  # not those that are part of a rounded one
        self._find_moves()
        self._dequantize_in_registers()

    def _find_rounded(self) -> None:
        for variable, call in self._values.bindings.items():
            out = self._values.scaled(call) if operator_of(call) == "quantize" else None
            if out is not None and (layer := self._rounded_layer(call.args[0], out)):
                self.layers[variable] = layer

    def _find_unrounded(self) -> None:
        rounded = {layer.call for layer in self.layers.values()}
        for variable, call in self._values.bindings.items():
            if (sums := self._integer_product(call)) is not None:
                self.layers[variable] = sums
                continue
            operands = None if call in rounded else self._operands(call)
            if operands is not None and (layer := self._layer(call, operands)):
                self.layers[variable] = layer

    def _find_moves(self) -> None:
        for variable, call in self._values.bindings.items():
            if operator_of(call) == "quantize" and (move := self._move(call)):
                self.moves[variable] = move

    def _move(self, call: Any) -> tuple[Any, Any] | None:
        """The operator whose values this quantize call rounds to the bytes that they were."""
        out, moving = self._values.scaled(call), self._values.read_once(call.args[0])
        if out is None or operator_of(moving) not in _MOVES:
            return None
        x = self._values.dequantized(moving.args[0])
        same = x and (x.scale, x.zero, x.dtype) == (out.scale, out.zero, out.dtype)
        return (moving, x.bytes) if x and same else None

    def _rounded_layer(self, value: Any, out: Quantized) -> Layer | None:
        low, high = (float(bound) for bound in BOUNDS[out.dtype])
        call = self._values.read_once(value)
        while bounds := self._bounds(call):
            low, high = max(low, _step(bounds[0], out)), min(high, _step(bounds[1], out))
            call = self._values.read_once(call.args[0])
        bias = None
        if operator_of(call) == "add":
            first, second = (self._values.constant(each) for each in call.args)
            if (first is None) == (second is None):
                return None
            bias = second if first is None else first
            data = call.args[0 if first is None else 1]
            if not _has_same_shape(call, data):
                return None
            call = self._values.read_once(data)
        operands = self._operands(call)
        return self._layer(call, operands, bias, out, (low, high)) if operands else None

    def _dequantize_in_registers(self) -> None:
        """Let layers whose bytes only a dequantize reads return the values, so that the elementwise
        operators behind it become part of their kernel."""
        read = {layer.x.bytes for layer in self.layers.values()}
        read |= {data for _, data in self.moves.values()}
        bindings = self._values.bindings
        found = {
            variable: layer
            for variable, call in bindings.items()
            if operator_of(call) == "dequantize"
            and call.args[0] not in read
            and (layer := self._dequantized_layer(call))
        }
        places = {variable: place for place, variable in enumerate(bindings)}
        for call in bindings.values():
            if operator_of(call) != "add":
                continue
            terms = [each for each in call.args if each in found]
            # One layer adds the terms: the last one that is not broadcast.
            whole = [each for each in terms if _has_same_shape(call, each)]
            adding = max(whole, key=lambda each: places[bindings[each].args[0]], default=None)
            for other in {each for each in terms if each != adding}:
                del found[other]
                stored = bindings[other].args[0]
                self.layers[stored] = replace(self.layers[stored], fuses=False)
        for variable, layer in found.items():
            del self.layers[bindings[variable].args[0]]
            self.layers[variable] = layer

    def _dequantized_layer(self, call: Any) -> Layer | None:
        """A layer that returns the values of its bytes, which nothing but this dequantize reads."""
        layer = self.layers.get(call.args[0])
        values = self._values.scaled(call)
        if layer is None or layer.rounding is None or values is None:
            return None
        if self._values.readers.get(call.args[0]) != 1 or str(call.ty.dtype) != "float32":
            return None
        if layer.rounding.zero != values.zero:
            return None
        rounding = replace(layer.rounding, dtype="float32", scale=values.scale)
        return replace(layer, rounding=rounding)

    def _integer_product(self, call: Any) -> Layer | None:
        """A product of bytes with constant ones that returns its sums."""
        if operator_of(call) != "matmul" or not has_static_shapes(call):
            return None
        x, weights = call.args[0], self._values.array(call.args[1])
        dtypes = [str(each.ty.dtype) for each in (*call.args, call)]
        if weights is None or weights.ndim != 2 or len(x.ty.shape) < 2:
            return None
        if dtypes[0] not in BOUNDS or dtypes[1:] != ["int8", "int32"]:
            return None
        operand = Quantized(x, np.float32(1), 0, dtypes[0])
        ones = np.ones(1, "float32")
        layer = self._layer(call, (operand, weights.T, ones))
        return layer and replace(layer, factors=None)

    def _bounds(self, call: Any) -> tuple[float, float] | None:
        """The bounds of an operator that limits its first argument."""
        operator = operator_of(call)
        if operator == "nn.relu":
            return 0.0, np.inf
        if operator == "clip":
            low, high = (float(bound.value) for bound in call.args[1:])
            return low, high
        if operator in ("maximum", "minimum"):
            bound = self._values.array(call.args[1])
            if bound is None or bound.size != 1 or not _has_same_shape(call, call.args[0]):
                return None
            number = float(bound.item())
            return (number, np.inf) if operator == "maximum" else (-np.inf, number)
        return None

    def _operands(self, call: Any) -> tuple[Quantized, np.ndarray, np.ndarray] | None:
        """The first operand of a convolution or product, its weights with the outputs first, and their
        scales."""
        operator = operator_of(call)
        axes = _KERNELS.get(operator)
        if axes is None or not has_static_shapes(call):
            return None
        x, found = self._values.dequantized(call.args[0]), self._values.weights(call.args[1])
        if x is None or found is None:
            return None
        order: tuple[int, ...] = (1, 0)
        if operator != "matmul":
            order = tuple(str(call.attrs.kernel_layout).find(axis) for axis in axes)
        if found[0].ndim != len(order) or -1 in order or len(call.args[0].ty.shape) < 2:
            return None
        weights, scales = (each.transpose(order) for each in found)
        if operator == "nn.conv1d":
            weights, scales = weights[:, :, None], scales[:, :, None]
        if operator != "matmul" and not _is_supported(call.attrs, weights, self._instruction):
            return None
        if weights.dtype != np.int8 and not _may_be_wide(call, weights):
            return None
        if scales.size > len(scales):
            flat = np.broadcast_to(scales, weights.shape).reshape(len(weights), -1)
            if (flat != flat[:, :1]).any():
                return None
            scales = flat[:, :1]
        return x, weights, scales.reshape(-1)

    def _layer(
        self,
        call: Any,
        operands: tuple[Quantized, np.ndarray, np.ndarray],
        bias: np.ndarray | None = None,
        out: Quantized | None = None,
        bounds: tuple[float, float] = (0, 0),
    ) -> Layer | None:
        """None if its integers could leave int32, its factors float32, or if the bias is none of its
        channels."""
        x, weights, scales = operands
        channels = len(weights)
        sums = weights.reshape(channels, -1).astype(np.int64).sum(axis=1)
        total = -(x.zero + kernels.offset(x.dtype, self._instruction)) * sums
        with np.errstate(over="ignore", under="ignore"):
            steps = x.scale * scales
            factors = (steps / out.scale if out else steps).astype(np.float32)
        if not (are_sound(steps) and are_sound(factors)):
            return None
        if out is None and str(call.ty.dtype) not in ("float32", "int32"):
            return None
        if bias is not None:
            place = len(bias.shape) - int(np.argmax(bias.shape))
            if bias.size > 1 and (bias.size != channels or place != channel_from_last(call)):
                return None
            whole = np.rint(bias.reshape(-1).astype(np.float64) / steps)
            if not (np.abs(whole) < 2**31).all():
                return None
            total = total + whole.astype(np.int64)
        sums_most = product([*weights.shape[1:]]) * kernels.LARGEST_PRODUCT
        if weights.dtype != np.int8:
            sums_most *= 2
        if np.abs(total).max(initial=0) + sums_most >= 2**31 or bounds[0] > bounds[1]:
            return None
        low, high = (int(bound) for bound in bounds)
        return Layer(
            call,
            x,
            weights,
            total.astype(np.int32),
            np.ascontiguousarray(np.broadcast_to(factors, (channels,))),
            Rounding(out.zero, low, high, out.dtype) if out else None,
        )


def _has_same_shape(call: Any, data: Any) -> bool:
    """Constants of a higher rank give a result of that rank; a kernel returns that of the product."""
    shape = static_shape(call)
    return shape is not None and shape == static_shape(data)


def _is_supported(attrs: Any, weights: np.ndarray, instruction: DotInstruction) -> bool:
    """Whether there is a kernel for a convolution with weights (O, I/groups, KH, KW)."""
    outputs, inputs = weights.shape[:2]
    return str(attrs.data_layout) in ("NCW", "NWC", "NCHW", "NHWC") and computes_groups(
        int(attrs.groups), outputs, inputs, instruction.lanes, instruction.terms
    )


def _may_be_wide(call: Any, weights: np.ndarray) -> bool:
    """Whether there is a kernel for weights (O, I/groups, ...) that do not fit in int8."""
    if is_depthwise_layer(call, weights):
        return True
    flat = weights.reshape(len(weights), -1)
    groups = 1 if operator_of(call) == "matmul" else int(call.attrs.groups)
    return groups == 1 and bool((flat.max(axis=1) - flat.min(axis=1) <= 255).all())


def is_depthwise_layer(call: Any, weights: np.ndarray) -> bool:
    """Whether it is a depthwise convolution, of weights (O, I/groups, ...)."""
    if operator_of(call) == "matmul":
        return False
    return is_depthwise(int(call.attrs.groups), len(weights), weights.shape[1])


def channel_from_last(call: Any) -> int:
    """Which axis of an operator's output, counted from the last, has the channels."""
    layout = "" if operator_of(call) == "matmul" else str(call.attrs.data_layout)
    return len(layout) - 1 if layout.startswith("NC") else 1


def _step(value: float, out: Quantized) -> float:
    return float(np.rint(value / out.scale)) + out.zero
