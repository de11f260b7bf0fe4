"""Float convolutions outside the quantized region, in the layout with the better CPU schedules."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.passes.bindings import emit_as, is_constant, operator_of
from tvmtune.quantize.layers import LAYOUT, Layer

if TYPE_CHECKING:
    import tvm


_ELEMENTWISE = {
    *("add", "subtract", "multiply", "divide", "maximum", "minimum", "clip", "sigmoid"),
    *("nn.relu", "nn.silu", "nn.leakyrelu"),
}
_POOLING = ("nn.max_pool2d", "nn.avg_pool2d")
_TO_NHWC, _TO_NCHW = [0, 2, 3, 1], [0, 3, 1, 2]


def channels_last(graph: tvm.IRModule, layers: Collection[Layer]) -> tvm.IRModule:
    """The NCHW graph with every ungrouped convolution that no layer covers computed in NHWC, and with
    the elementwise operators and poolings behind it."""
    from tvm import relax
    from tvm.relax.expr_functor import PyExprMutator, mutator

    covered = {name for layer in layers for name in layer.covers}

    @mutator
    class ConvertLayout(PyExprMutator):
        def __init__(self, mod: Any) -> None:
            super().__init__(mod)
            self.converted: dict[str, Any] = {}
            """NHWC variables by the names of the NCHW ones."""

        def visit_var_binding_(self, binding: Any) -> None:
            name, call = str(binding.var.name), binding.value
            emit = self.builder_.emit
            made = None
            if name not in covered:
                if _is_ungrouped(call):
                    x = self.last(call.args[0])
                    if x is None:
                        image = self.visit_expr(call.args[0])
                        x = emit(relax.op.permute_dims(image, _TO_NHWC), f"{name}_x")
                    made = _convolution(call, x)
                elif operands := self.operands(call):
                    made = _with_operands(call, operands)
            if made is None:
                super().visit_var_binding_(binding)
                return
            self.converted[name] = emit(made, f"{name}_y")
            back = relax.op.permute_dims(self.converted[name], _TO_NCHW)
            emit_as(self, binding, back)

        def last(self, value: Any) -> Any | None:
            """The NHWC form of a variable that has one."""
            return self.converted.get(str(value.name)) if isinstance(value, relax.Var) else None

        def operands(self, call: Any) -> list[Any]:
            """The operands in NHWC of an elementwise operator or a pooling; none unless all are there
            or constant."""
            operator = operator_of(call)
            if operator not in _ELEMENTWISE and operator not in _POOLING:
                return []
            made = [
                _constant(each) if is_constant(each) else self.last(each)
                for each in call.args
                if isinstance(each.ty, relax.TensorType)
            ]
            missing = any(each is None for each in made)
            return [] if missing or all(is_constant(each) for each in made) else made

    converting = ConvertLayout(graph)
    function = converting.visit_expr(graph["main"])
    converting.builder_.update_func(graph.get_global_var("main"), function)
    return relax.transform.DeadCodeElimination()(converting.builder_.get())


def before_transposition(builder: Any, value: Any) -> Any | None:
    """What was transposed from NHWC to give this NCHW variable; None if nothing was."""
    call = builder.lookup_binding(value)
    if operator_of(call) != "permute_dims":
        return None
    axes = call.attrs.axes
    return call.args[0] if axes is not None and [*map(int, axes)] == _TO_NCHW else None


def _convolution(call: Any, x: Any) -> Any:
    from tvm import relax

    attrs = call.attrs
    weights = np.ascontiguousarray(call.args[1].value.numpy().transpose(2, 3, 1, 0))
    return relax.op.nn.conv2d(
        x,
        relax.const(weights),
        list(attrs.strides),
        list(attrs.padding),
        list(attrs.dilation),
        int(attrs.groups),
        data_layout="NHWC",
        kernel_layout="HWIO",
    )


def _with_operands(call: Any, operands: list[Any]) -> Any:
    """The call with operands in NHWC in place of its tensors."""
    from tvm import relax

    attrs = call.attrs
    if operator_of(call) not in _POOLING:
        others = [each for each in call.args if not isinstance(each.ty, relax.TensorType)]
        return relax.Call(call.op, [*operands, *others], attrs)
    pool = getattr(relax.op.nn, call.op.name.rsplit(".", 1)[1])
    return pool(
        operands[0],
        list(attrs.pool_size),
        list(attrs.strides),
        list(attrs.padding),
        list(attrs.dilation),
        bool(attrs.ceil_mode),
        bool(attrs.count_include_pad),
        "NHWC",
    )


def _constant(constant: Any) -> Any | None:
    """A constant that is broadcast to NCHW, for NHWC."""
    from tvm import relax

    values = constant.value.numpy()
    if values.ndim > 4:
        return None
    wide = values.reshape((1,) * (4 - values.ndim) + values.shape)
    return (
        relax.const(np.ascontiguousarray(wide.transpose(_TO_NHWC))) if values.size > 1 else constant
    )


def _is_ungrouped(call: Any) -> bool:
    """Whether it is a convolution in one group with constant weights, in the usual layouts."""
    if operator_of(call) != "nn.conv2d":
        return False
    attrs = call.attrs
    return (
        is_constant(call.args[1])
        and int(attrs.groups) == 1
        and (attrs.data_layout, attrs.kernel_layout) == (LAYOUT, "OIHW")
    )
