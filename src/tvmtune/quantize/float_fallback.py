"""Float convolutions outside the quantized region, in the layout with the better CPU schedules."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.quantize.graph import is_constant
from tvmtune.quantize.layers import LAYOUT, Layer

if TYPE_CHECKING:
    import tvm


def channels_last(graph: tvm.IRModule, layers: Collection[Layer]) -> tvm.IRModule:
    """The NCHW graph with every ungrouped convolution that no layer covers computed in NHWC."""
    from tvm import relax
    from tvm.relax.expr_functor import PyExprMutator, mutator

    covered = {name for layer in layers for name in layer.covers}

    @mutator
    class ConvertLayout(PyExprMutator):
        def visit_var_binding_(self, binding: Any) -> None:
            name, call = str(binding.var.name), binding.value
            if name in covered or not _is_ungrouped(call):
                super().visit_var_binding_(binding)
                return
            attrs = call.attrs
            weights = np.ascontiguousarray(call.args[1].value.numpy().transpose(2, 3, 1, 0))
            emit = self.builder_.emit
            x = emit(
                relax.op.permute_dims(self.visit_expr(call.args[0]), [0, 2, 3, 1]), f"{name}_x"
            )
            y = emit(
                relax.op.nn.conv2d(
                    x,
                    relax.const(weights),
                    list(attrs.strides),
                    list(attrs.padding),
                    list(attrs.dilation),
                    int(attrs.groups),
                    data_layout="NHWC",
                    kernel_layout="HWIO",
                ),
                f"{name}_y",
            )
            back = relax.op.permute_dims(y, [0, 3, 1, 2])
            is_inner = isinstance(binding.var, relax.DataflowVar)
            new = emit(back, name) if is_inner else self.builder_.emit_output(back, name)
            self.set_var_remap(binding.var, new)

    converting = ConvertLayout(graph)
    function = converting.visit_expr(graph["main"])
    converting.builder_.update_func(graph.get_global_var("main"), function)
    return converting.builder_.get()


def _is_ungrouped(call: Any) -> bool:
    """Whether it is a convolution in one group with constant weights, in the usual layouts."""
    if getattr(getattr(call, "op", None), "name", "") != "relax.nn.conv2d":
        return False
    attrs = call.attrs
    return (
        is_constant(call.args[1])
        and int(attrs.groups) == 1
        and (attrs.data_layout, attrs.kernel_layout) == (LAYOUT, "OIHW")
    )
