"""Computes the operators of quantized networks in integers, on CPUs with instructions for that
(:mod:`tvmtune.dot_instructions`).

A layer that :mod:`tvmtune.passes.quantized_layers` finds becomes one kernel of bytes, as the tools
that quantize mean it; pooling and moves of bytes need no floats either. Around other operators
DequantizeLinear and QuantizeLinear stay, and fuse into elementwise kernels. A sum behind a layer, with
the QuantizeLinear of the result, becomes part of the layer's kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.dot_instructions import DotInstruction, merged_groups
from tvmtune.passes import quantized_kernels as kernels
from tvmtune.passes.bindings import bindings, operator_of, rebind
from tvmtune.passes.constants import share
from tvmtune.passes.fusable_calls import call_fusable
from tvmtune.passes.packed_products import Window, blocked_weights, merged_weights
from tvmtune.passes.quantized_layers import (
    Layer,
    LayerFinder,
    channel_from_last,
    is_depthwise_layer,
)

if TYPE_CHECKING:
    import tvm


def exist(mod: tvm.IRModule) -> bool:
    """Whether a program has quantized values."""
    return any(operator_of(b.value) in ("quantize", "dequantize") for b in bindings(mod))


def lower(mod: tvm.IRModule, instruction: DotInstruction) -> tvm.IRModule:
    """``mod`` with integer kernels, for targets with this instruction, for the layers that have
    quantized operands; ``mod`` itself if none has. To be run before constants are folded."""
    finder = LayerFinder(mod, instruction)
    if not finder.layers:
        return mod
    made: dict[Any, Callable[[Any], Any]] = {
        variable: partial(_moved, *move) for variable, move in finder.moves.items()
    }
    for variable, layer in finder.layers.items():
        made[variable] = partial(_lowered, layer, instruction)
    return rebind(mod, made)


def _moved(call: Any, data: Any, mutator: Any) -> Any:
    """The operator, applied to bytes."""
    from tvm import relax

    return relax.Call(call.op, [mutator.visit_expr(data), *call.args[1:]], call.attrs)


def _lowered(layer: Layer, instruction: DotInstruction, mutator: Any) -> Any:
    return _emit(mutator.builder_, layer, mutator.visit_expr(layer.x.bytes), instruction)


def _emit(builder: Any, layer: Layer, x: Any, instruction: DotInstruction) -> Any:
    """The layer's kernel, between transpositions to channels last and back for a convolution."""
    from tvm import relax

    output = tuple(int(n) for n in layer.call.ty.shape)
    is_moved = channel_from_last(layer.call) > 1
    if is_moved:
        output = (output[0], *output[2:], output[1])
        x = builder.emit(relax.op.permute_dims(x, [0, *range(2, len(output)), 1]))
    shape = output
    if operator_of(layer.call) == "nn.conv1d":  # an image of one row
        shape = (output[0], 1, *output[1:])
        batch, *rest = (int(n) for n in x.ty.shape)
        x = builder.emit(relax.op.reshape(x, (batch, 1, *rest)))
    made = _call(builder, layer, x, shape, instruction)
    if shape != output:
        made = relax.op.reshape(builder.emit(made), output)
    if is_moved:
        rank = len(output)
        made = relax.op.permute_dims(builder.emit(made), [0, rank - 1, *range(1, rank - 1)])
    return made


def _call(
    builder: Any, layer: Layer, x: Any, shape: tuple[int, ...], instruction: DotInstruction
) -> Any:
    """A call of the layer's kernel, which reads channels last and returns ``shape``."""
    shifts = read = None
    if layer.weights.dtype != np.int8 and not is_depthwise_layer(layer.call, layer.weights):
        narrow, shifts = kernels.narrowed(layer.weights)
        layer = replace(layer, weights=narrow)
        sums = _sums_of_data(layer)
        read = builder.emit(_call(builder, sums, x, (*shape[:-1], 1), instruction))
    is_convolution = operator_of(layer.call) != "matmul"
    window = Window.of(layer.call.attrs) if is_convolution else None
    compute, weights, name = _kernel(layer, window, instruction)
    is_padded = window is not None and any(window.padding)

    # Calibrated numbers are arguments: layers of equal shapes share a kernel.
    rounding = layer.rounding
    named: dict[str, np.ndarray | None] = {
        "w": weights,
        "bias": layer.bias,
        "factors": layer.factors,
        "numbers": rounding.numbers() if rounding else None,
        "shifts": shifts,
        "zero": np.array([layer.x.zero], "int32") if is_padded else None,
    }
    given = {key: share(array) for key, array in named.items() if array is not None}
    if read is not None:
        given["read"] = read

    def program(data: Any, *tensors: Any) -> Any:
        by_name = dict(zip(given, tensors, strict=True))
        how: dict[str, Any] = {"output": shape, "instruction": instruction}
        if is_convolution:
            how["zero"] = by_name["zero"](0) if is_padded else 0
        return kernels.requantize(
            compute(data, by_name["w"], **how),
            by_name["bias"],
            by_name.get("factors"),
            by_name.get("numbers"),
            rounding.dtype if rounding else "",
            shape,
            (by_name["shifts"], by_name["read"]) if "read" in by_name else None,
        )

    return call_fusable(builder, program, x, *given.values(), name=name, fuses=layer.fuses)


def _sums_of_data(layer: Layer) -> Layer:
    """The layer with one output, the sum of what each output reads."""
    ones = np.ones((1, *layer.weights.shape[1:]), np.int8)
    no_bias = np.zeros(1, np.int32)
    return replace(layer, weights=ones, bias=no_bias, factors=None, rounding=None, fuses=False)


def _kernel(
    layer: Layer, window: Window | None, instruction: DotInstruction
) -> tuple[Callable[..., Any], np.ndarray, str]:
    """What computes the layer's sums, its weights as that reads them, and the kernel's name."""
    weights = layer.weights
    if window is None:
        return (
            kernels.product,
            blocked_weights(weights[:, None, None], instruction),
            "matmul_quantized",
        )
    groups = int(layer.call.attrs.groups)
    if is_depthwise_layer(layer.call, weights):
        compute = partial(kernels.depthwise, window=window)
        weights = np.ascontiguousarray(weights[:, 0].transpose(1, 2, 0))
        return compute, weights, "depthwise_conv2d_quantized"
    weights, groups = _in_groups(weights, groups, instruction)
    compute = partial(kernels.convolution, groups=groups, window=window)
    return compute, weights, "conv2d_quantized"


def _in_groups(
    weights: np.ndarray, groups: int, instruction: DotInstruction
) -> tuple[np.ndarray, int]:
    """A convolution's weights (O, I, KH, KW) as the instruction reads them, and in how many groups."""
    own = (len(weights) // groups, weights.shape[1])
    merged = merged_groups(groups, *own, instruction.lanes, instruction.terms)
    whole = merged_weights(weights.transpose(0, 2, 3, 1), groups, merged)
    return blocked_weights(whole, instruction), -(-groups // merged)
