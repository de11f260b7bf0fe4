"""Converters of operators that join, split or create tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper
from tvm import relax

from tvmtune.networks.onnx.converters.request import (
    Converter,
    Node,
    constant,
    is_tensor,
    required,
    reshaped_from,
)
from tvmtune.networks.relax_operators import dtype, shape
from tvmtune.static_shapes import static_shape


def concat(node: Node) -> Any:
    """Drops inputs without elements, for which no kernel can be built."""
    kept = [i for i in node.inputs if not is_tensor(i) or 0 not in shape(i)]
    if len(kept) == 1 and len(node.inputs) > 1:
        return kept[0]
    return node.standard(*kept)


def dropout(node: Node) -> Any:
    """The identity in inference. The importer's result is a tuple that lacks the mask."""
    data = node.inputs[0]
    training = node.input(2)
    if training is not None and bool(required(training, "training_mode").all()):
        raise ValueError("it is in training mode, and its result is random")
    if node.outputs == 1:
        return data
    return relax.Tuple([data, relax.const(np.ones(shape(data), "bool"), "bool")])


def eye_like(node: Node) -> Any:
    """The importer refuses a dtype other than the input's."""
    rows, columns = shape(node.inputs[0])
    kind = dtype(node.inputs[0])
    if "dtype" in node.attrs:
        kind = helper.tensor_dtype_to_np_dtype(node.attrs["dtype"]).name
    return relax.const(np.eye(rows, columns, node.attrs.get("k", 0), dtype=kind), kind)


def pad(node: Node) -> Any:
    """Zeros around floats as an operator, which passes can move; the importer emits a kernel."""
    data, axes, value = node.inputs[0], node.input(3), node.input(2)
    given = node.attrs.get("pads")
    widths = constant(node.input(1)) if given is None else np.array(given)
    number = node.attrs.get("value", 0.0) if value is None else constant(value)
    if node.text("mode", "constant") != "constant" or "float" not in dtype(data):
        return node.standard(*node.inputs)
    if widths is None or number is None or (widths < 0).any():
        return node.standard(*node.inputs)
    rank = len(shape(data))
    places = range(rank) if axes is None else required(axes, "axes")
    both = np.zeros((rank, 2), int)
    both[[int(place) % rank for place in places]] = widths.reshape(2, -1).T
    return relax.op.nn.pad(data, both.reshape(-1).tolist(), "constant", float(np.asarray(number)))


def reshape(node: Node) -> Any:
    """Of several in a row, only the last; none if that restores the shape."""
    result = node.emit(node.standard(*node.inputs))
    data = node.inputs[0]
    first = reshaped_from(node.builder, data)
    if first is data or static_shape(first) is None or static_shape(result) is None:
        return result
    return first if shape(first) == shape(result) else relax.op.reshape(first, shape(result))


def split(node: Node) -> Any:
    """The importer emits a kernel that does not compile for a part without elements."""
    x, sizes = node.inputs[0], node.attrs.get("split")
    if node.input(1) is not None:
        sizes = required(node.inputs[1], "split")
    if sizes is None or 0 not in sizes:
        return node.standard(*node.inputs)
    axis = node.attrs.get("axis", 0) % len(shape(x))
    parts, start = [], 0
    for size in map(int, sizes):
        if size:
            part = relax.op.strided_slice(x, [axis], [start], [start + size])
            parts.append(node.emit(part))
        else:
            blank = [0 if i == axis else extent for i, extent in enumerate(shape(x))]
            parts.append(relax.const(np.empty(blank, dtype(x)), dtype(x)))
        start += size
    return relax.Tuple(parts)


def space_to_depth(node: Node) -> Any:
    """The importer ignores the mode, which says whether channels or positions in a block come first."""
    if node.text("mode", "DCR") == "DCR":
        return node.standard(*node.inputs)
    x, size, op = node.inputs[0], node.attrs["blocksize"], node.op
    batch, channels, height, width = shape(x)
    rows, columns = height // size, width // size
    blocks = op.reshape(x, [batch, channels, rows, size, columns, size])
    moved = op.permute_dims(blocks, [0, 1, 3, 5, 2, 4])
    return op.reshape(moved, [batch, channels * size * size, rows, columns])


CONVERTERS: dict[str, Converter] = {
    "Concat": concat,
    "Dropout": dropout,
    "EyeLike": eye_like,
    "Pad": pad,
    "Reshape": reshape,
    "SpaceToDepth": space_to_depth,
    "Split": split,
}

LIMITS = {
    "Dropout": "training mode",
}
"""What is not supported, by operator."""
