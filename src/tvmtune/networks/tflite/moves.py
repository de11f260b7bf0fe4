"""Operators of TFLite files that move elements.

TVM's importer makes of SPACE_TO_BATCH_ND and BATCH_TO_SPACE_ND calls of functions that exist only at
compile time, splits at the sums of SPLIT_V's sizes, of which one may be -1, and leaves all axes to
SQUEEZE without axes. It ignores that ends of STRIDED_SLICE may be distances from the begins, and rounds
places of RESIZE_NEAREST_NEIGHBOR down that are halfway.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvmtune.networks import interpolation
from tvmtune.networks.relax_operators import Operators, shape
from tvmtune.types import product


def space_to_batch_nd(converter: Any, op: Any) -> Any:
    """The positions in blocks move before the batch: (n, h, w, c) becomes (bh * bw * n, h / bh, w / bw,
    c), with padding, for blocks (bh, bw) of any number of axes."""
    x, blocks, widths = _in_blocks(converter, op)
    ops, count = Operators(converter.bb), len(blocks)
    if widths.any():
        around = np.zeros((len(shape(x)), 2), int)
        around[1 : count + 1] = widths
        x = ops.nn.pad(x, around.reshape(-1).tolist())
    batch, *extents = shape(x)
    outer = [extent // block for extent, block in zip(extents, blocks, strict=False)]
    pairs = [extent for pair in zip(outer, blocks, strict=True) for extent in pair]
    x = ops.reshape(x, [batch, *pairs, *extents[count:]])
    end = 1 + 2 * count
    x = ops.permute_dims(x, [*range(2, end, 2), 0, *range(1, end, 2), *range(end, x.ty.ndim)])
    return relax.op.reshape(x, [product(blocks) * batch, *outer, *extents[count:]])


def batch_to_space_nd(converter: Any, op: Any) -> Any:
    """The inverse of :func:`space_to_batch_nd`, with crops for its padding."""
    x, blocks, crops = _in_blocks(converter, op)
    ops, count = Operators(converter.bb), len(blocks)
    batch, *extents = shape(x)
    batch //= product(blocks)
    x = ops.reshape(x, [*blocks, batch, *extents])
    pairs = [axis for i in range(count) for axis in (count + 1 + i, i)]
    x = ops.permute_dims(x, [count, *pairs, *range(1 + 2 * count, x.ty.ndim)])
    whole = [extent * block for extent, block in zip(extents, blocks, strict=False)]
    x = ops.reshape(x, [batch, *whole, *extents[count:]])
    if not crops.any():
        return x
    ends = (np.array(whole) - crops[:, 1]).tolist()
    return relax.op.strided_slice(x, list(range(1, count + 1)), crops[:, 0].tolist(), ends)


def _in_blocks(converter: Any, op: Any) -> tuple[Any, list[int], np.ndarray]:
    """The data, the extents of blocks, and the pairs of padding or crops, of shape (axes, 2)."""
    source, blocks, pairs = converter.get_input_tensors(op)
    x, extents = converter.get_tensor_expr(source), converter.get_tensor_value(blocks)
    return x, extents.reshape(-1).tolist(), converter.get_tensor_value(pairs)


def split_v(converter: Any, op: Any) -> Any:
    source, _, axis = converter.get_input_tensors(op)
    x, along = converter.get_tensor_expr(source), int(converter.get_tensor_value(axis).item())
    results = converter.get_output_tensors(op)
    if len(results) == 1:
        return x
    sizes = [int(converter.get_tensor_shape(each)[along]) for each in results]
    return relax.op.split(x, np.cumsum(sizes[:-1]).tolist(), along)


def squeeze(converter: Any, op: Any) -> Any:
    from tflite.SqueezeOptions import SqueezeOptions

    options = converter._get_builtin_options(op, SqueezeOptions)
    axes = options.SqueezeDimsAsNumpy().tolist() if options.SqueezeDimsLength() else None
    (source,) = converter.get_input_tensors(op)
    return relax.op.squeeze(converter.get_tensor_expr(source), axes)


def reverse_v2(converter: Any, op: Any) -> Any:
    source, axes = converter.get_input_tensors(op)
    x = converter.get_tensor_expr(source)
    for axis in converter.get_tensor_value(axes).reshape(-1).tolist():
        x = converter.bb.normalize(relax.op.flip(x, axis))
    return x


def symmetric_pad(converter: Any, op: Any) -> Any:
    """Padding by a mirror between the first element and what is before it."""
    source, pads = converter.get_input_tensors(op)
    x, widths = converter.get_tensor_expr(source), converter.get_tensor_value(pads).tolist()
    places = (
        np.pad(np.arange(extent), width, mode="symmetric")
        for extent, width in zip(shape(x), widths, strict=True)
    )
    return _taken(converter, x, dict(enumerate(places)))


def aligned_resize(converter: Any, op: Any, *, has_half_pixels: bool) -> Any:
    """The nearest pixels of data (n, h, w, c) where corners stay in place; halves are rounded up."""
    source, sizes = converter.get_input_tensors(op)
    x, targets = converter.get_tensor_expr(source), converter.get_tensor_value(sizes).tolist()
    offset = np.float32(0.5 if has_half_pixels else 0)
    places = {}
    for axis, target in enumerate(targets, 1):
        last = shape(x)[axis] - 1
        # As LiteRT computes it, in float32.
        step = np.float32(last) / np.float32(target - 1) if target > 1 else np.float32(last + 1)
        exact = (np.arange(target, dtype=np.float32) + offset) * step
        places[axis] = np.minimum(np.floor(exact.astype(np.float64) + 0.5), last).astype(np.int64)
    return _taken(converter, x, places)


def _taken(converter: Any, x: Any, places: dict[int, np.ndarray]) -> Any:
    """The elements at these places of some axes."""
    changed = {
        axis: interpolation.nearest(each, shape(x)[axis])
        for axis, each in places.items()
        if not np.array_equal(each, np.arange(shape(x)[axis]))
    }
    return interpolation.weighted_sum(converter.bb.normalize, x, changed)


def slice_from_offsets(converter: Any, op: Any, options: Any) -> Any:
    """STRIDED_SLICE with ends that are distances from the begins."""
    if options.EllipsisMask() or options.NewAxisMask():
        raise NotImplementedError(
            "a slice with offset=True does not support an ellipsis or new axes"
        )
    source, *given = converter.get_input_tensors(op)
    (result,) = converter.get_output_tensors(op)
    x = converter.get_tensor_expr(source)
    begins, ends, steps = (converter.get_tensor_value(each).tolist() for each in given)
    if min(steps) < 0:
        raise NotImplementedError("a slice with offset=True does not support negative strides")
    for axis, extent in enumerate(shape(x)[: len(begins)]):
        is_set = 1 << axis
        begins[axis] = 0 if options.BeginMask() & is_set else begins[axis] % extent
        if options.ShrinkAxisMask() & is_set:
            ends[axis], steps[axis] = 1, 1
        ends[axis] = extent if options.EndMask() & is_set else begins[axis] + ends[axis]
    sliced = Operators(converter.bb).strided_slice(x, list(range(len(begins))), begins, ends, steps)
    return relax.op.reshape(sliced, [int(extent) for extent in converter.get_tensor_shape(result)])
