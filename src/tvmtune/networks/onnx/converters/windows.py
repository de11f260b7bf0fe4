"""Converters of operators with a sliding window: poolings and transposed convolutions."""

from __future__ import annotations

from typing import Any

from tvmtune.networks.onnx.converters.request import Converter, Node
from tvmtune.networks.relax_operators import shape


def conv_transpose(node: Node) -> Any:
    """The importer ignores ``output_shape``, from which the standard derives the padding."""
    wanted = node.attrs.pop("output_shape", None)
    if wanted:
        extents = shape(node.inputs[0])[2:]
        rank = len(extents)
        wanted = wanted[-rank:]
        strides = node.attrs.get("strides", (1,) * rank)
        dilations = node.attrs.get("dilations", (1,) * rank)
        kernel = node.attrs.get("kernel_shape", shape(node.inputs[1])[2:])
        extra = list(node.attrs.get("output_padding", (0,) * rank))
        upper = node.text("auto_pad", "NOTSET") == "SAME_UPPER"
        before, after = [], []
        for i in range(rank):
            reach = strides[i] * (extents[i] - 1) + extra[i] + (kernel[i] - 1) * dilations[i] + 1
            total = reach - wanted[i]
            if total < 0:
                extra[i], total = extra[i] - total, 0
            before.append(total // 2 if upper else total - total // 2)
            after.append(total - before[-1])
        node.attrs.pop("auto_pad", None)
        node.attrs.update(pads=(*before, *after), output_padding=tuple(extra))
    return node.standard(*node.inputs)


def pool(node: Node) -> Any:
    """The importer pads wrongly for SAME_LOWER, and has no indices for MaxPool."""
    if node.outputs > 1:
        raise ValueError("the indices of the maxima, its second result, are not supported")
    mode = node.text("auto_pad", "NOTSET")
    kernel = node.attrs["kernel_shape"]
    rank = len(kernel)
    if mode == "VALID":
        node.attrs["pads"] = (0,) * 2 * rank
    elif mode != "NOTSET":
        strides = node.attrs.get("strides", (1,) * rank)
        dilations = node.attrs.get("dilations", (1,) * rank)
        before, after = [], []
        for i, extent in enumerate(shape(node.inputs[0])[2:]):
            reach = (-(-extent // strides[i]) - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1
            total = max(reach - extent, 0)
            before.append(total // 2 if mode == "SAME_UPPER" else total - total // 2)
            after.append(total - before[-1])
        node.attrs["pads"] = (*before, *after)
    node.attrs.pop("auto_pad", None)
    return node.standard(*node.inputs)


def roi_align(node: Node) -> Any:
    """The importer's mode 'max' differs from the standard."""
    if node.text("mode", "avg") == "max":
        raise ValueError("the mode 'max' is not supported; 'avg' is")
    return node.standard(*node.inputs)


CONVERTERS: dict[str, Converter] = {
    "AveragePool": pool,
    "ConvTranspose": conv_transpose,
    "LpPool": pool,
    "MaxPool": pool,
    "RoiAlign": roi_align,
}

LIMITS = {
    "MaxPool": "the indices of the maxima as a result",
    "RoiAlign": "mode max",
}
"""What is not supported, by operator."""
