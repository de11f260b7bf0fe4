"""Converters of operators with a sliding window: poolings, transposed convolutions and Col2Im."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx, topi

from tvmtune.networks.onnx.converters.request import Converter, Node, required
from tvmtune.networks.relax_operators import dtype, shape

MOST_TERMS = 64
"""Of the sum for each pixel of ``Col2Im``, if it is written out, which is up to six times as fast as a
loop; the kernel of more terms would take seconds to compile."""


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
    """The importer shifts regions by half a pixel before it scales them, not after, and its mode 'max'
    differs from the standard."""
    if node.text("mode", "avg") == "max":
        raise ValueError("the mode 'max' is not supported; 'avg' is")
    if node.attrs.get("sampling_ratio", 0) < 1:
        # No schedule can be made for a sum of so many terms.
        raise ValueError(
            "its sampling_ratio is 0, with which the number of samples depends on the data; 1 and more "
            "are supported"
        )
    data, regions, images = node.inputs
    default = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    if node.text("coordinate_transformation_mode", default) == "half_pixel":
        regions = node.op.multiply(regions, float(node.attrs.pop("spatial_scale", 1.0)))
    return node.standard(data, regions, images)


@dataclass(frozen=True)
class _Axis:
    """A spatial axis of an image that is the sum of overlapping blocks."""

    extent: int
    """Of the image."""
    size: int
    """Of a block."""
    stride: int
    before: int
    after: int
    """Padding: what blocks add outside of the image is dropped."""
    dilation: int

    @property
    def blocks(self) -> int:
        whole = self.extent + self.before + self.after
        return (whole - self.dilation * (self.size - 1) - 1) // self.stride + 1

    @property
    def period(self) -> int:
        """Elements of a block that are so far apart are added to the same pixels."""
        return self.stride // math.gcd(self.stride, self.dilation)

    @property
    def terms(self) -> int:
        """Elements that are added to a pixel, at most."""
        return -(-self.size // self.period)

    def source(self, pixel: Any, term: int) -> tuple[Any, Any, list[Any]]:
        """Which element of which block is added to a pixel, and the conditions that there is one."""
        # Block b adds its element e to pixel b * stride + e * dilation - before.
        place = pixel + self.before
        common = self.stride // self.period
        inverse = pow(self.dilation // common, -1, self.period)
        element = place // common * inverse % self.period + term * self.period
        distance = place - element * self.dilation
        block = distance // self.stride
        conditions = [element < self.size, distance >= 0, block < self.blocks]
        if common > 1:
            conditions.append(place % common == 0)
        return element, block, conditions


def column_to_image(node: Node) -> Any:
    """A kernel that gathers, for each pixel, the elements of the blocks that cover it."""
    columns = node.inputs[0]
    image = required(node.inputs[1], "image_shape").tolist()
    block = required(node.inputs[2], "block_shape").tolist()
    rank = len(image)
    ones, pads = (1,) * rank, node.attrs.get("pads", (0,) * 2 * rank)
    strides, dilations = (node.attrs.get(name, ones) for name in ("strides", "dilations"))
    parts = (image, block, strides, pads[:rank], pads[rank:], dilations)
    if min(*image, *block, *strides, *dilations) < 1:
        raise ValueError("its image_shape, block_shape, strides and dilations must be positive")
    axes = [_Axis(*map(int, part)) for part in zip(*parts, strict=True)]
    _check_columns(columns, axes)
    program = functools.partial(_sum_of_blocks, axes)
    return node.builder.emit_te(program, columns, primfunc_name_hint="col2im")


def _check_columns(columns: Any, axes: Sequence[_Axis]) -> None:
    """Raise ValueError unless there are as many columns, and elements in each, as the axes say."""
    kind = dtype(columns)
    if not kind.startswith(("float", "bfloat", "int", "uint")):
        raise ValueError(f"its dtype {kind} is not supported")
    if any(axis.blocks < 1 for axis in axes):
        raise ValueError("a block is larger than the padded image")
    size, count = (math.prod(n) for n in zip(*((a.size, a.blocks) for a in axes), strict=True))
    extents = shape(columns)
    if len(extents) != 3 or extents[1] % size or extents[2] != count:
        raise ValueError(
            f"its input has the shape {tuple(extents)}, not (N, a multiple of {size}, {count})"
        )


def _sum_of_blocks(axes: Sequence[_Axis], columns: Any) -> Any:
    """In TE, from ``(N, C * elements of a block, blocks)`` to ``(N, C, *image)``."""
    batch, rows, _ = columns.shape
    size = math.prod(axis.size for axis in axes)
    kind = str(columns.dtype)
    wide = "float32" if kind in ("float16", "bfloat16") else kind

    def term(image: Any, channel: Any, place: Sequence[Any], terms: Sequence[Any]) -> Any:
        element, block, conditions = 0, 0, []
        for axis, position, number in zip(axes, place, terms, strict=True):
            inner, outer, valid = axis.source(position, number)
            element, block = element * axis.size + inner, block * axis.blocks + outer
            conditions += valid
        value = columns[image, channel * size + element, block].astype(wide)
        return tirx.if_then_else(tirx.all(*conditions), value, tirx.const(0, wide))

    counts = [axis.terms for axis in axes]

    def pixel(image: Any, channel: Any, *place: Any) -> Any:
        if math.prod(counts) > MOST_TERMS:
            loops = [te.reduce_axis((0, count), "term") for count in counts]
            return te.sum(term(image, channel, place, loops), axis=loops)
        values = [
            term(image, channel, place, numbers)
            for numbers in itertools.product(*map(range, counts))
        ]
        return functools.reduce(operator.add, values)

    extents = (batch, rows // size, *(axis.extent for axis in axes))
    result = te.compute(extents, pixel, name="col2im")
    return result if wide == kind else topi.cast(result, kind)


CONVERTERS: dict[str, Converter] = {
    "AveragePool": pool,
    "Col2Im": column_to_image,
    "ConvTranspose": conv_transpose,
    "LpPool": pool,
    "MaxPool": pool,
    "RoiAlign": roi_align,
}

LIMITS = {
    "Col2Im": "an image_shape or block_shape that is not constant; truth values, strings",
    "MaxPool": "the indices of the maxima as a result",
    "RoiAlign": "mode max; a sampling_ratio of 0, the default",
}
"""What is not supported, by operator."""
