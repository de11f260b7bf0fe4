"""Softmax for CPUs, by whole vectors and without denormal numbers among its results.

Masks add large negative numbers, often -100: exp(-100) is a denormal number, with which CPUs compute a
hundred times more slowly. Swin's products of attention weights and values took 4.4 ms with them and
0.04 ms without; BERT's softmax with masks of -10000, which are denormal on the way to 0, 0.31 and
0.05 ms.
"""

from __future__ import annotations

import math
from typing import Any

SMALLEST = math.log(2.0**-126)
"""Logarithm of the smallest normal float32."""
LANES = 16
"""Rows are padded to a multiple of it: a vector of AVX-512, two of AVX2, four of NEON."""


def _softmax(builder: Any, call: Any) -> Any:
    return builder.call_te(
        softmax, call.args[0], int(call.attrs.axis), primfunc_name_hint="softmax"
    )


LEGALIZERS = {"relax.nn.softmax": _softmax}


def softmax(x: Any, axis: int) -> Any:
    """exp(x - max) / sum, as TOPI computes it, for a TE tensor of static shape.

    In float32, results below the smallest normal number are 0; so may be others up to as many times
    that as there are elements along ``axis``. Other dtypes are left alone: float16's denormals cost
    nothing. Long rows along the last axis are padded with minus infinity to a multiple of
    :data:`LANES`, because the 197 columns of a ViT, for example, would be summed one by one.
    """
    from tvm import te, tirx

    axis %= len(x.shape)
    extent = int(x.shape[axis])
    others = [n for place, n in enumerate(x.shape) if place != axis]
    shape = list(x.shape)
    if str(x.dtype) == "float32" and axis == len(shape) - 1 and extent > LANES and extent % LANES:
        data = x
        columns = -(-extent // LANES) * LANES
        x = te.compute(
            [*shape[:-1], columns],
            lambda *i: tirx.if_then_else(
                i[-1] < extent, data(*i), tirx.const(-math.inf, "float32")
            ),
            name="T_softmax_padded",
        )

    def along(indices: Any, index: Any) -> list[Any]:
        return [*indices[:axis], index, *indices[axis:]]

    def outside(indices: Any) -> list[Any]:
        return [*indices[:axis], *indices[axis + 1 :]]

    k = te.reduce_axis((0, x.shape[axis]), name="k")
    largest = te.compute(
        others, lambda *i: te.max(x(*along(i, k)), axis=k), name="T_softmax_maxelem"
    )

    def power(*indices: Any) -> Any:
        exponent = x(*indices) - largest(*outside(indices))
        if str(x.dtype) != "float32":
            return te.exp(exponent)
        # The sum, by which it is divided, is at most the extent. NaN is not below anything. Vectors
        # compute both sides, so the exponential must not see the others either.
        lowest = tirx.const(SMALLEST + math.log(extent), "float32")
        powered = te.exp(tirx.Select(exponent < lowest, lowest, exponent))
        return tirx.Select(exponent < lowest, tirx.const(0.0, "float32"), powered)

    powers = te.compute(x.shape, power, name="T_softmax_exp")
    k = te.reduce_axis((0, x.shape[axis]), name="k")
    total = te.compute(
        others, lambda *i: te.sum(powers(*along(i, k)), axis=k), name="T_softmax_expsum"
    )
    return te.compute(shape, lambda *i: powers(*i) / total(*outside(i)), name="T_softmax_norm")
