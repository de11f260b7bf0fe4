"""Windows along an axis (``Tensor.unfold``) and other views of a tensor's memory (``as_strided``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tvm import relax

from tvmtune.networks.relax_operators import Operators, shape
from tvmtune.networks.torch.program import arguments

WHOLE = {torch.ops.aten.unfold.default}
"""Operators that are to be converted as they are. PyTorch decomposes windows into views of memory with
strides that the imported tensors do not have."""


def _unfold(node: Any, importer: Any) -> Any:
    """Windows along an axis; their elements are the last axis."""
    given = arguments(node)
    source, size = importer.env[node.args[0]], given["size"]
    extents = shape(source)
    rank = len(extents)
    op = Operators(importer.block_builder)
    if not rank:
        return op.reshape(source, (size,))
    axis = given["dimension"] % rank
    if size == given["step"]:  # patches, which do not overlap
        count = extents[axis] // size
        if count * size < extents[axis]:
            source = op.strided_slice(source, [axis], [0], [count * size])
        windows = op.reshape(source, [*extents[:axis], count, size, *extents[axis + 1 :]])
    else:
        starts = np.arange(0, extents[axis] - size + 1, given["step"])
        places = relax.const(starts[:, None] + np.arange(size), "int64")
        windows = op.take(source, places, axis=axis)
    order = [i for i in range(rank + 1) if i != axis + 1]
    return op.permute_dims(windows, [*order, axis + 1])


def _as_strided(node: Any, importer: Any) -> Any:
    """A lookup of the elements. The importer takes whole contiguous tensors only, without an offset.

    Raises NotImplementedError for what the tensor alone does not tell: if it is itself a view with
    other strides, or if the view has elements outside of it.
    """
    given = arguments(node)
    source = node.args[0].meta["val"]
    if not source.is_contiguous():
        raise NotImplementedError("a view of a tensor that is not contiguous is not supported")
    # An offset is from the start of the memory, which may be before the tensor's.
    begin, offset = source.storage_offset(), given["storage_offset"]
    places = np.array(0 if offset is None else offset - begin)
    for extent, stride in zip(given["size"], given["stride"], strict=True):
        places = np.expand_dims(places, -1) + np.arange(extent) * stride
    if places.size and not (places.min() >= 0 and places.max() < source.numel()):
        raise NotImplementedError("a view of memory outside of its tensor is not supported")
    op = Operators(importer.block_builder)
    elements = op.reshape(importer.env[node.args[0]], (source.numel(),))
    return op.take(elements, relax.const(places.astype("int64"), "int64"), axis=0)


CONVERTERS = {"as_strided.default": _as_strided, "unfold.default": _unfold}
