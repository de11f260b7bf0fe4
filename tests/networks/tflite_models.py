"""Small TFLite models, written with the schema that comes with LiteRT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from flatbuffers import flexbuffers

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

    def several(
        self, operator: str, inputs: Sequence[int], shapes: Sequence[Sequence[int]], **options: Any
    ) -> list[int]:
        """An operator with an output of each shape."""
        first = self.add(operator, inputs, shapes[0], **options)
        others = [self.tensor(f"{operator}:{i}", shape) for i, shape in enumerate(shapes[1:], 1)]
        self.graph.operators[-1].outputs = [first, *others]
        return [first, *others]

    def custom(
        self, operator: str, inputs: Sequence[int], shapes: Sequence[Sequence[int]], **options: Any
    ) -> list[int]:
        """A custom operator with an output of each shape."""
        outputs = self.several(operator, inputs, shapes)
        packed = flexbuffers.Dumps(options)
        self.graph.operators[-1].customOptions = np.frombuffer(bytes(packed), np.uint8)
        return outputs

    def content(self, *outputs: int) -> bytes:
        self.graph.outputs = list(outputs)
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), file_identifier=b"TFL3")
        return bytes(builder.Output())


_OPTIONS = {
    "ADD": "AddOptions",
    "ARG_MAX": "ArgMaxOptions",
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "BATCH_MATMUL": "BatchMatMulOptions",
    "BATCH_TO_SPACE_ND": "BatchToSpaceNDOptions",
    "CONCATENATION": "ConcatenationOptions",
    "CONV_2D": "Conv2DOptions",
    "CUMSUM": "CumsumOptions",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions",
    "DEQUANTIZE": "DequantizeOptions",
    "FLOOR_DIV": "FloorDivOptions",
    "FULLY_CONNECTED": "FullyConnectedOptions",
    "GATHER": "GatherOptions",
    "GATHER_ND": "GatherNdOptions",
    "GELU": "GeluOptions",
    "LEAKY_RELU": "LeakyReluOptions",
    "MATRIX_DIAG": "MatrixDiagOptions",
    "MATRIX_SET_DIAG": "MatrixSetDiagOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "MEAN": "ReducerOptions",
    "MIRROR_PAD": "MirrorPadOptions",
    "MUL": "MulOptions",
    "PACK": "PackOptions",
    "PAD": "PadOptions",
    "RESHAPE": "ReshapeOptions",
    "RESIZE_BILINEAR": "ResizeBilinearOptions",
    "RESIZE_NEAREST_NEIGHBOR": "ResizeNearestNeighborOptions",
    "REVERSE_V2": "ReverseV2Options",
    "SCATTER_ND": "ScatterNdOptions",
    "SELECT": "SelectOptions",
    "SELECT_V2": "SelectV2Options",
    "SHAPE": "ShapeOptions",
    "SOFTMAX": "SoftmaxOptions",
    "SPACE_TO_BATCH_ND": "SpaceToBatchNDOptions",
    "SPARSE_TO_DENSE": "SparseToDenseOptions",
    "SPLIT_V": "SplitVOptions",
    "SQUEEZE": "SqueezeOptions",
    "STRIDED_SLICE": "StridedSliceOptions",
    "SUB": "SubOptions",
    "TRANSPOSE": "TransposeOptions",
    "TRANSPOSE_CONV": "TransposeConvOptions",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "UnidirectionalSequenceLSTMOptions",
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


class QuantizedBuilder(TfliteBuilder):
    """Adds operators whose tensors have scales."""

    def __init__(self, dtype: str = "int8", *, wide: bool = False) -> None:
        """``wide``: uint8 weights whose differences from their zero point do not fit in bytes."""
        super().__init__()
        self.dtype, self.wide = dtype, wide
        self.middle = {"int8": 0, "uint8": 128, "int16": 0}[dtype]

    def scaled(self, place: int, scale: Any, zero: Any = 0, axis: int = 0) -> int:
        """The tensor at ``place``, from now on with a scale or several."""
        made = schema.QuantizationParametersT()
        made.scale = np.atleast_1d(np.array(scale, np.float32))
        made.zeroPoint = np.atleast_1d(np.array(zero, np.int64))
        made.quantizedDimension = axis
        self.graph.tensors[place].quantization = made
        return place

    def data(self, shape: Sequence[int], scale: float = 0.05, zero: int = 0) -> int:
        """An input whose zero point is ``zero`` steps above the middle of its range."""
        name = f"x{len(self.graph.inputs)}"
        return self.scaled(self.input(name, shape, self.dtype), scale, self.middle + zero)

    def weights(self, seed: int, *shape: int, axis: int | None = 0) -> tuple[int, np.ndarray]:
        """Constant weights and their scales, one for each index of ``axis``."""
        rng = np.random.RandomState(seed)
        count = 1 if axis is None else shape[axis]
        scales = rng.uniform(0.001, 0.01, count).astype(np.float32)
        zero = self.middle if self.dtype == "uint8" else 0
        dtype = "uint8" if self.dtype == "uint8" else "int8"
        steps = rng.randint(-100, 101, shape) + zero
        if self.wide:
            steps, zero = rng.randint(0, 256, shape), 74
        place = self.constant(steps, dtype)
        return self.scaled(place, scales, np.full(count, zero), axis or 0), scales

    def layer(
        self,
        operator: str,
        x: int,
        seed: int,
        kernel: Sequence[int],
        shape: Sequence[int],
        scale: float,
        axis: int | None = 0,
        **options: Any,
    ) -> int:
        """A convolution or product with a bias."""
        weights, scales = self.weights(seed, *kernel, axis=axis)
        steps = float(self.graph.tensors[x].quantization.scale[0]) * scales
        channels = kernel[-1] if operator == "DEPTHWISE_CONV_2D" else kernel[0]
        values = np.random.RandomState(seed + 1).randint(-500, 500, channels)
        wide = "int64" if self.dtype == "int16" else "int32"
        bias = self.scaled(self.constant(values, wide), steps, np.zeros(steps.size, int))
        return self.apply(operator, [x, weights, bias], shape, scale, **options)

    def apply(
        self,
        operator: str,
        inputs: Sequence[int],
        shape: Sequence[int],
        scale: float,
        zero: int = 0,
        **options: Any,
    ) -> int:
        made = self.add(operator, inputs, shape, self.dtype, **options)
        return self.scaled(made, scale, self.middle + zero)


def quantized_cnn(
    dtype: str = "int8", *, per_channel: bool = True, wide: bool = False, seed: int = 0
) -> bytes:
    """:func:`tiny_cnn` with integers."""
    g = QuantizedBuilder(dtype, wide=wide)
    rows = 0 if per_channel else None
    columns = 3 if per_channel else None
    window = {"strideW": 1, "strideH": 1, "padding": SAME}
    x = g.data((1, 16, 16, 3), 0.02, 5)
    options = window | {"strideW": 2, "strideH": 2, "fusedActivationFunction": RELU6}
    y = g.layer("CONV_2D", x, seed, (8, 3, 3, 3), (1, 8, 8, 8), 0.03, rows, zero=-100, **options)
    options = window | {"depthMultiplier": 1, "fusedActivationFunction": RELU6}
    z = g.layer(
        "DEPTHWISE_CONV_2D",
        y,
        seed + 2,
        (1, 3, 3, 8),
        (1, 8, 8, 8),
        0.02,
        columns,
        zero=-90,
        **options,
    )
    z = g.layer("CONV_2D", z, seed + 4, (8, 1, 1, 8), (1, 8, 8, 8), 0.02, rows, **window)
    y = g.apply("ADD", [y, z], (1, 8, 8, 8), 0.03, -60, fusedActivationFunction=RELU)
    pool = {"padding": VALID, "strideW": 8, "strideH": 8, "filterWidth": 8, "filterHeight": 8}
    y = g.apply("AVERAGE_POOL_2D", [y], (1, 1, 1, 8), 0.03, -60, **pool)
    y = g.apply("RESHAPE", [y, g.constant([1, 8], "int32")], (1, 8), 0.03, -60)
    y = g.layer("FULLY_CONNECTED", y, seed + 6, (10, 8), (1, 10), 0.04, rows)
    return g.content(y)
