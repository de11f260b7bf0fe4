"""A float32 network with weights and intermediate tensors in bfloat16."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmtune.arrays import narrowed, numpy_dtype
from tvmtune.errors import UsageError
from tvmtune.networks.float16 import float32_model, round_weights
from tvmtune.networks.onnx.network import OnnxNetwork

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import tvm

    from tvmtune.types import Network

DTYPE = "bfloat16"
_IN_FLOAT32 = ("relax.nn.group_norm",)
"""Operators that TVM refuses in bfloat16."""


class Bfloat16Network:
    """Implements :class:`tvmtune.types.Network` for the bfloat16 form of an ONNX network.

    Inputs and outputs stay float32: neither NumPy nor its files know bfloat16. Batch norms are folded
    before weights are rounded, so that they are rounded once. The reference computes in float32 with
    the rounded weights: it differs by the rounding of activations. Raises :class:`UsageError` if
    ``network`` is not in ONNX form.
    """

    computes = DTYPE

    def __init__(self, network: Network) -> None:
        full = float32_model(network, DTYPE)
        round_weights(full, numpy_dtype(DTYPE))
        self.rounded = OnnxNetwork(full, name=network.name)
        """The float32 network with weights rounded to bfloat16."""
        self.name, self.inputs, self.outputs = network.name, network.inputs, network.outputs
        self.source = network.source | {"dtype": DTYPE}
        self.structure_hash = f"{self.rounded.structure_hash}-{DTYPE}"
        self.weights_hash = self.rounded.weights_hash
        self.ranges, self.state = self.rounded.ranges, self.rounded.state

    def to_relax(self) -> tvm.IRModule:
        return _narrow(self.rounded.to_relax())

    def to_onnx(self) -> bytes | None:
        """The float32 network with the rounded weights, for other runtimes."""
        return self.rounded.to_onnx()

    def reference(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Outputs of float32 arithmetic with the rounded weights."""
        return self.rounded.reference(inputs)


def _narrow(mod: tvm.IRModule) -> tvm.IRModule:
    """The program, of one Relax function, in bfloat16 between its inputs and outputs."""
    import tvm
    from tvm import relax

    function = mod["main"]
    builder = relax.BlockBuilder()
    params = [relax.Var(str(param.name), param.ty) for param in function.params]
    known: dict[Any, Any] = {}
    wide: dict[Any, Any] = {}
    """What kernels read in float32: each step of a recurrent layer reads what all have in common."""

    def is_wide(value: Any) -> bool:
        return str(getattr(value.ty, "dtype", "")) == "float32"

    def narrow(expr: Any) -> Any:
        if isinstance(expr, relax.Var):
            return known[expr]
        if isinstance(expr, tvm.ir.GenericConst) and is_wide(expr):
            return relax.const(narrowed(expr.value.numpy(), numpy_dtype(DTYPE)))
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([narrow(field) for field in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(narrow(expr.tuple_value), expr.index)
        if isinstance(expr, relax.Call) and len(expr.ty_args):
            return rounded(called(expr))
        if isinstance(expr, relax.Call):
            if expr.op.name in _IN_FLOAT32:
                return rounded(relax.Call(expr.op, widen(expr.args), expr.attrs))
            args = [narrow(argument) for argument in expr.args]
            if expr.op.name == "relax.astype" and is_wide(expr):
                return relax.op.astype(args[0], DTYPE)
            return relax.Call(expr.op, args, expr.attrs)
        return expr

    def called(call: Any) -> Any:
        """A call of one of the importer's own kernels, which compute in float32."""
        if call.op.name != "relax.call_tir":
            raise UsageError(f"--dtype {DTYPE} does not support {call.op.name}; try float16")
        kernel, operands = call.args[0], call.args[1]
        if isinstance(kernel, tvm.ir.GlobalVar):
            kernel = builder.add_func(mod[kernel], kernel.name_hint)
        given = relax.Tuple(widen(operands.fields))
        return relax.Call(call.op, [kernel, given, *call.args[2:]], call.attrs, call.ty_args)

    def widen(values: Sequence[Any]) -> list[Any]:
        """The rounded values, in the program's dtypes."""
        for each in values:
            if each not in wide:
                wide[each] = builder.emit(widened(builder.emit(narrow(each)), each))
        return [wide[each] for each in values]

    def rounded(call: Any) -> Any:
        result = builder.emit(call)
        return cast(result, [DTYPE if kind == "float32" else kind for kind in kinds(result)])

    def widened(result: Any, wanted: Any) -> Any:
        return cast(result, kinds(wanted))

    def kinds(value: Any) -> list[str]:
        fields = value.ty.fields if isinstance(value.ty, relax.TupleType) else [value.ty]
        return [str(field.dtype) for field in fields]

    def cast(value: Any, wanted: list[str]) -> Any:
        """A value, or the fields of a tuple, cast to these dtypes."""
        if not isinstance(value.ty, relax.TupleType):
            (kind,) = wanted
            return value if kinds(value) == wanted else relax.op.astype(value, kind)
        fields = [builder.emit(relax.TupleGetItem(value, n)) for n in range(len(wanted))]
        pairs = zip(fields, wanted, strict=True)
        return relax.Tuple([builder.emit(cast(field, [kind])) for field, kind in pairs])

    with builder.function("main", params, attrs=dict(function.attrs or {})):
        with builder.dataflow():
            for old, new in zip(function.params, params, strict=True):
                known[old] = builder.emit(relax.op.astype(new, DTYPE)) if is_wide(old) else new
            for block in function.body.blocks:
                for binding in block.bindings:
                    known[binding.var] = builder.emit(narrow(binding.value))
            result = builder.emit(narrow(function.body.body))
            output = builder.emit_output(widened(result, function.body.body))
        builder.emit_func_output(output)
    return builder.get()
