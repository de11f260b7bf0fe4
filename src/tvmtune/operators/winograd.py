"""Winograd's convolution F(4x4, 3x3) for NHWC data.

A 4x4 output tile needs 36 multiplications per channel pair instead of 144. The weights are transformed
at compile time, in float64; at run time there are an input transform, 36 matrix products and an output
transform. The transforms have fixed schedules (``rules.py`` registers them); the matrix products are
left to the search.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmtune.arrays import empty
from tvmtune.operators.fusable_calls import call_fusable
from tvmtune.passes import constants

TILE = 4
ALPHA = TILE + 3 - 1

# Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015, section 4.3: the points
# 0, 1, -1, 2, -2. TVM has a generator (``topi.nn.winograd_util``), which takes 0, -1, 1, 1/2, -2:
# other matrices, hence other workload keys than in existing logs. It also yields TE tensors, while
# the weights are transformed by NumPy.
INPUT = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
WEIGHT = (
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)
OUTPUT = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))

LANES = 16
"""Channels per vector in the transforms; they must divide the numbers of channels."""


def applies(call: Any) -> bool:
    """3x3, stride 1, no dilation, one group, NHWC float32, constant weights, multiples of 16
    channels."""
    import tvm

    attrs = call.attrs
    data, weight = call.args[0].ty, call.args[1].ty
    if attrs.data_layout != "NHWC" or attrs.kernel_layout != "HWIO" or attrs.groups != 1:
        return False
    if attrs.out_layout != "NHWC" or not isinstance(call.args[1], tvm.ir.GenericConst):
        return False
    if str(data.dtype) != "float32" or str(weight.dtype) != "float32":
        return False
    kh, kw, ci, co = (int(d) for d in weight.shape)
    return (
        (kh, kw) == (3, 3)
        and all(int(s) == 1 for s in attrs.strides)
        and all(int(d) == 1 for d in attrs.dilation)
        and ci % LANES == 0
        and co % LANES == 0
    )


def replace(builder: Any, call: Any, values: bool = True) -> Any:
    """The Winograd program for a ``relax.nn.conv2d`` that :func:`applies` accepted.

    Without ``values`` the transformed weights, four times as large, stay uninitialized.
    """
    if values:
        weight = constants.share(transform_weight(call.args[1].value.numpy()))
    else:
        _, _, ci, co = (int(extent) for extent in call.args[1].ty.shape)
        weight = constants.share(empty((ALPHA, ALPHA, ci, co), "float32"))
    padding = [int(p) for p in call.attrs.padding]  # top, left, bottom, right

    def program(data: Any, transformed: Any) -> Any:
        return convolution(data, transformed, padding)

    return call_fusable(builder, program, call.args[0], weight, "conv2d_winograd")


def transform_weight(weight: np.ndarray) -> np.ndarray:
    """(3, 3, ci, co) to (6, 6, ci, co)."""
    g = np.array(WEIGHT, dtype="float64")
    return np.einsum("ak,bl,klio->abio", g, g, weight.astype("float64")).astype("float32")


def convolution(data: Any, weight: Any, padding: list[int]) -> Any:
    """TE program from (n, h, w, ci) and (6, 6, ci, co) to (n, h', w', co)."""
    from tvm import te, tirx, topi

    n, h, w, ci = (int(d) for d in data.shape)
    co = int(weight.shape[3])
    top, left, bottom, right = padding
    out_h, out_w = h + top + bottom - 2, w + left + right - 2
    rows, cols = -(-out_h // TILE), -(-out_w // TILE)
    tiles = n * rows * cols
    padded = topi.nn.pad(
        data,
        (0, top, left, 0),
        (0, rows * TILE + 2 - h - top, cols * TILE + 2 - w - left, 0),
        name="winograd_pad",
        attrs={"schedule_rule": "None"},
    )

    def combine(matrix: Any, row: Any, load: Any) -> Any:
        """Row ``row`` of ``matrix`` times the vector that ``load`` reads; the schedule unrolls ``row``,
        so the selection and the zeros vanish."""
        result = None
        for index in reversed(range(len(matrix))):
            total = tirx.const(0.0, "float32")
            for column, factor in enumerate(matrix[index]):
                if factor:
                    total = total + load(column) * tirx.const(float(factor), "float32")
            result = total if result is None else tirx.Select(row == index, total, result)
        return result

    half = te.compute(
        (ALPHA, ALPHA, tiles, ci),
        lambda a, y, p, c: combine(
            INPUT,
            a,
            lambda k: padded[
                p // (rows * cols), (p // cols % rows) * TILE + k, (p % cols) * TILE + y, c
            ],
        ),
        name="winograd_input_rows",
        attrs={"schedule_rule": "None"},
    )
    packed = te.compute(
        (ALPHA, ALPHA, tiles, ci),
        lambda a, b, p, c: combine(INPUT, b, lambda k: half[a, k, p, c]),
        name="winograd_input",
        attrs={"schedule_rule": "tvmtune.winograd_input"},
    )
    k = te.reduce_axis((0, ci), "k")
    product = te.compute(
        (ALPHA, ALPHA, tiles, co),
        lambda a, b, p, c: te.sum(packed[a, b, p, k] * weight[a, b, k, c], axis=k),
        name="winograd_product",
        # Without a write-cache level the rules try to merge the output transform into the product, for
        # which TVM 0.27 raises an exception.
        attrs={"s_tir.meta_schedule.write_cache_level": [2]},
    )
    back = te.compute(
        (TILE, ALPHA, tiles, co),
        lambda i, b, p, c: combine(OUTPUT, i, lambda r: product[r, b, p, c]),
        name="winograd_output_rows",
        attrs={"schedule_rule": "None"},
    )
    inverse = te.compute(
        (TILE, TILE, tiles, co),
        lambda i, j, p, c: combine(OUTPUT, j, lambda r: back[i, r, p, c]),
        name="winograd_output",
        attrs={"schedule_rule": "tvmtune.winograd_output"},
    )
    return te.compute(
        (n, out_h, out_w, co),
        lambda b, y, x, c: inverse[
            y % TILE, x % TILE, (b * rows + y // TILE) * cols + x // TILE, c
        ],
        name="conv2d_winograd",
        attrs={"schedule_rule": "None"},
    )


def schedule_input(sch: Any, block: Any) -> list[Any]:
    """One tile and 16 channels at a time: pad and transform the 6x6 patch in registers."""
    half = sch.get_producers(block)[0]
    pad = sch.get_producers(half)[0]
    a, b, p, c = sch.get_loops(block)
    outer, lanes = sch.split(c, [None, LANES])
    sch.reorder(p, outer, a, b, lanes)
    task = sch.fuse(p, outer)
    sch.vectorize(lanes)
    sch.compute_at(half, task, preserve_unit_loops=True)
    sch.compute_at(pad, task, preserve_unit_loops=True)
    for loop in (*sch.get_loops(half)[1:3], a, b):
        sch.unroll(loop)
    for inner in (half, pad):
        sch.vectorize(sch.get_loops(inner)[-1])
    sch.parallel(task)
    return [sch]


def schedule_output(sch: Any, block: Any) -> list[Any]:
    """One tile and 16 channels at a time, epilogue included, so that products are read once."""
    back = sch.get_producers(block)[0]
    last = sch.get_consumers(block)[0]
    while sch.get_consumers(last):
        following = sch.get_consumers(last)[0]
        sch.compute_inline(last)
        last = following
    n, y, x, c = sch.get_loops(last)
    rows, i = sch.split(y, [None, TILE])
    cols, j = sch.split(x, [None, TILE])
    outer, lanes = sch.split(c, [None, LANES])
    sch.reorder(n, rows, cols, outer, i, j, lanes)
    task = sch.fuse(n, rows, cols, outer)
    sch.vectorize(lanes)
    sch.compute_at(block, task, preserve_unit_loops=True)
    sch.compute_at(back, task, preserve_unit_loops=True)
    for inner in (block, back):
        loops = sch.get_loops(inner)
        for loop in loops[1:3]:
            sch.unroll(loop)
        sch.vectorize(loops[-1])
    sch.unroll(j)
    sch.parallel(task)
    return [sch]
