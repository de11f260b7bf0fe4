"""Keeps the weights of an ONNX model outside of it, as arrays.

Protobuf hands out weights only as copies and frees them only with the whole model, and every
serialization of the model copies them again. So large weights are taken out once, which leaves a small
model that only declares them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvmtune.arrays import aligned

LARGEST = 4096
"""Weights of up to this many elements stay in the model: shapes, axes, masks, biases."""

Weights = Mapping[str, np.ndarray]

IN_MEMORY = "tvmtune:memory"
"""The location of weights that a model only declares."""

_PACKED = {
    "float4_e2m1fn": 4,
    "float6_e2m3fn": 6,
    "float6_e3m2fn": 6,
    "int2": 2,
    "int4": 4,
    "uint2": 2,
    "uint4": 4,
}
"""Bits of the types whose values share bytes in a file. In memory, each takes a byte."""


def detach(
    model: onnx.ModelProto, known: Weights | None = None
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model with its large weights only declared, and these weights by name.

    ``known`` holds weights that the model already only declares. The arrays are contiguous and aligned,
    so that TVM and ONNX Runtime can use them in place.
    """
    weights: dict[str, np.ndarray] = dict(known or {})
    light_model = _without_initializers(model)
    for tensor in model.graph.initializer:
        size = math.prod(tensor.dims)
        if size <= LARGEST or tensor.name in weights or tensor.data_type == TensorProto.STRING:
            light_model.graph.initializer.append(tensor)
        else:
            weights[tensor.name] = aligned(numpy_helper.to_array(tensor))
            declare(light_model, tensor.name, tensor.dims, tensor.data_type)
    return light_model, weights


def attach(model: onnx.ModelProto, weights: Weights) -> onnx.ModelProto:
    """The model with the values of all ``weights``; with all of them, the inverse of :func:`detach`."""
    full_model = _without_initializers(model)
    for tensor in model.graph.initializer:
        if is_declared(tensor) and tensor.name in weights:
            full_model.graph.initializer.append(
                numpy_helper.from_array(weights[tensor.name], tensor.name)
            )
        else:
            full_model.graph.initializer.append(tensor)
    return full_model


def declare(model: onnx.ModelProto, name: str, dims: Iterable[int], data_type: int) -> None:
    """Append a declaration of a weight to the model."""
    tensor = model.graph.initializer.add()
    tensor.name, tensor.data_type = name, data_type
    tensor.dims.extend(dims)
    mark_declared(tensor)


def mark_declared(tensor: TensorProto) -> None:
    """Mark a weight as only declared."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=IN_MEMORY)


def is_declared(tensor: TensorProto) -> bool:
    """Whether the model holds no values for a weight."""
    return tensor.data_location == TensorProto.EXTERNAL


def value(tensor: TensorProto, weights: Weights | None = None) -> np.ndarray:
    """The values of a weight, from the model or, if it only declares them, from ``weights``."""
    if weights is not None and is_declared(tensor):
        return weights[tensor.name]
    return numpy_helper.to_array(tensor)


def is_packed(tensor: TensorProto) -> bool:
    """Whether values of a weight share bytes in the file."""
    return helper.tensor_dtype_to_np_dtype(tensor.data_type).name in _PACKED


def stored_bytes(tensor: TensorProto, count: int) -> int:
    """What ``count`` values of a weight's type take in a file."""
    kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return -(-count * _PACKED.get(kind.name, 8 * kind.itemsize) // 8)


def unpacked(array: np.ndarray) -> np.ndarray:
    """The values of a packed weight in a type that TVM has kernels for."""
    name = array.dtype.name
    return array.astype("float32" if "float" in name else "uint8" if "uint" in name else "int8")


def _without_initializers(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model without weights, made without copying them."""
    light_model = onnx.ModelProto()
    _copy(model, light_model, "ir_version", "producer_name", "producer_version", "domain")
    _copy(model, light_model, "model_version", "opset_import", "metadata_props", "functions")
    _copy(model.graph, light_model.graph, "name", "node", "input", "output", "value_info")
    _copy(model.graph, light_model.graph, "sparse_initializer", "quantization_annotation")
    return light_model


def _copy(source: Any, target: Any, *fields: str) -> None:
    for field in fields:
        value = getattr(source, field)
        if isinstance(value, (int, str)):
            setattr(target, field, value)
        else:
            getattr(target, field).extend(value)
