"""Converters of single ONNX operators, where the importer's own are wrong, refuse or crash.

Each says in its docstring what it is there for (TVM 0.27). What it cannot do it raises as ValueError;
the caller names the node.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from onnx import helper
from tvm import relax

from tvmtune.networks.onnx import resize as onnx_resize


@dataclass(frozen=True)
class Request:
    """One node to convert."""

    builder: Any
    inputs: list[Any]
    """Relax expressions; None for an optional input that is left out."""
    attrs: dict[str, Any]
    opset: int
    standard: Callable[..., Any]
    """The importer's own converter, for these or other inputs."""

    def input(self, position: int) -> Any:
        return self.inputs[position] if position < len(self.inputs) else None

    def text(self, name: str, default: str) -> str:
        value = self.attrs.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    @property
    def outputs(self) -> int:
        return int(self.attrs["tvm_custom"]["num_outputs"])

    def emit(self, expression: Any) -> Any:
        return self.builder.normalize(expression)


Converter = Callable[[Request], Any]


def shape(tensor: Any) -> list[int]:
    return [int(extent) for extent in tensor.ty.shape]


def dtype(tensor: Any) -> str:
    return str(tensor.ty.dtype)


def constant(tensor: Any) -> np.ndarray | None:
    """The value of a constant, None for anything else."""
    return tensor.value.numpy() if isinstance(tensor, tvm.ir.GenericConst) else None


def is_constant(*tensors: Any) -> bool:
    return all(isinstance(tensor, tvm.ir.GenericConst) for tensor in tensors)


def is_tensor(value: Any) -> bool:
    """Whether it is no shape, sequence or missing optional."""
    return isinstance(getattr(value, "ty", None), relax.TensorType)


def required(tensor: Any, what: str) -> np.ndarray:
    value = constant(tensor)
    if value is None:
        raise ValueError(f"its {what} must be constant")
    return value


def variadic(operator: Callable[..., Any]) -> Converter:
    """Max, Min, Sum, Mean of any number of inputs: pair by pair. The importer stacks copies of all
    inputs, which costs memory, and which ConvertLayout cannot take."""

    def convert(node: Request) -> Any:
        if is_constant(*node.inputs):
            return node.standard(*node.inputs)
        return functools.reduce(lambda a, b: node.emit(operator(a, b)), node.inputs)

    return convert


def mean(node: Request) -> Any:
    """As for Max."""
    if is_constant(*node.inputs):
        return node.standard(*node.inputs)
    total = node.emit(variadic(relax.op.add)(node))
    return relax.op.divide(total, relax.const(len(node.inputs), dtype(total)))


def indices(node: Request, tensor: Any, extents: list[int]) -> Any:
    """Indices as they count from 0, held within ``extents``.

    Those that are out of range are an error in ONNX. A kernel has no way to raise one, and would read
    or write memory that is not its own; so the nearest valid index takes their place.
    """
    value = constant(tensor)
    limits = np.array(extents if len(extents) > 1 else extents[0])
    if value is not None:
        found = value.astype("int64")
        if ((found < -limits) | (found >= limits)).any():
            raise ValueError(f"an index is out of range for the extent {extents}")
        return relax.const(np.where(found < 0, found + limits, found), "int64")
    kind = dtype(tensor)
    limit: Any = relax.const(limits.astype(kind), kind)
    zero, one = relax.const(0, kind), relax.const(1, kind)
    if kind.startswith("int"):
        shifted = node.emit(relax.op.add(tensor, limit))
        negative = node.emit(relax.op.less(tensor, zero))
        tensor = node.emit(relax.op.where(negative, shifted, tensor))
        tensor = node.emit(relax.op.maximum(tensor, zero))
    last = node.emit(relax.op.subtract(limit, one))
    return node.emit(relax.op.minimum(tensor, last))


def gather(node: Request) -> Any:
    """An id out of range took the process down."""
    data, ids = node.inputs
    if not is_tensor(data) or not is_tensor(ids) or is_constant(data, ids):
        return node.standard(data, ids)  # shapes, and what is known
    axis = node.attrs.get("axis", 0) % len(shape(data))
    # "clip" is what indices() has done already; "fast", the default, prints a warning.
    return relax.op.take(data, indices(node, ids, [shape(data)[axis]]), axis, mode="clip")


