"""Fixes modules of TVM's importers that compute something else than the file or do not compile."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tvm

_NCHW, _NHWC = (0, 3, 1, 2), (0, 2, 3, 1)
"""Axes of a transposition from the other layout to this one."""


def fix(module: tvm.IRModule) -> tvm.IRModule:
    """Return ``module`` with safe indices, and without what TVM's passes cannot handle.

    Negative indices of ``take`` count from the end, as PyTorch's do, and none leaves the tensor; the
    importers' own read out of bounds. Transposed convolutions become NCHW, the only layout in which TVM
    legalizes them. Booleans are compared as integers: TVM gives LLVM an instruction for floats, which
    it refuses.
    """
    from tvm import ir, relax
    from tvm.relax.expr_functor import PyExprMutator, mutator

    take, transposed = map(ir.Op.get, ("relax.take", "relax.nn.conv2d_transpose"))
    comparisons = {
        ir.Op.get(f"relax.{name}"): getattr(relax.op, name)
        for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
    }

    @mutator
    class Fix(PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            call = self.visit_expr_post_order(call)
            if call.op == take:
                mode = "clip" if _is_inside(call) else "wrap"
                return relax.op.take(*call.args, axis=call.attrs.axis, mode=mode)
            if call.op in comparisons and str(call.args[0].ty.dtype) == "bool":
                numbers = [self.builder_.emit(relax.op.astype(x, "uint8")) for x in call.args]
                return comparisons[call.op](*numbers)
            if call.op == transposed and call.attrs.data_layout == "NHWC":
                x = self.builder_.emit(relax.op.permute_dims(call.args[0], _NCHW))
                y = self.builder_.emit(_transposed_convolution(x, call))
                return relax.op.permute_dims(y, _NHWC)
            return call

    fixing = Fix(module)
    for variable, function in module.functions_items():
        if isinstance(function, relax.Function):
            fixing.builder_.update_func(variable, fixing.visit_expr(function))
    return fixing.builder_.get()


def _is_inside(take: Any) -> bool:
    """Whether its indices are constants within the tensor: computing remainders takes time."""
    from tvm import ir

    data, indices = take.args
    if not isinstance(indices, ir.GenericConst):
        return False
    extents, axis, places = [int(n) for n in data.ty.shape], take.attrs.axis, indices.value.numpy()
    extent = math.prod(extents) if axis is None else extents[int(axis)]
    return bool(places.size and places.min() >= 0 and places.max() < extent)


def _transposed_convolution(x: Any, call: Any) -> Any:
    from tvm import relax

    names = ("strides", "padding", "output_padding", "dilation", "groups", "kernel_layout")
    attributes = {name: getattr(call.attrs, name) for name in names}
    return relax.op.nn.conv2d_transpose(
        x, call.args[1], **attributes, data_layout="NCHW", out_dtype=call.attrs.out_dtype
    )
