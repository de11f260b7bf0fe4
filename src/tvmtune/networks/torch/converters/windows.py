"""Operators with a sliding window.

The importer's convolutions return float32 for any operands, it lacks transposed ones in three
dimensions and adaptive maxima, and it ignores the divisor of averages.
"""

from __future__ import annotations

import math
from typing import Any

from tvmtune.networks.relax_operators import Operators, shape
from tvmtune.networks.torch.converters.arithmetic import dtype_name
from tvmtune.networks.torch.program import arguments


def _convolution(node: Any, importer: Any) -> Any:
    given, op = arguments(node), Operators(importer.block_builder)
    x, weight = importer.env[given["input"]], importer.env[given["weight"]]
    rank = len(shape(x)) - 2
    if not 1 <= rank <= 3:
        raise NotImplementedError(f"convolutions in {rank} dimensions are not supported")
    spatial, transposed = "DHW"[-rank:], given["transposed"]
    attributes = {
        "strides": given["stride"],
        "padding": given["padding"],
        "dilation": given["dilation"],
        "groups": given["groups"],
        "data_layout": f"NC{spatial}",
        "kernel_layout": f"{'IO' if transposed else 'OI'}{spatial}",
        "out_dtype": dtype_name(node.meta["val"].dtype),
    }
    if transposed:
        attributes["output_padding"] = given["output_padding"]
    convolution = getattr(op.nn, f"conv{rank}d_transpose" if transposed else f"conv{rank}d")
    result = convolution(x, weight, **attributes)
    if given["bias"] is None:
        return result
    return op.add(result, op.reshape(importer.env[given["bias"]], (1, -1, *[1] * rank)))


def _average(rank: int) -> Any:
    """The importer's pooling, scaled where a sum is not to be divided by its number of elements."""

    def convert(node: Any, importer: Any) -> Any:
        given, emit = arguments(node), importer.block_builder.emit
        divisor = given["divisor_override"]
        if divisor is None:
            return getattr(importer, f"_avg_pool{rank}d")(node)
        kernel, padding = (_for_each(given[name], rank) for name in ("kernel_size", "padding"))
        strides = _for_each(given["stride"] or kernel, rank)
        x, outputs = importer.env[node.args[0]], node.meta["val"].shape[-rank:]
        # Every window is whole, those of ceil_mode, too, so that all sums have as many elements.
        reaches = [
            (count - 1) * stride + size
            for count, stride, size in zip(outputs, strides, kernel, strict=True)
        ]
        after = [
            max(reach - before - extent, 0)
            for reach, before, extent in zip(reaches, padding, shape(x)[-rank:], strict=True)
        ]
        pool = getattr(importer, f"_avg_pool{rank}d_impl")
        means = emit(pool(x, kernel, strides, [*padding, *after], False, True))
        return Operators(importer.block_builder).multiply(means, math.prod(kernel) / divisor)

    return convert


def _for_each(value: Any, rank: int) -> list[int]:
    """A number for each axis, of which there may be one for all."""
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def _adaptive_maximum(node: Any, importer: Any) -> Any:
    """Without the places of the maxima. Along each axis, window i of n is from the element at i / n of
    the extent to that at (i + 1) / n, rounded away from its middle."""
    op, x = Operators(importer.block_builder), importer.env[node.args[0]]
    counts = node.args[1]
    for axis, count in enumerate(counts, len(shape(x)) - len(counts)):
        extents = shape(x)
        extent = extents[axis]
        if extent % count == 0:
            split = [*extents[:axis], count, extent // count, *extents[axis + 1 :]]
            x = op.max(op.reshape(x, split), axis=axis + 1)
            continue
        windows = [(i * extent // count, -(-(i + 1) * extent // count)) for i in range(count)]
        parts = [
            op.max(op.strided_slice(x, [axis], [begin], [end]), axis=axis, keepdims=True)
            for begin, end in windows
        ]
        x = op.concat(parts, axis=axis)
    return x


CONVERTERS = {
    "adaptive_max_pool2d.default": _adaptive_maximum,
    "adaptive_max_pool3d.default": _adaptive_maximum,
    "avg_pool2d.default": _average(2),
    "avg_pool3d.default": _average(3),
    "convolution.default": _convolution,
}