def gather_elements(node: Request) -> Any:
    """An index out of range took the process down."""
    data, ids = node.inputs
    axis = node.attrs.get("axis", 0) % len(shape(data))
    return relax.op.gather_elements(data, indices(node, ids, [shape(data)[axis]]), axis)


def gather_nd(node: Request) -> Any:
    """An index out of range took the process down."""
    data, ids = node.inputs
    first = node.attrs.get("batch_dims", 0)
    extents = shape(data)[first : first + shape(ids)[-1]]
    return relax.op.gather_nd(data, indices(node, ids, extents), first)


def scatter_elements(node: Request) -> Any:
    """An index out of range overwrote other memory."""
    data, ids, updates = node.inputs
    axis = node.attrs.get("axis", 0) % len(shape(data))
    return node.standard(data, indices(node, ids, [shape(data)[axis]]), updates)


def scatter_nd(node: Request) -> Any:
    """An index out of range overwrote other memory."""
    data, ids, updates = node.inputs
    return node.standard(data, indices(node, ids, shape(data)[: shape(ids)[-1]]), updates)


def clip(node: Request) -> Any:
    """The importer makes kernels of it at once, which ConvertLayout cannot see through: each ReLU6 of
    MobileNet-v2 was transposed twice."""
    x = node.inputs[0]
    for position, (name, operator) in enumerate(
        (("min", relax.op.maximum), ("max", relax.op.minimum)), start=1
    ):
        bound = node.input(position)
        if node.opset < 11 and name in node.attrs:
            bound = relax.const(node.attrs[name], dtype(x))
        if bound is not None:
            x = node.emit(operator(x, bound))
    return x


def compress(node: Request) -> Any:
    """With a constant condition the result's shape is known."""
    data = node.inputs[0]
    chosen = np.flatnonzero(required(node.inputs[1], "condition"))
    axis = node.attrs.get("axis")
    if axis is None:
        data, axis = node.emit(relax.op.reshape(data, [-1])), 0
    ids = relax.const(chosen.astype("int64"), "int64")
    return relax.op.take(data, ids, axis % len(shape(data)), mode="clip")


def concat(node: Request) -> Any:
    """Inputs without elements, which no kernel can be built for, are left out."""
    kept = [i for i in node.inputs if not is_tensor(i) or 0 not in shape(i)]
    if len(kept) == 1 and len(node.inputs) > 1:
        return kept[0]
    return node.standard(*kept)


def dropout(node: Request) -> Any:
    """The identity in inference; the importer's operator is a tuple of which one part is missing."""
    data = node.inputs[0]
    training = node.input(2)
    if training is not None and bool(required(training, "training_mode").all()):
        raise ValueError("it is in training mode, and its result is random")
    if node.outputs == 1:
        return data
    return relax.Tuple([data, relax.const(np.ones(shape(data), "bool"), "bool")])


def eye_like(node: Request) -> Any:
    """Another dtype than the input's was refused."""
    rows, columns = shape(node.inputs[0])
    kind = dtype(node.inputs[0])
    if "dtype" in node.attrs:
        kind = helper.tensor_dtype_to_np_dtype(node.attrs["dtype"]).name
    return relax.const(np.eye(rows, columns, node.attrs.get("k", 0), dtype=kind), kind)


def is_inf(node: Request) -> Any:
    """The attributes were ignored."""
    x = node.inputs[0]
    wanted = [node.attrs.get(f"detect_{sign}", 1) for sign in ("positive", "negative")]
    parts = [
        node.emit(relax.op.equal(x, relax.const(value, dtype(x))))
        for value, want in zip((math.inf, -math.inf), wanted, strict=True)
        if want
    ]
    if not parts:
        return relax.op.zeros(relax.ShapeExpr(shape(x)), "bool")
    return parts[0] if len(parts) == 1 else relax.op.logical_or(*parts)


def power(node: Request) -> Any:
    """Integers and operands of different types were refused; squares and roots need no logarithm."""
    base, exponent = node.inputs
    kind = dtype(base)
    floating = kind.startswith(("float", "bfloat"))
    value = constant(exponent)
    if value is not None and value.size == 1 and value.ndim <= len(shape(base)):
        number = float(value.reshape(-1)[0])
        if number in (1.0, 2.0, 3.0):
            result = base
            for _ in range(int(number) - 1):
                result = node.emit(relax.op.multiply(result, base))
            return result
        if floating and number == 0.5:
            return relax.op.sqrt(base)
        if floating and number == -1.0:
            return relax.op.divide(relax.const(1.0, kind), base)
    if floating:
        if dtype(exponent) != kind:
            exponent = node.emit(relax.op.astype(exponent, kind))
        return node.standard(base, exponent)
    wide = [node.emit(relax.op.astype(i, "float64")) for i in (base, exponent)]
    result = node.emit(relax.op.power(*wide))
    if not dtype(exponent).startswith("float"):
        result = node.emit(relax.op.round(result))
    return relax.op.astype(result, kind)


