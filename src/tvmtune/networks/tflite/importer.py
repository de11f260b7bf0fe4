"""TVM's importer of TFLite models with our converters.

Its own converters of quantization lack constants and zero points per channel; it ignores softmax's
``beta``, and that of EXPAND_DIMS raises.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.frontend.tflite.tflite_frontend import OperatorConverter

CONVERTERS = ("DEQUANTIZE", "EXPAND_DIMS", "QUANTIZE", "SOFTMAX")
"""Operators that are converted here."""


class Importer(OperatorConverter):
    """Imports a model whose integers stand between QUANTIZE and DEQUANTIZE alone."""

    def convert_quantize(self, op: Any) -> Any:
        (source,), (result,) = self.get_input_tensors(op), self.get_output_tensors(op)
        x = self.get_tensor_expr(source)
        if "int" in str(x.ty.dtype):  # from one scale to another
            x = self.bb.normalize(_dequantize(x, source))
        scale, zero, axis = _parameters(result)
        dtype = self.get_tensor_type_str(result.tensor.Type())
        return relax.op.quantize(x, scale, zero, axis=axis, out_dtype=dtype)

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
