"""A packed convolution as an unscheduled TensorIR function, the workload of a task."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tvmtune_vta.codegen.workload import Convolution, Epilogue
from tvmtune_vta.hardware.config import Config

if TYPE_CHECKING:
    import tvm

BLOCK = "conv2d_packed"
ATTRIBUTE = "tvmtune_vta"
EPILOGUE = Epilogue(bias=True)
"""The epilogue of all tasks: a bias, a shift and two bounds. A layer's time depends on their values
only if it does not shift at all, or by more than 15, which takes two instructions."""


def module(conv: Convolution, config: Config, epilogue: Epilogue = EPILOGUE) -> tvm.IRModule:
    """A function ``main`` of packed data, weights, bias (CO/c, b, c) and output, unscheduled.

    Its attribute :data:`ATTRIBUTE` holds the fields of ``conv`` and ``epilogue``. Raises
    :class:`TvmtuneError` for a shape that the configuration cannot compute.
    """
    import tvm
    from tvm import te

    conv.check(config)
    shapes = conv.shapes(config)
    data, weights = (
        te.placeholder(shape, "int8", name)
        for shape, name in zip(shapes[:2], ("data", "weights"), strict=True)
    )
    block = config.block
    bias = te.placeholder((shapes[2][1], config.batch, block), "int32", "bias")
    padded = _padded(data, conv)
    ins, outs = shapes[1][1], shapes[1][0] // conv.groups
    ci, ky, kx, ic = (
        te.reduce_axis((0, extent), name)
        for extent, name in zip(
            (ins, conv.kernel_h, conv.kernel_w, block), ("ci", "ky", "kx", "ic"), strict=True
        )
    )

    def products(n: Any, co: Any, y: Any, x: Any, b: Any, oc: Any) -> Any:
        channel = ci if conv.groups == 1 else co // outs * ins + ci
        at = (n, channel, y * conv.stride_h + ky, x * conv.stride_w + kx, b, ic)
        left = padded(*at).astype("int32")
        right = weights(co, ci, ky, kx, oc, ic).astype("int32")
        return te.sum(left * right, axis=[ci, ky, kx, ic])

    sums = te.compute(shapes[2], products, name=BLOCK)

    def finished(n: Any, co: Any, y: Any, x: Any, b: Any, oc: Any) -> Any:
        value = sums(n, co, y, x, b, oc)
        if epilogue.bias:
            value = value + bias(co, b, oc)
        value = value >> epilogue.shift
        if epilogue.low is not None:
            value = te.max(value, tvm.tirx.const(epilogue.low, "int32"))
        if epilogue.high is not None:
            value = te.min(value, tvm.tirx.const(epilogue.high, "int32"))
        return value.astype("int8")

    output = te.compute(shapes[2], finished, name="output")
    function = te.create_prim_func([data, weights, bias, output])
    workload = {"convolution": conv.to_json(), "epilogue": asdict(epilogue)}
    function = function.with_attr(ATTRIBUTE, json.dumps(workload, sort_keys=True))
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def _padded(data: Any, conv: Convolution) -> Any:
    from tvm import te, tirx

    n, c, h, w, b, i = (int(d) for d in data.shape)
    shape = (n, c, *conv.padded, b, i)
    if (h, w) == conv.padded and conv.pad_h == conv.pad_w == 0:
        return data

    def value(n: Any, c: Any, y: Any, x: Any, b: Any, i: Any) -> Any:
        inside, at = [], []
        for place, pad, up, extent in (
            (y, conv.pad_h, conv.up_h, h),
            (x, conv.pad_w, conv.up_w, w),
        ):
            inside += [place >= pad, place < (extent - 1) * up + 1 + pad]
            inside += [tirx.floormod(place - pad, up) == 0] if up > 1 else []
            at.append(tirx.floordiv(place - pad, up) if up > 1 else place - pad)
        zero = tirx.const(0, "int8")
        return tirx.if_then_else(tirx.all(*inside), data(n, c, *at, b, i), zero)

    return te.compute(shape, value, name="padded")