def one_hot(node: Request) -> Any:
    """A depth that is a float, and values of other types than float32 and int64, were refused."""
    depth = int(required(node.inputs[1], "depth").reshape(-1)[0])
    values = required(node.inputs[2], "values")
    ids = node.inputs[0]
    if not dtype(ids).startswith(("int", "uint")):
        ids = node.emit(relax.op.astype(ids, "int64"))
    axis = node.attrs.get("axis", -1) % (len(shape(ids)) + 1)
    ids = node.emit(relax.op.expand_dims(ids, axis))
    kind = dtype(ids)
    if kind.startswith("int"):
        shifted = node.emit(relax.op.add(ids, relax.const(depth, kind)))
        negative = node.emit(relax.op.less(ids, relax.const(0, kind)))
        ids = node.emit(relax.op.where(negative, shifted, ids))
    places = np.arange(depth).reshape([depth if i == axis else 1 for i in range(len(shape(ids)))])
    same = node.emit(relax.op.equal(ids, relax.const(places.astype(kind), kind)))
    name = values.dtype.name
    off, on = (relax.const(v, name) for v in values)
    return relax.op.where(same, on, off)


def reduce_bool(node: Request) -> Any:
    """ReduceMax and ReduceMin of booleans were refused."""
    x = node.inputs[0]
    if dtype(x) != "bool":
        return node.standard(*node.inputs)
    numbers = node.emit(relax.op.astype(x, "int8"))
    return relax.op.astype(node.standard(numbers, *node.inputs[1:]), "bool")


def layer_normalization(node: Request) -> Any:
    """Mean and inverse deviation, its optional results, were constants."""
    if node.outputs == 1:
        return node.standard(*node.inputs)
    x = node.inputs[0]
    rank = len(shape(x))
    axes = list(range(node.attrs.get("axis", -1) % rank, rank))
    middle = node.emit(relax.op.mean(x, axes, keepdims=True))
    spread = node.emit(relax.op.variance(x, axes, keepdims=True))
    epsilon = relax.const(node.attrs.get("epsilon", 1e-5), dtype(x))
    inverse = node.emit(relax.op.rsqrt(node.emit(relax.op.add(spread, epsilon))))
    result = node.standard(*node.inputs)
    return relax.Tuple([result[0], middle, inverse])


def rms_normalization(node: Request) -> Any:
    """Normalisation over all axes was refused."""
    x, scale = node.inputs[:2]
    kind, rank = dtype(x), len(shape(x))
    axes = list(range(node.attrs.get("axis", -1) % rank, rank))
    wide = node.emit(relax.op.astype(x, "float32")) if kind in ("float16", "bfloat16") else x
    mean_square = node.emit(
        relax.op.mean(node.emit(relax.op.multiply(wide, wide)), axes, keepdims=True)
    )
    epsilon = relax.const(node.attrs.get("epsilon", 1e-5), dtype(wide))
    inverse = node.emit(relax.op.rsqrt(node.emit(relax.op.add(mean_square, epsilon))))
    result = node.emit(relax.op.multiply(wide, inverse))
    if dtype(result) != kind:
        result = node.emit(relax.op.astype(result, kind))
    return relax.op.multiply(result, scale)


def celu(node: Request) -> Any:
    """Its definition in the standard mixes types for anything but float32."""
    x = node.inputs[0]
    alpha = relax.const(node.attrs.get("alpha", 1.0), dtype(x))
    zero, one = relax.const(0.0, dtype(x)), relax.const(1.0, dtype(x))
    grown = node.emit(relax.op.exp(node.emit(relax.op.divide(x, alpha))))
    below = node.emit(relax.op.multiply(alpha, node.emit(relax.op.subtract(grown, one))))
    low = node.emit(relax.op.minimum(zero, below))
    return relax.op.add(node.emit(relax.op.maximum(zero, x)), low)


