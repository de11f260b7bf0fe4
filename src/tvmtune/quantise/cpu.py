"""Whole numbers on a CPU: a network's layers as kernels that LLVM compiles.

Between layers a value q lies in memory as q + 128 in uint8, in blocks of 16 channels: instructions for
dot products (VNNI) multiply unsigned numbers by signed ones, four at a time for 16 outputs. What the
128 adds to a sum, 128 times the sum of the weights, is in the bias already; padding is 128, too.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks import int8
from tvmtune.quantise import borders, groups
from tvmtune.quantise.borders import Form
from tvmtune.quantise.groups import Group
from tvmtune.quantise.integers import Whole
from tvmtune.quantise.network import QuantisedNetwork, floats, quantised
from tvmtune.quantise.region import Layer, find
from tvmtune.types import Device, Network, Prepared, Task

if TYPE_CHECKING:
    from tvmtune.graph.tasks import SpaceFor

OFFSET = 128
FORM = Form(1, 16, OFFSET)
QUAD = 4
"""Products that one instruction adds up."""
_DEEPEST = (2**31 - 1) // (255 * 127)
"""Products of which int32 holds the sum."""


def prepare(
    network: Network,
    device: Device,
    layout: str | None,
    calibration: Mapping[str, np.ndarray] | None,
) -> Prepared:
    """As :func:`tvmtune.graph.pipeline.prepare`; a network of ``--dtype int8`` with the layers in whole
    numbers for which there is a kernel, already in its graph.

    Raises :class:`UsageError` for calibration data that do not fit or are not needed, and for another
    layout; :class:`TvmtuneError` for a network without such a layer.
    """
    from tvmtune.graph import pipeline

    if not int8.is_wanted(network):
        if calibration is not None:
            raise UsageError("--calibration is for --dtype int8: a float network needs none.")
        return pipeline.prepare(network, device, layout or "NHWC")
    prepared = floats(network, device, layout)
    layers = _layers(find(prepared.graph, name=network.name, whole=True).layers)
    if not layers:
        raise TvmtuneError(f"no layer of {network.name} can be computed in int8.")
    whole = quantised(prepared, layers, calibration)
    parts = groups.cut(prepared.graph, layers)
    graph = groups.replace(prepared.graph, parts, _Emitter(whole).group)
    return Prepared(whole, device, prepared.layout, graph)


def extract_tasks(prepared: Prepared, device: Device, space_for: SpaceFor) -> list[Task]:
    """As :func:`tvmtune.graph.tasks.extract_tasks`; of a network in whole numbers those that compute in
    them. Its floats keep their default schedules: others add up in another order, and rounding makes a
    whole step of the last bit of a float."""
    from tvmtune.graph.tasks import extract_tasks

    found = extract_tasks(prepared, device, space_for)
    if not isinstance(prepared.network, QuantisedNetwork):
        return found
    return [task for task in found if {"uint8"} <= _dtypes(task) <= {"uint8", "int8", "int32"}]


def _dtypes(task: Task) -> set[str]:
    return {arg.dtype for arg in task.args}


def _layers(found: tuple[Layer, ...]) -> list[Layer]:
    """Those that there are kernels for; sums of nothing but floats stay floats."""
    layers: list[Layer] = []
    made: set[str] = set()
    for layer in found:
        if layer.kind == "sum":
            fits = bool(made & set(layer.inputs))
        else:
            _, ins, kernel_h, kernel_w = layer.kernel
            one = layer.groups == 1 or _is_depthwise(layer)
            deep = -(-ins // FORM.block) * FORM.block * kernel_h * kernel_w
            fits = one and layer.up == (1, 1) and deep <= _DEEPEST
        if fits:
            layers.append(layer)
            made.add(layer.output)
    return layers


def _is_depthwise(layer: Layer) -> bool:
    out, ins, _, _ = layer.kernel
    return layer.groups > 1 and ins == 1 and out == layer.groups


class _Emitter:
    """Puts the kernels of layers into a graph."""

    def __init__(self, network: QuantisedNetwork) -> None:
        self.exponents = network.exponents
        self.wholes = {whole.layer.output: whole for whole in network.wholes}

    def group(self, builder: Any, group: Group, given: dict[str, Any]) -> dict[str, Any]:
        """A group of layers, floats around it."""
        known = {
            name: builder.emit(borders.pack(builder, value, self.exponents[name], FORM))
            for name, value in given.items()
        }
        for layer in group.layers:
            inputs = [known[name] for name in layer.inputs]
            emit = _sum if layer.kind == "sum" else _convolution
            known[layer.output] = emit(builder, self.wholes[layer.output], inputs)
        shapes = {layer.output: layer.out_shape for layer in group.layers}
        return {
            name: builder.emit(
                borders.unpack(builder, known[name], self.exponents[name], shapes[name], FORM)
            )
            for name in group.outputs
        }


def _convolution(builder: Any, whole: Whole, inputs: list[Any]) -> Any:
    """Padding, products and sums; then bias, shift and bounds, as kernels that TVM fuses."""
    assert whole.weights is not None and whole.bias is not None
    layer = whole.layer
    per_channel = whole.bias - OFFSET * whole.weights.astype(np.int32).sum(axis=(1, 2, 3))
    compute = _depthwise if _is_depthwise(layer) else _dense
    weights = _by_channel(whole) if _is_depthwise(layer) else _by_quads(whole)
    sums = builder.emit(
        builder.call_te(
            functools.partial(compute, layer=layer),
            inputs[0],
            _constant(weights),
            primfunc_name_hint="depthwise_conv2d_int8" if layer.groups > 1 else "conv2d_int8",
        )
    )
    bias, shift = (
        _constant(_blocks(values.astype(np.int32)))
        for values in (per_channel, np.full(len(per_channel), whole.shift))
    )
    return builder.emit(
        builder.call_te(
            functools.partial(_requantise, low=whole.low, high=whole.high),
            *(sums, bias, shift),
            primfunc_name_hint="requantise",
        )
    )


def _dense(x: Any, w: Any, layer: Layer) -> Any:
    """``w``: (O/16, I/16, KH, KW, 4, 16, 4)."""
    from tvm import te

    padded = _padded(x, layer)
    (step_h, step_w), (wide_h, wide_w) = layer.strides, layer.dilation
    _, blocks, kernel_h, kernel_w, quads, _, _ = (int(d) for d in w.shape)
    axes = [
        te.reduce_axis((0, extent), name)
        for name, extent in (
            ("ky", kernel_h),
            ("kx", kernel_w),
            ("ci", blocks),
            ("f", quads),
            ("s", QUAD),
        )
    ]
    ky, kx, ci, f, s = axes

    def element(n: Any, co: Any, y: Any, z: Any, b: Any, o: Any) -> Any:
        at = (n, ci, y * step_h + ky * wide_h, z * step_w + kx * wide_w, b, f * QUAD + s)
        return te.sum(
            padded(*at).astype("int32") * w(co, ci, ky, kx, f, o, s).astype("int32"), axis=axes
        )

    return te.compute(FORM.shape(layer.out_shape), element, name="conv2d_int8")


def _depthwise(x: Any, w: Any, layer: Layer) -> Any:
    """``w``: (C/16, KH, KW, 16)."""
    from tvm import te

    padded = _padded(x, layer)
    (step_h, step_w), (wide_h, wide_w) = layer.strides, layer.dilation
    _, kernel_h, kernel_w, _ = (int(d) for d in w.shape)
    ky, kx = te.reduce_axis((0, kernel_h), "ky"), te.reduce_axis((0, kernel_w), "kx")

    def element(n: Any, co: Any, y: Any, z: Any, b: Any, o: Any) -> Any:
        at = (n, co, y * step_h + ky * wide_h, z * step_w + kx * wide_w, b, o)
        product = padded(*at).astype("int32") * w(co, ky, kx, o).astype("int32")
        return te.sum(product, axis=[ky, kx])

    return te.compute(FORM.shape(layer.out_shape), element, name="depthwise_conv2d_int8")


def _padded(x: Any, layer: Layer) -> Any:
    from tvm import te, tirx

    top, left, bottom, right = layer.padding
    if not any(layer.padding):
        return x
    batch, blocks, height, width, b, c = (int(d) for d in x.shape)
    shape = (batch, blocks, height + top + bottom, width + left + right, b, c)

    def element(n: Any, ci: Any, y: Any, z: Any, bi: Any, i: Any) -> Any:
        inside = tirx.all(y >= top, y < top + height, z >= left, z < left + width)
        value = x(n, ci, y - top, z - left, bi, i)
        return tirx.if_then_else(inside, value, tirx.const(OFFSET, FORM.dtype))

    return te.compute(shape, element, name="pad")


def _requantise(sums: Any, bias: Any, shift: Any, low: int, high: int) -> Any:
    from tvm import te

    def element(*at: Any) -> Any:
        channel = at[1], at[5]
        return _cut((sums(*at) + bias(*channel)) >> shift(*channel), low, high)

    return te.compute(sums.shape, element, name="requantise")


def _sum(builder: Any, whole: Whole, inputs: list[Any]) -> Any:
    half = 1 << whole.shift - 1 if whole.shift else 0

    def compute(left: Any, right: Any) -> Any:
        from tvm import te, tirx

        def element(*at: Any) -> Any:
            total = tirx.const(half, "int32")
            for x, factor in zip((left, right), whole.factors, strict=True):
                if factor is not None:
                    step = x(*at).astype("int32") - OFFSET
                    total = total + step * tirx.const(1 << factor, "int32")
            return _cut(total >> whole.shift, whole.low, whole.high)

        return te.compute(left.shape, element, name="sum_int8")

    return builder.emit(builder.call_te(compute, *inputs, primfunc_name_hint="sum_int8"))


def _cut(value: Any, low: int, high: int) -> Any:
    from tvm import tirx

    bounds = (tirx.const(bound, "int32") for bound in (low, high))
    least, most = bounds
    return (tirx.min(tirx.max(value, least), most) + OFFSET).astype(FORM.dtype)


def _by_quads(whole: Whole) -> np.ndarray:
    """Weights (O, I, KH, KW) as (O/16, I/16, KH, KW, 4, 16, 4)."""
    assert whole.weights is not None
    out, ins, kernel_h, kernel_w = whole.weights.shape
    c = FORM.block
    more = [(0, -out % c), (0, -ins % c), (0, 0), (0, 0)]
    blocks = np.pad(whole.weights, more).reshape(
        -(-out // c), c, -(-ins // c), c // QUAD, QUAD, kernel_h, kernel_w
    )
    return np.ascontiguousarray(blocks.transpose(0, 2, 5, 6, 3, 1, 4))


def _by_channel(whole: Whole) -> np.ndarray:
    """Weights (C, 1, KH, KW) as (C/16, KH, KW, 16)."""
    assert whole.weights is not None
    out, _, kernel_h, kernel_w = whole.weights.shape
    c = FORM.block
    blocks = np.pad(whole.weights, [(0, -out % c), (0, 0), (0, 0), (0, 0)])
    blocks = blocks.reshape(-(-out // c), c, kernel_h, kernel_w)
    return np.ascontiguousarray(blocks.transpose(0, 2, 3, 1))


def _blocks(values: np.ndarray) -> np.ndarray:
    """(O,) as (O/16, 16)."""
    return np.pad(values, (0, -len(values) % FORM.block)).reshape(-1, FORM.block)


def _constant(values: np.ndarray) -> Any:
    from tvmtune.graph import constants

    return constants.share(values)
