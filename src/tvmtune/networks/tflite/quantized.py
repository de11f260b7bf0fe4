"""Quantized TFLite models: float operators between DEQUANTIZE and QUANTIZE.

In the file, an operator has integers at both ends, and their scales are properties of the tensors.
Written out, the model consists of float operators, which the importer knows, and of what backends look
for to compute layers in integers.

Where weights alone are integers ("dynamic range"), they become floats.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmtune.errors import TvmtuneError
from tvmtune.networks.tflite import file as tflite_file

_DTYPES = ("int8", "uint8", "int16")
"""Of quantized activations and weights."""

_BIASES = {
    "CONV_2D": 2,
    "DEPTHWISE_CONV_2D": 2,
    "FULLY_CONNECTED": 2,
    "CONV_3D": 2,
    "TRANSPOSE_CONV": 3,
}
"""Operators with weights at input 1, and the input that is their bias."""

_KEPT = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
"""Operators whose weights stay integers: those that backends may compute in integers."""

_AS_THEY_ARE = ("QUANTIZE", "DEQUANTIZE", "CAST", "SHAPE", "RANK", "ARG_MAX", "ARG_MIN")
"""Operators that read or write integers by definition, or whose results the scale does not change."""

_STATEFUL = ("LSTM", "RNN", "SVDF")
"""Parts of the names of operators that round inside as well."""

_LSTM = "UNIDIRECTIONAL_SEQUENCE_LSTM"
"""The one of these that may be quantized: it is computed in float32, and its results are rounded."""
LSTM_BIASES, _LSTM_STATES = (12, 13, 14, 15, 17), (18, 19)
"""Its biases, of four gates and of its projection, which are int32 with scales of their own if it is
quantized; and its states, which begin with zeros."""


_UNSUPPORTED = "which is not supported; convert the network without quantization"


@dataclass(frozen=True)
class Parameters:
    """``value = scale * (integer - zero)``"""

    scale: np.ndarray
    """float32, of one element or of one for each index of ``axis``."""
    zero: np.ndarray
    """int32, of the shape of ``scale``."""
    axis: int

    def values(self, integers: np.ndarray) -> np.ndarray:
        """What they stand for, as float32."""
        shape = [1] * integers.ndim
        if self.scale.size > 1:
            shape[self.axis] = -1
        scale, zero = (each.reshape(shape) for each in (self.scale, self.zero))
        return ((integers.astype(np.float64) - zero) * scale).astype(np.float32)


def parameters(tensor: Any, label: str) -> Parameters | None:
    """The scales of a ``TensorT``; None if it is not quantized.

    Raises :class:`TvmtuneError` if they are unsound or of an unsupported kind.
    """
    quantization = tensor.quantization
    if quantization is None:
        return None
    dtype, name = tflite_file.dtype(tensor), tflite_file.text(tensor.name)
    if quantization.detailsType:
        raise _error(
            label, name, f"{dtype} in blocks with scales of their own, which is not supported"
        )
    scale = _array(quantization.scale, np.float32)
    if not scale.size or dtype not in _DTYPES:
        if scale.size and dtype.startswith(("int4", "int2", "uint4")):
            raise _error(label, name, f"{dtype} with a scale, which is not supported")
        return None
    zero = _array(quantization.zeroPoint, np.int64)
    sound = np.isfinite(scale) & (scale > 0)
    if not sound.all():
        worst = scale[~sound][0]
        raise _error(
            label, name, f"{dtype} with the scale {worst}, which must be positive and finite"
        )
    axis, shape = int(quantization.quantizedDimension), tflite_file.extents(tensor)
    if scale.size > 1 and not (0 <= axis < len(shape) and shape[axis] == scale.size):
        extents = "x".join(map(str, shape)) or "scalar"
        raise _error(label, name, f"{extents} with {scale.size} scales for dimension {axis}")
    if zero.size not in (0, 1, scale.size):
        raise _error(label, name, f"{dtype} with {scale.size} scales, but {zero.size} zero points")
    bounds = np.iinfo(dtype)
    if zero.size and not (bounds.min <= zero.min() and zero.max() <= bounds.max):
        raise _error(label, name, f"{dtype} with a zero point outside of its range")
    zeros = np.full(scale.shape, zero if zero.size else 0, np.int32)
    return Parameters(scale, zeros, axis)


def check(model: Any, label: str) -> bool:
    """Whether activations of ``model`` are quantized.

    Raises :class:`TvmtuneError` if a tensor's scales are unsound or an operator does not support them.
    """
    graph = model.subgraphs[0]
    scales = [parameters(tensor, label) for tensor in graph.tensors]
    dtypes = [tflite_file.dtype(tensor) for tensor in graph.tensors]
    found = False
    for index, node in enumerate(graph.operators or ()):
        name = tflite_file.operator_name(model.operatorCodes[node.opcodeIndex])
        where = f"{tflite_file.describe(name, index)} of {label}"
        ends = [int(place) for place in (*node.inputs, *node.outputs) if place >= 0]
        computed = [p for p in ends if tflite_file.value(model, graph.tensors[p]) is None]
        is_quantized = any(scales[place] for place in computed)
        found = found or is_quantized
        if name in _AS_THEY_ARE:
            continue
        if keeps_state(name) and name != _LSTM and any(scales[place] for place in ends):
            raise TvmtuneError(f"{where} is quantized and keeps a state, {_UNSUPPORTED}")
        mixed = is_quantized and any(dtypes[place] == "float32" for place in ends)
        if mixed and name not in tflite_file.CUSTOM:  # detections are always floats
            raise TvmtuneError(f"{where} mixes quantized tensors and floats, {_UNSUPPORTED}")
        for place in ends[:2] if name in _BIASES else ():
            if dtypes[place] in _DTYPES and not scales[place]:
                what = f"{dtypes[place]} without a scale, which {tflite_file.describe(name, index)}"
                raise _error(label, tflite_file.text(graph.tensors[place].name), f"{what} needs")
    return found


def keeps_state(name: str) -> bool:
    """Whether the operator of this name rounds values inside, if it is quantized."""
    return any(word in name for word in _STATEFUL)


def widen_weights(model: Any, label: str) -> bool:
    """Make constants floats that float operators read, in place; returns whether there were any."""
    graph = model.subgraphs[0]
    made: dict[int, int] = {}
    for node in graph.operators or ():
        name = tflite_file.operator_name(model.operatorCodes[node.opcodeIndex])
        if name in _AS_THEY_ARE or _is_quantized(graph, node, model, label):
            continue
        for place in map(int, node.inputs):
            if place >= 0 and place not in made:
                value = _constant(model, graph.tensors[place], label)
                if value is not None:
                    made[place] = _add_constant(model, graph.tensors[place], value)
        node.inputs = [made.get(int(place), int(place)) for place in node.inputs]
    return bool(made)


def write_out(model: Any, label: str) -> list[int]:
    """Put DEQUANTIZE and QUANTIZE around the operators of a model, in place. Returns for each operator
    where it was before, or where that was which it belongs to."""
    graph = model.subgraphs[0]
    writer = _Writer(model)
    before, graph.operators = graph.operators or [], writer.operators
    origins: list[int] = []
    for index, node in enumerate(before):
        origins += [index - 1] * (len(graph.operators) - len(origins))
        name = tflite_file.operator_name(model.operatorCodes[node.opcodeIndex])
        if name in _AS_THEY_ARE:
            graph.operators.append(node)
            continue
        inputs = [int(place) for place in node.inputs]
        ends = [parameters(graph.tensors[p], label) if p >= 0 else None for p in inputs]
        for number, (place, scales) in enumerate(zip(inputs, ends, strict=True)):
            if name == _LSTM and number in _LSTM_STATES:
                inputs[number] = -1
            tensor = graph.tensors[place] if inputs[number] >= 0 else None
            if tensor is None:
                continue
            value = tflite_file.value(model, tensor)
            if name == _LSTM and number in LSTM_BIASES and value is not None:
                if value.dtype.kind == "i":
                    inputs[number] = _add_constant(model, tensor, _own_steps(tensor, value, label))
                continue
            if value is not None and number == _BIASES.get(name) and value.dtype.kind == "i":
                inputs[number] = _add_constant(model, tensor, _bias(value, ends))
            elif scales is None:
                continue
            elif value is not None and not (name in _KEPT and number == 1):
                inputs[number] = _add_constant(model, tensor, scales.values(value))
            else:
                inputs[number] = writer.dequantize(place)
        graph.operators.append(node)
        node.inputs = inputs
        node.outputs = [
            writer.quantize(int(p)) if parameters(graph.tensors[p], label) else int(p)
            for p in node.outputs
        ]
        writer.end()
    return origins + [len(before) - 1] * (len(graph.operators) - len(origins))


class _Writer:
    """Adds operators to a model."""

    def __init__(self, model: Any) -> None:
        self._model, self._graph = model, model.subgraphs[0]
        self.operators: list[Any] = []
        self._waiting: list[Any] = []
        self._codes: dict[str, int] = {}

    def dequantize(self, place: int) -> int:
        """The number of a tensor with the values of that at ``place``. Each use has its own: kernels
        may then read the integers."""
        made = _add_tensor(self._graph, self._graph.tensors[place])
        self.operators.append(self._operator("DEQUANTIZE", place, made))
        return made

    def quantize(self, place: int) -> int:
        """The number of the tensor of floats from which that at ``place`` is to be made."""
        made = _add_tensor(self._graph, self._graph.tensors[place])
        self._waiting.append(self._operator("QUANTIZE", made, place))
        return made

    def end(self) -> None:
        """After the operator whose outputs were quantized."""
        self.operators += self._waiting
        self._waiting = []

    def _operator(self, name: str, source: int, result: int) -> Any:
        from ai_edge_litert import schema_py_generated as schema

        if name not in self._codes:
            code = schema.OperatorCodeT()
            code.builtinCode = code.deprecatedBuiltinCode = getattr(schema.BuiltinOperator, name)
            self._codes[name] = len(self._model.operatorCodes)
            self._model.operatorCodes.append(code)
        node = schema.OperatorT()
        node.opcodeIndex = self._codes[name]
        node.inputs, node.outputs = [source], [result]
        return node


def _is_quantized(graph: Any, node: Any, model: Any, label: str) -> bool:
    """Whether an operator computes with quantized activations."""
    data = [p for p in node.inputs if p >= 0 and tflite_file.value(model, graph.tensors[p]) is None]
    ends = (*data, *node.outputs)
    return any(parameters(graph.tensors[place], label) is not None for place in ends)


def _constant(model: Any, tensor: Any, label: str) -> np.ndarray | None:
    """The values of a quantized constant."""
    scales = parameters(tensor, label)
    value = tflite_file.value(model, tensor) if scales else None
    return None if scales is None or value is None else scales.values(value)


def _bias(steps: np.ndarray, ends: list[Parameters | None]) -> np.ndarray:
    """A bias is in steps of the products of both scales, whatever its own says."""
    weights, *others = (ends[1], ends[0], *ends[2:3])
    x = next((each for each in others if each is not None), None)
    assert weights is not None
    assert x is not None
    scale = x.scale.astype(np.float64) * weights.scale
    return (steps.astype(np.float64) * scale).astype(np.float32)


def _own_steps(tensor: Any, steps: np.ndarray, label: str) -> np.ndarray:
    """What a bias in steps of its own scale stands for."""
    scale = _array(getattr(tensor.quantization, "scale", None), np.float64)
    if scale.size != 1 or not np.isfinite(scale).all():
        raise _error(label, tflite_file.text(tensor.name), f"{steps.dtype} without a scale")
    return (steps * scale).astype(np.float32)


def _add_tensor(graph: Any, like: Any, buffer: int = 0) -> int:
    """The number of a new float tensor of the shape of another."""
    from ai_edge_litert.schema_py_generated import TensorType

    tensor = copy.copy(like)
    tensor.type, tensor.quantization, tensor.buffer = TensorType.FLOAT32, None, buffer
    tensor.name = f"{tflite_file.text(like.name)}/float{len(graph.tensors)}"
    graph.tensors.append(tensor)
    return len(graph.tensors) - 1


def _add_constant(model: Any, like: Any, value: np.ndarray) -> int:
    from ai_edge_litert.schema_py_generated import BufferT

    buffer = BufferT()
    buffer.data = np.frombuffer(value.tobytes(), np.uint8)
    model.buffers.append(buffer)
    return _add_tensor(model.subgraphs[0], like, len(model.buffers) - 1)


def _array(values: Any, dtype: Any) -> np.ndarray:
    return np.asarray([] if values is None else values, dtype).reshape(-1)


def _error(label: str, name: str, what: str) -> TvmtuneError:
    return TvmtuneError(
        f"tensor '{name}' of {label} is {what}; convert the network again, or without quantization (no "
        "converter.optimizations)"
    )
