"""Small TFLite models, written with the schema that comes with LiteRT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

RELU, RELU6 = schema.ActivationFunctionType.RELU, schema.ActivationFunctionType.RELU6
SAME, VALID = schema.Padding.SAME, schema.Padding.VALID


class TfliteBuilder:
    """Adds tensors and operators to a model; tensors are known by their indices."""

    def __init__(self) -> None:
        self.model = schema.ModelT()
        self.model.version = 3
        self.model.operatorCodes, self.model.buffers = [], [schema.BufferT()]
        self.graph = schema.SubGraphT()
        self.graph.tensors, self.graph.operators, self.graph.inputs = [], [], []
        self.model.subgraphs = [self.graph]

    def tensor(
        self, name: str, shape: Sequence[int], dtype: str = "float32", *, buffer: int = 0
    ) -> int:
        tensor = schema.TensorT()
        tensor.name, tensor.buffer = name, buffer
        tensor.shape = np.array([max(extent, 1) for extent in shape], np.int32)
        if any(extent < 0 for extent in shape):
            tensor.shapeSignature = np.array(shape, np.int32)
        tensor.type = getattr(schema.TensorType, dtype.upper())
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> int:
        self.graph.inputs.append(self.tensor(name, shape, dtype))
        return self.graph.inputs[-1]

    def constant(self, value: Any, dtype: str | None = None) -> int:
        array = np.array(value, dtype)
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(array.tobytes(), np.uint8)
        self.model.buffers.append(buffer)
        index = len(self.model.buffers) - 1
        return self.tensor(f"constant_{index}", array.shape, array.dtype.name, buffer=index)

    def add(
        self,
        operator: str,
        inputs: Sequence[int],
        shape: Sequence[int],
        dtype: str = "float32",
        *,
        name: str = "",
        **options: Any,
    ) -> int:
        """An operator with one output of ``shape``; its options are those of the schema."""
        code = schema.OperatorCodeT()
        code.builtinCode = getattr(schema.BuiltinOperator, operator, schema.BuiltinOperator.CUSTOM)
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        if not hasattr(schema.BuiltinOperator, operator):
            code.customCode = operator
        self.model.operatorCodes.append(code)
        node = schema.OperatorT()
        node.opcodeIndex = len(self.model.operatorCodes) - 1
        node.inputs = list(inputs)
        node.outputs = [self.tensor(name or f"value_{len(self.graph.tensors)}", shape, dtype)]
        kind = _OPTIONS.get(operator)
        if kind is not None:
            node.builtinOptionsType = getattr(schema.BuiltinOptions, kind)
            node.builtinOptions = getattr(schema, f"{kind}T")()
            for key, value in options.items():
                assert hasattr(node.builtinOptions, key)
                setattr(node.builtinOptions, key, value)
        self.graph.operators.append(node)
        return int(node.outputs[0])

    def content(self, *outputs: int) -> bytes:
        self.graph.outputs = list(outputs)
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), file_identifier=b"TFL3")
        return bytes(builder.Output())


_OPTIONS = {
    "ADD": "AddOptions",
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "CONCATENATION": "ConcatenationOptions",
    "CONV_2D": "Conv2DOptions",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions",
    "DEQUANTIZE": "DequantizeOptions",
    "FULLY_CONNECTED": "FullyConnectedOptions",
    "GATHER": "GatherOptions",
    "LEAKY_RELU": "LeakyReluOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "MEAN": "ReducerOptions",
    "MUL": "MulOptions",
    "PACK": "PackOptions",
    "PAD": "PadOptions",
    "RESHAPE": "ReshapeOptions",
    "RESIZE_BILINEAR": "ResizeBilinearOptions",
    "RESIZE_NEAREST_NEIGHBOR": "ResizeNearestNeighborOptions",
    "SHAPE": "ShapeOptions",
    "SOFTMAX": "SoftmaxOptions",
    "STRIDED_SLICE": "StridedSliceOptions",
    "SUB": "SubOptions",
    "TRANSPOSE": "TransposeOptions",
    "TRANSPOSE_CONV": "TransposeConvOptions",
}


def weights(seed: int, *shape: int) -> np.ndarray:
    scale = 1 / np.sqrt(np.prod(shape[1:]))
    return (np.random.RandomState(seed).standard_normal(shape) * scale).astype(np.float32)


def tiny_cnn(*, batch: int = 1, seed: int = 0) -> bytes:
    """Convolution, depthwise convolution with a shortcut, pooling, classifier: MobileNet's parts.

    With ``batch=-1`` the batch is open, and the reshape before the classifier computes its target
    from it as Keras has it: SHAPE, STRIDED_SLICE, PACK.
    """
    g = TfliteBuilder()
    x = g.input("image", (batch, 16, 16, 3))
    y = g.add(
        "CONV_2D",
        [x, g.constant(weights(seed, 8, 3, 3, 3)), g.constant(weights(seed + 1, 8))],
        (batch, 8, 8, 8),
        padding=SAME,
        strideW=2,
        strideH=2,
        fusedActivationFunction=RELU6,
    )
    z = g.add(
        "DEPTHWISE_CONV_2D",
        [y, g.constant(3 * weights(seed + 2, 1, 3, 3, 8)), g.constant(weights(seed + 3, 8))],
        (batch, 8, 8, 8),
        padding=SAME,
        strideW=1,
        strideH=1,
        depthMultiplier=1,
        fusedActivationFunction=RELU6,
    )
    z = g.add(
        "CONV_2D",
        [z, g.constant(weights(seed + 4, 8, 1, 1, 8)), g.constant(weights(seed + 5, 8))],
        (batch, 8, 8, 8),
        padding=VALID,
        strideW=1,
        strideH=1,
    )
    y = g.add("ADD", [y, z], (batch, 8, 8, 8), fusedActivationFunction=RELU)
    pool = {"padding": VALID, "strideW": 8, "strideH": 8, "filterWidth": 8, "filterHeight": 8}
    y = g.add("AVERAGE_POOL_2D", [y], (batch, 1, 1, 8), **pool)
    y = g.add("RESHAPE", [y, _target(g, y, batch)], (batch, 8))
    y = g.add(
        "FULLY_CONNECTED",
        [y, g.constant(weights(seed + 6, 10, 8)), g.constant(weights(seed + 7, 10))],
        (batch, 10),
    )
    return g.content(g.add("SOFTMAX", [y], (batch, 10), name="probabilities", beta=1.0))


def _target(g: TfliteBuilder, value: int, batch: int) -> int:
    """The shape (batch, 8), as a constant or computed from ``value``."""
    if batch > 0:
        return g.constant([batch, 8], "int32")
    shape = g.add("SHAPE", [value], (4,), "int32", outType=schema.TensorType.INT32)
    ends = [g.constant([place], "int32") for place in (0, 1, 1)]
    first = g.add("STRIDED_SLICE", [shape, *ends], (), "int32", shrinkAxisMask=1)
    width = g.constant(8, "int32")
    return g.add("PACK", [first, width], (2,), "int32", valuesCount=2, axis=0)


def one_operator(operator: str, shape: Sequence[int] = (1, 4), **options: Any) -> bytes:
    """``x -> operator -> y``, the output of the input's shape."""
    g = TfliteBuilder()
    x = g.input("x", shape)
    return g.content(g.add(operator, [x], shape, name="y", **options))


def quantized(dtype: str, *, weight: bool) -> bytes:
    """A model with a scale at its input, or at a constant alone."""
    g = TfliteBuilder()
    x = g.input("x", (2, 4))
    constant = g.constant(np.ones((5, 4)), dtype if weight else "float32")
    tensor = g.graph.tensors[constant if weight else x]
    tensor.type = getattr(schema.TensorType, dtype.upper())
    tensor.quantization = schema.QuantizationParametersT()
    tensor.quantization.scale = np.array([0.5], np.float32)
    tensor.quantization.zeroPoint = np.array([0], np.int64)
    return g.content(g.add("FULLY_CONNECTED", [x, constant, -1], (2, 5)))