def conv_transpose(node: Request) -> Any:
    """``output_shape`` was ignored; the standard derives the padding from it."""
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


def pool(node: Request) -> Any:
    """Automatic padding was wrong for SAME_LOWER, and MaxPool has no second result."""
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


def equal(node: Request) -> Any:
    """The comparison of booleans did not compile."""
    first, second = node.inputs
    if not is_tensor(first) or not is_tensor(second) or dtype(first) != "bool":
        return node.standard(first, second)
    return relax.op.logical_not(node.emit(relax.op.logical_xor(first, second)))


def roi_align(node: Request) -> Any:
    """In this mode the importer computes something else than the standard says."""
    if node.text("mode", "avg") == "max":
        raise ValueError("the mode 'max' is not supported; 'avg' is")
    return node.standard(*node.inputs)


def resize(node: Request) -> Any:
    """Scales that do not divide the extents, an aspect ratio to keep, some coordinates, axes that are
    named, and opsets before 11 were wrong or refused. What the importer does right stays with it."""
    x, roi, scales, sizes = (node.input(position) for position in range(4))
    old = node.opset < 11
    if old:  # Upsample, and Resize as it was first
        roi, scales, sizes = None, roi, None
        if scales is None:
            scales = relax.const(np.array(node.attrs["scales"], "float32"), "float32")
    defaults = {
        "mode": "nearest",
        "coordinate_transformation_mode": "asymmetric" if old else "half_pixel",
        "nearest_mode": "floor" if old else "round_prefer_floor",
        "keep_aspect_ratio_policy": "stretch",
    }
    words = {name: node.text(name, default) for name, default in defaults.items()}
    if words["mode"] == "bilinear":
        words["mode"] = "linear"
    plan = onnx_resize.plan(
        shape(x),
        node.attrs | words,
        scales=_optional(scales, "scales"),
        sizes=_optional(sizes, "sizes"),
        roi=_optional(roi, "roi"),
    )
    if plan is None:
        node.attrs.update({name: word.encode() for name, word in words.items()})
        empty = [None if v is None or 0 in shape(v) else v for v in (roi, scales, sizes)]
        return node.standard(x, *empty, operator="Resize")
    for axis, (places, factors) in plan.items():
        total = None
        for taken, factor in zip(places, factors, strict=True):
            ids = relax.const(taken, "int64")
            part = node.emit(relax.op.take(x, ids, axis=axis, mode="clip"))
            if not (factor == 1).all():
                lined = factor.reshape([-1 if i == axis else 1 for i in range(len(shape(x)))])
                weight = relax.const(lined.astype(dtype(x)), dtype(x))
                part = node.emit(relax.op.multiply(part, weight))
            total = part if total is None else node.emit(relax.op.add(total, part))
        x = total
    return x


def _optional(tensor: Any, what: str) -> np.ndarray | None:
    return None if tensor is None else required(tensor, what)


def slice_(node: Request) -> Any:
    """Before opset 10 the bounds are attributes, which the importer does not read."""
    if node.opset >= 10:
        return node.standard(*node.inputs)
    starts, ends = node.attrs["starts"], node.attrs["ends"]
    axes = node.attrs.get("axes", range(len(starts)))
    bounds = [relax.const(np.array(b, "int64"), "int64") for b in (starts, ends, axes)]
    return node.standard(node.inputs[0], *bounds)


def split(node: Request) -> Any:
    """A part without elements became a kernel that nothing can be compiled for."""
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


CONVERTERS: dict[str, Converter] = {
    "AveragePool": pool,
    "Celu": celu,
    "Clip": clip,
    "Compress": compress,
    "Concat": concat,
    "ConvTranspose": conv_transpose,
    "Dropout": dropout,
    "Equal": equal,
    "EyeLike": eye_like,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "IsInf": is_inf,
    "LayerNormalization": layer_normalization,
    "Max": variadic(relax.op.maximum),
    "LpPool": pool,
    "MaxPool": pool,
    "Mean": mean,
    "Min": variadic(relax.op.minimum),
    "OneHot": one_hot,
    "Pow": power,
    "ReduceMax": reduce_bool,
    "ReduceMin": reduce_bool,
    "Resize": resize,
    "RMSNormalization": rms_normalization,
    "RoiAlign": roi_align,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "Slice": slice_,
    "Split": split,
    "Sum": variadic(relax.op.add),
    "Upsample": resize,
}
