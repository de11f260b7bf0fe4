"""Weights that are quantized in blocks, as language models are shipped, and products with them.

The weights are dequantized at import: kernels compute in floating point.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper
from tvm import relax

from tvmtune.networks.onnx.converters.indexing import indices
from tvmtune.networks.onnx.converters.request import Converter, Node, optional, required
from tvmtune.networks.relax_operators import dtype, shape


def matmul_nbits(node: Node) -> Any:
    """``x @ ((quantized - zero) * scale).T``; blocks of columns share a scale and a zero."""
    node.refuse({"weight_prepacked": 0})
    if node.input(4) is not None:
        raise ValueError("its input g_idx, the order of its groups, is not supported")
    bits, block = node.attrs.get("bits", 4), node.attrs["block_size"]
    rows, columns = node.attrs["N"], node.attrs["K"]
    if bits not in (2, 4, 8):
        raise ValueError(f"weights of {bits} bits are not supported")
    blocks = -(-columns // block)
    packed = required(node.inputs[1], "weight")
    scales = required(node.inputs[2], "scales").reshape(rows, blocks, 1)
    values = _unpacked(packed.reshape(rows, -1), bits).reshape(rows, blocks, block)
    zeros = optional(node.input(3), "zero points")
    if zeros is None:
        offset: Any = np.float32(1 << (bits - 1))
    elif zeros.dtype == np.uint8:
        offset = _unpacked(zeros.reshape(rows, -1), bits)[:, :blocks, None].astype("float32")
    else:
        offset = zeros.reshape(rows, blocks, 1).astype("float32")
    weight = (values.astype("float32") - offset) * scales.astype("float32")
    weight = weight.reshape(rows, blocks * block)[:, :columns]
    x = node.inputs[0]
    result = node.op.matmul(x, relax.const(np.ascontiguousarray(weight.T), dtype(x)))
    bias = node.input(5)
    return result if bias is None else node.op.add(result, bias)


def gather_block_quantized(node: Node) -> Any:
    """Rows of a table whose columns share scales in blocks: it stays in bytes, and the rows that are
    read are dequantized."""
    bits, block = node.attrs.get("bits", 4), node.attrs.get("block_size", 128)
    table, scales = required(node.inputs[0], "data"), required(node.inputs[2], "scales")
    axes = node.attrs.get("gather_axis", 0), node.attrs.get("quantize_axis", 1) % table.ndim
    if axes != (0, 1) or table.ndim != 2:
        raise ValueError("other axes than rows of which columns are quantized are not supported")
    packed = table.dtype == np.uint8
    if packed and bits < 8:
        table = _unpacked(table, bits)
    count, columns = table.shape
    zeros = optional(node.input(3), "zero points")
    if zeros is not None and packed and bits < 8:
        zeros = _unpacked(zeros, bits)
    if zeros is None:
        zeros = np.full(scales.shape, 1 << (bits - 1) if packed else 0)
    zeros = zeros.reshape(count, -1)[:, : scales.shape[1]]
    op, kind = node.op, str(scales.dtype)
    ids = indices(node, node.inputs[1], [count])

    def rows(values: np.ndarray) -> Any:
        return op.take(relax.const(np.ascontiguousarray(values)), ids, 0, mode="clip")

    numbers = op.astype(rows(table.astype("int8" if table.min(initial=0) < 0 else "uint8")), kind)
    each = [*shape(ids), -1]
    blocks = -(-columns // block)
    if blocks * block > columns:
        raise ValueError("a last block of fewer columns is not supported")
    spread = [op.reshape(rows(values), [*each, 1]) for values in (zeros.astype(kind), scales)]
    numbers = op.reshape(numbers, [*each, block])
    result = op.multiply(op.subtract(numbers, spread[0]), spread[1])
    return op.reshape(result, [*shape(ids), columns])


def dequantize_linear(node: Node) -> Any:
    """The importer refuses blocks and weights of a floating-point type."""
    x, scale, zero = (node.input(place) for place in range(3))
    block = node.attrs.get("block_size", 0)
    if not block and dtype(x) != "float32":
        return node.standard(x, scale, zero)
    values = required(x, "first input").astype("float32")
    scales, zeros = required(scale, "scale"), optional(zero, "zero point")
    axis = node.attrs.get("axis", 1) % max(values.ndim, 1)
    if zeros is not None:
        values = values - _spread(zeros.astype("float32"), values.shape, axis, block)
    result = values * _spread(scales.astype("float32"), values.shape, axis, block)
    kind = node.attrs.get("output_dtype")
    return relax.const(
        result.astype(helper.tensor_dtype_to_np_dtype(kind) if kind else scales.dtype)
    )


def _spread(parameters: np.ndarray, extents: tuple[int, ...], axis: int, block: int) -> np.ndarray:
    """Scales or zero points of a tensor, indices of ``axis`` or blocks of it, for all elements."""
    if parameters.size == 1:
        return parameters.reshape(())
    if block:
        whole = np.repeat(parameters, block, axis)
        return whole.take(range(extents[axis]), axis)
    return parameters.reshape([-1 if place == axis else 1 for place in range(len(extents))])


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """Numbers of ``bits`` bits, the lowest of each byte first."""
    shifts = np.arange(0, 8, bits, dtype="uint8")
    numbers = (packed[..., None] >> shifts) & ((1 << bits) - 1)
    return numbers.reshape(*packed.shape[:-1], -1)


CONVERTERS: dict[str, Converter] = {
    "DequantizeLinear": dequantize_linear,
    "com.microsoft.DequantizeLinear": dequantize_linear,
    "com.microsoft.GatherBlockQuantized": gather_block_quantized,
    "com.microsoft.MatMulNBits": matmul_nbits,
}

LIMITS = {
    "DequantizeLinear": "blocks of what is not constant",
    "com.microsoft.DequantizeLinear": "blocks of what is not constant",
    "com.microsoft.GatherBlockQuantized": "other axes than rows of which columns are quantized; a last "
    "block of fewer columns",
    "com.microsoft.MatMulNBits": "weights that are not constant, or prepacked; g_idx",
}
"""What is not supported, by operator."""
