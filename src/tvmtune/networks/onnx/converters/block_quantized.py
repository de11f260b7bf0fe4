"""Products with weights that are quantized in blocks, as language models are shipped.

The weights are dequantized at import: kernels compute in floating point.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvmtune.networks.onnx.converters.request import Converter, Node, optional, required
from tvmtune.networks.relax_operators import dtype


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


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """Numbers of ``bits`` bits, the lowest of each byte first."""
    shifts = np.arange(0, 8, bits, dtype="uint8")
    numbers = (packed[..., None] >> shifts) & ((1 << bits) - 1)
    return numbers.reshape(*packed.shape[:-1], -1)


CONVERTERS: dict[str, Converter] = {"com.microsoft.MatMulNBits": matmul_nbits}

LIMITS = {
    "com.microsoft.MatMulNBits": "weights that are not constant, or prepacked; g_idx",
}
"""What is not supported, by operator."""
