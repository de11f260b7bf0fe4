"""Weights outside of the ONNX model that they belong to.

Protobuf gives weights away only as copies, and frees them only with the whole model; everything that
serialises a model copies them once more. So large weights are taken out once, as arrays, and what is
left of the model is small.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

LARGEST = 4096
"""Elements up to which a weight stays in the model: shapes, axes, masks, biases."""

_BLOCK = 64

Weights = Mapping[str, np.ndarray]

HERE = "tvmtune:memory"
"""The place of weights that a model only declares."""

_ALIGNMENT = 64
"""Bytes; what TVM's kernels expect of the buffers that they are given."""


def detach(
    model: onnx.ModelProto, known: Weights | None = None
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model with its large weights declared only, and these weights by name.

    ``known`` holds those that it only declares already. The arrays are contiguous and aligned, so
    that TVM and ONNX Runtime can use them in place.
    """
    weights: dict[str, np.ndarray] = dict(known or {})
    light = _without_initializers(model)
    for tensor in model.graph.initializer:
        size = math.prod(tensor.dims)
        if size <= LARGEST or tensor.name in weights or tensor.data_type == TensorProto.STRING:
            light.graph.initializer.append(tensor)
        else:
            weights[tensor.name] = aligned(numpy_helper.to_array(tensor))
            declare(light, tensor.name, tensor.dims, tensor.data_type)
    return light, weights


def attach(model: onnx.ModelProto, weights: Weights) -> onnx.ModelProto:
    """The model with the values of all ``weights``; with all of them, the inverse of :func:`detach`."""
    whole = _without_initializers(model)
    for tensor in model.graph.initializer:
        if is_declared(tensor) and tensor.name in weights:
            whole.graph.initializer.append(
                numpy_helper.from_array(weights[tensor.name], tensor.name)
            )
        else:
            whole.graph.initializer.append(tensor)
    return whole


def declare(model: onnx.ModelProto, name: str, dims: Iterable[int], data_type: int) -> None:
    """Append a weight to the model without its values."""
    tensor = model.graph.initializer.add()
    tensor.name, tensor.data_type = name, data_type
    tensor.dims.extend(dims)
    mark(tensor)


def mark(tensor: TensorProto) -> None:
    """Say of a weight without values that they are elsewhere."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=HERE)


def is_declared(tensor: TensorProto) -> bool:
    """Whether the values are elsewhere."""
    return tensor.data_location == TensorProto.EXTERNAL


def value(tensor: TensorProto, weights: Weights | None = None) -> np.ndarray:
    """The values of a weight of the model that :func:`detach` returned, or of a whole model."""
    if weights is not None and is_declared(tensor):
        return weights[tensor.name]
    return numpy_helper.to_array(tensor)


def aligned(array: np.ndarray) -> np.ndarray:
    """A contiguous copy at an address that vector instructions like."""
    copy = empty(array.shape, array.dtype)
    if array.ndim == 2 and array.flags.f_contiguous:
        for start in range(0, array.shape[1], _BLOCK):  # a transposition that stays in the caches
            copy[:, start : start + _BLOCK] = array[:, start : start + _BLOCK]
    else:
        copy[...] = array
    return copy


def empty(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """A contiguous array of any values at such an address."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    buffer = np.empty(size + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + size].view(dtype).reshape(shape)


def _without_initializers(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without weights. To copy all and then delete would copy the weights first."""
    light = onnx.ModelProto()
    _copy(model, light, "ir_version", "producer_name", "producer_version", "domain")
    _copy(model, light, "model_version", "opset_import", "metadata_props", "functions")
    _copy(model.graph, light.graph, "name", "node", "input", "output", "value_info")
    _copy(model.graph, light.graph, "sparse_initializer", "quantization_annotation")
    return light


def _copy(source: Any, target: Any, *fields: str) -> None:
    for field in fields:
        value = getattr(source, field)
        if isinstance(value, (int, str)):
            setattr(target, field, value)
        else:
            getattr(target, field).extend(value)
