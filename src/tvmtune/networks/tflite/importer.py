"""TVM's importer of TFLite models with our converters.

Its own converters of quantization lack constants and zero points per channel. It ignores softmax's
``beta``, the approximation of GELU and the activation of TRANSPOSE_CONV, whose kernels it takes to be
no smaller than their strides. That of EXPAND_DIMS raises, that of BATCH_MATMUL for constants and for
batches that only the second operand has. It does not flatten the inputs of FULLY_CONNECTED, makes int64
of int32 indices and of means of int32, and takes the condition of SELECT for that of SELECT_V2.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.frontend.tflite.tflite_frontend import OperatorConverter

from tvmtune.networks.relax_operators import Operators, shape
from tvmtune.networks.tflite import diagonals, indexing, moves
from tvmtune.networks.tflite.recurrent import unidirectional_lstm
from tvmtune.static_shapes import static_shape
from tvmtune.types import product

CONVERTERS = (
    "BATCH_MATMUL",
    "BATCH_TO_SPACE_ND",
    "CUMSUM",
    "DEQUANTIZE",
    "EMBEDDING_LOOKUP",
    "EXPAND_DIMS",
    "FULLY_CONNECTED",
    "GATHER",
    "GATHER_ND",
    "GELU",
    "MATRIX_DIAG",
    "MATRIX_SET_DIAG",
    "MEAN",
    "MIRROR_PAD",
    "QUANTIZE",
    "RESIZE_NEAREST_NEIGHBOR",
    "REVERSE_V2",
    "SCATTER_ND",
    "SELECT",
    "SOFTMAX",
    "SPACE_TO_BATCH_ND",
    "SPARSE_TO_DENSE",
    "SPLIT_V",
    "SQUEEZE",
    "STRIDED_SLICE",
    "TRANSPOSE_CONV",
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
)
"""Operators that are converted here."""


class Importer(OperatorConverter):
    """Imports a model whose integers stand between QUANTIZE and DEQUANTIZE alone, or are compared."""

    _SUPPORTED_QUANTIZED_OPS = OperatorConverter._SUPPORTED_QUANTIZED_OPS | {"ARG_MAX", "ARG_MIN"}

    convert_batch_to_space_nd = moves.batch_to_space_nd
    convert_embedding_lookup = indexing.embedding_lookup
    convert_gather = indexing.gather
    convert_gather_nd = indexing.gather_nd
    convert_matrix_diag = diagonals.matrix_diag
    convert_matrix_set_diag = diagonals.matrix_set_diag
    convert_reverse_v2 = moves.reverse_v2
    convert_scatter_nd = indexing.scatter_nd
    convert_space_to_batch_nd = moves.space_to_batch_nd
    convert_sparse_to_dense = indexing.sparse_to_dense
    convert_split_v = moves.split_v
    convert_squeeze = moves.squeeze
    convert_unidirectional_sequence_lstm = unidirectional_lstm

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        converters = vars(self)["convert_map"]
        converters |= {
            name: functools.partial(self._declared, convert) for name, convert in converters.items()
        }

    def _declared(self, convert: Callable[..., Any], op: Any) -> Any:
        """What ``convert`` makes of an operator; integers in the dtype that the file declares."""
        made, results = convert(op=op), self.get_output_tensors(op)
        if len(results) != 1 or not isinstance(made, relax.Expr):
            return made
        made = self.bb.normalize(made)
        dtype = self.get_tensor_type_str(results[0].tensor.Type())
        given = str(getattr(made.ty, "dtype", dtype))
        wrong = given != dtype and "int" in given and dtype in ("int32", "int64")
        return relax.op.astype(made, dtype) if wrong else made

    def _convert_reduce(self, relax_op: Any, op: Any) -> Any:
        """Means of integers, from sums in int64, are rounded towards zero."""
        source, axes = self.get_input_tensors(op)
        x = self.get_tensor_expr(source)
        if relax_op is not relax.op.mean or "int" not in str(x.ty.dtype):
            return super()._convert_reduce(relax_op, op)
        (result,) = self.get_output_tensors(op)
        ops = Operators(self.bb)
        along = self.get_tensor_value(axes).reshape(-1).tolist()
        count = product([shape(x)[axis] for axis in along])
        sums = ops.sum(ops.astype(x, "int64"), along)
        means = ops.astype(ops.divide(sums, relax.const(count, "int64")), str(x.ty.dtype))
        return relax.op.reshape(means, [int(extent) for extent in self.get_tensor_shape(result)])

    def convert_batch_matmul(self, op: Any) -> Any:
        from tflite.BatchMatMulOptions import BatchMatMulOptions

        options = self._get_builtin_options(op, BatchMatMulOptions)
        factors = [self.get_tensor_expr(each) for each in self.get_input_tensors(op)]
        for place, is_transposed in enumerate((options.AdjX(), options.AdjY())):
            if is_transposed:
                *axes, row, column = range(factors[place].ty.ndim)
                factors[place] = relax.op.permute_dims(factors[place], [*axes, column, row])
        return relax.op.matmul(*factors)

    def convert_cumsum(self, op: Any) -> Any:
        from tflite.CumsumOptions import CumsumOptions

        options = self._get_builtin_options(op, CumsumOptions)
        if not options.Reverse():
            return super().convert_cumsum(op)
        source, axis = self.get_input_tensors(op)
        x, along = self.get_tensor_expr(source), int(self.get_tensor_value(axis).item())
        ops = Operators(self.bb)
        sums = ops.cumsum(ops.flip(x, along), along, exclusive=bool(options.Exclusive()))
        return relax.op.flip(sums, along)

    def convert_fully_connected(self, op: Any) -> Any:
        from tflite.FullyConnectedOptions import FullyConnectedOptions

        options, table = FullyConnectedOptions(), op.BuiltinOptions()
        if table is None:
            raise ValueError("its options are missing")
        options.Init(table.Bytes, table.Pos)
        source, weights, *bias = self.get_input_tensors(op)
        (result,) = self.get_output_tensors(op)
        x, matrix = self.get_tensor_expr(source), self.get_tensor_expr(weights)
        columns, read = int(matrix.ty.shape[1]), [int(extent) for extent in x.ty.shape]
        if read[-1] != columns or (len(read) != 2 and not options.KeepNumDims()):
            x = self.bb.normalize(relax.op.reshape(x, (-1, columns)))
        y = relax.op.matmul(x, relax.op.permute_dims(matrix, [1, 0]))
        if bias and bias[0].tensor_idx != -1:
            y = relax.op.add(y, self.get_tensor_expr(bias[0]))
        y = self.convert_fused_activation_function(y, options.FusedActivationFunction())
        y, extents = self.bb.normalize(y), [int(n) for n in self.get_tensor_shape(result)]
        return y if static_shape(y) == extents else relax.op.reshape(y, extents)

    def convert_quantize(self, op: Any) -> Any:
        (source,), (result,) = self.get_input_tensors(op), self.get_output_tensors(op)
        x = self.get_tensor_expr(source)
        averages = self._averages(x, result)
        if averages is not None:
            return averages
        if "int" in str(x.ty.dtype):  # from one scale to another
            x = self.bb.normalize(_dequantize(x, source))
        scale, zero, axis = _parameters(result)
        dtype = self.get_tensor_type_str(result.tensor.Type())
        return relax.op.quantize(x, scale, zero, axis=axis, out_dtype=dtype)

    def _averages(self, x: Any, result: Any) -> Any | None:
        """Average pooling of integers, if ``x`` is that of values with the scale of ``result``.

        LiteRT rounds halves away from zero, and where a window has an even number of values, halves are
        frequent.
        """
        pooling = self._expression(x)
        if _operator(pooling) != "relax.nn.avg_pool2d":
            return None
        source = self._expression(pooling.args[0])
        if _operator(source) != "relax.dequantize":
            return None
        for given, wanted in zip(source.args[1:], _parameters(result)[:2], strict=True):
            if not np.array_equal(given.value.numpy(), wanted.value.numpy()):
                return None
        integers = source.args[0]
        floats = self.bb.emit(relax.op.astype(integers, "float32"))
        average = self.bb.emit(relax.Call(pooling.op, [floats], pooling.attrs))
        half = relax.const(0.5, "float32")
        rounded = relax.op.where(
            relax.op.less(average, relax.const(0, "float32")),
            relax.op.ceil(relax.op.subtract(average, half)),
            relax.op.floor(relax.op.add(average, half)),
        )
        return relax.op.astype(self.bb.normalize(rounded), str(integers.ty.dtype))

    def _expression(self, value: Any) -> Any:
        """What a variable stands for."""
        return self.bb.lookup_binding(value) if isinstance(value, relax.Var) else value

    def convert_dequantize(self, op: Any) -> Any:
        (source,) = self.get_input_tensors(op)
        x = self.get_tensor_expr(source)
        if "float" in str(x.ty.dtype):  # from float16
            return relax.op.astype(x, "float32")
        return _dequantize(x, source)

    def convert_expand_dims(self, op: Any) -> Any:
        source, axis = self.get_input_tensors(op)
        return relax.op.expand_dims(
            self.get_tensor_expr(source), int(self.get_tensor_value(axis).item())
        )

    def convert_gelu(self, op: Any) -> Any:
        from tflite.GeluOptions import GeluOptions

        options, table = GeluOptions(), op.BuiltinOptions()
        if table is not None:
            options.Init(table.Bytes, table.Pos)
            if options.Approximate():
                (source,) = self.get_input_tensors(op)
                return relax.op.nn.gelu_tanh(self.get_tensor_expr(source))
        return super().convert_gelu(op)

    def convert_select(self, op: Any) -> Any:
        """A condition of SELECT that has one axis chooses rows; those of SELECT_V2 are broadcast."""
        condition, *values = (self.get_tensor_expr(each) for each in self.get_input_tensors(op))
        if self.get_op_code_str(op) == "SELECT" and condition.ty.ndim == 1:
            others = [1] * (values[0].ty.ndim - 1)
            condition = self.bb.normalize(relax.op.reshape(condition, [*shape(condition), *others]))
        return relax.op.where(condition, *values)

    def convert_softmax(self, op: Any) -> Any:
        from tflite.SoftmaxOptions import SoftmaxOptions

        options, (source,) = SoftmaxOptions(), self.get_input_tensors(op)
        table = op.BuiltinOptions()
        x = self.get_tensor_expr(source)
        if table is not None:
            options.Init(table.Bytes, table.Pos)
            if options.Beta() != 1:
                factor = relax.const(options.Beta(), str(x.ty.dtype))
                x = self.bb.normalize(relax.op.multiply(x, factor))
        return relax.op.nn.softmax(x, axis=-1)

    def convert_mirror_pad(self, op: Any) -> Any:
        from tflite.MirrorPadMode import MirrorPadMode
        from tflite.MirrorPadOptions import MirrorPadOptions

        if self._get_builtin_options(op, MirrorPadOptions).Mode() == MirrorPadMode.SYMMETRIC:
            return moves.symmetric_pad(self, op)
        return super().convert_mirror_pad(op)

    def convert_resize_nearest_neighbor(self, op: Any) -> Any:
        from tflite.ResizeNearestNeighborOptions import ResizeNearestNeighborOptions

        options = self._get_builtin_options(op, ResizeNearestNeighborOptions)
        if options.AlignCorners():
            return moves.aligned_resize(self, op, has_half_pixels=options.HalfPixelCenters())
        return super().convert_resize_nearest_neighbor(op)

    def convert_strided_slice(self, op: Any) -> Any:
        from tflite.StridedSliceOptions import StridedSliceOptions

        options = self._get_builtin_options(op, StridedSliceOptions)
        if options.Offset():
            return moves.slice_from_offsets(self, op, options)
        return super().convert_strided_slice(op)

    def convert_transpose_conv(self, op: Any) -> Any:
        from tflite.Padding import Padding
        from tflite.TransposeConvOptions import TransposeConvOptions

        options = self._get_builtin_options(op, TransposeConvOptions)
        _, kernel, source, *bias = self.get_input_tensors(op)
        (result,) = self.get_output_tensors(op)
        x, weights = self.get_tensor_expr(source), self.get_tensor_expr(kernel)
        strides = (options.StrideH(), options.StrideW())
        outputs = [int(extent) for extent in self.get_tensor_shape(result)][1:3]
        is_same = options.Padding() == Padding.SAME
        extents = zip(shape(x)[1:3], shape(weights)[1:3], strides, outputs, strict=True)
        before, after, added = zip(*(_around(*each, is_same) for each in extents), strict=True)
        y = relax.op.nn.conv2d_transpose(
            x,
            relax.op.permute_dims(weights, [3, 0, 1, 2]),
            strides=strides,
            padding=(*before, *after),
            output_padding=added,
            data_layout="NHWC",
            kernel_layout="IOHW",
            out_dtype="float32",
        )
        if bias and bias[0].tensor_idx != -1:
            y = relax.op.add(y, self.get_tensor_expr(bias[0]))
        return self.convert_fused_activation_function(y, options.FusedActivationFunction())


def _around(
    extent: int, taps: int, stride: int, outputs: int, is_same: bool
) -> tuple[int, int, int]:
    """Results of a transposed convolution along one axis that are dropped before and after the outputs,
    and zeros that follow the results."""
    results = (extent - 1) * stride + taps
    padding = max((-(-outputs // stride) - 1) * stride + taps - outputs, 0) if is_same else 0
    before = padding // 2
    left = results - before - outputs
    return before, max(left, 0), max(-left, 0)


def _operator(value: Any) -> str:
    return str(getattr(getattr(value, "op", None), "name", ""))


def _dequantize(x: Any, wrapper: Any) -> Any:
    scale, zero, axis = _parameters(wrapper)
    return relax.op.dequantize(x, scale, zero, axis=axis)


def _parameters(wrapper: Any) -> tuple[Any, Any, int]:
    """Scale, zero point and axis of a tensor, which are sound."""
    given = wrapper.tensor.Quantization()
    scale = np.asarray(given.ScaleAsNumpy(), "float32").reshape(-1)
    zero = np.asarray(given.ZeroPointAsNumpy(), "int32").reshape(-1)
    zero = np.full(scale.shape, zero if given.ZeroPointLength() else 0, "int32")
    if scale.size == 1:
        return relax.const(scale[0], "float32"), relax.const(zero[0], "int32"), 0
    return relax.const(scale), relax.const(zero), int(given.QuantizedDimension())
