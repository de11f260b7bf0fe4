"""Constants of a Relax program, transformed by NumPy.

TVM's FoldConstant compiles an unscheduled kernel for every call and runs it on one thread, which takes
seconds for weights and keeps all of them alive until the end. NumPy does the transposing and reshaping.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.passes.bindings import bindings, is_constant, operator_of

if TYPE_CHECKING:
    import tvm

_CONVOLUTIONS = tuple(f"nn.conv{rank}d{kind}" for rank in (1, 2, 3) for kind in ("", "_transpose"))
_NUMPY = (
    "float16",
    "float32",
    "float64",
    *(f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)),
)
"""Types that are read without a copy. NumPy does not have all of TVM's, such as float8_e4m3fn."""
_ELEMENTWISE = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power")


def has_convolutions(mod: tvm.IRModule) -> bool:
    """Whether the network has an operator whose layout can be chosen."""
    return any(operator_of(b.value) in _CONVOLUTIONS for b in bindings(mod))


def fold_moves(mod: tvm.IRModule) -> tvm.IRModule:
    """Evaluate transpositions and reshapes of constants."""
    from tvm import relax

    if not any(operator_of(b.value) in _MOVES for b in bindings(mod)):
        return mod

    @relax.expr_functor.mutator
    class MoveFolder(relax.PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            call = self.visit_expr_post_order(call)
            compute = _MOVES.get(operator_of(call))
            source = None if compute is None else _constant(self.builder_, call.args[0])
            if compute is None or source is None:
                return call
            shape = [int(extent) for extent in call.ty.shape]
            return share(compute(source, call, shape))

    folder = MoveFolder(mod)
    folder.builder_.update_func(mod.get_global_var("main"), folder.visit_expr(mod["main"]))
    return folder.builder_.get()


def widen(mod: tvm.IRModule) -> tvm.IRModule:
    """Give constant operands of element-wise operators the rank of the result.

    ConvertLayout can then convert them to the layout of the other operand, instead of converting that
    one back.
    """
    from tvm import relax

    @relax.expr_functor.mutator
    class Widener(relax.PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            call = self.visit_expr_post_order(call)
            if operator_of(call) not in _ELEMENTWISE:
                return call
            rank = len(call.ty.shape)
            arguments = list(call.args)
            for position, argument in enumerate(arguments):
                value = _constant(self.builder_, argument)
                if value is not None and 0 < value.ndim < rank and rank > 2:
                    arguments[position] = share(
                        value.reshape((1,) * (rank - value.ndim) + value.shape)
                    )
            if all(a.same_as(b) for a, b in zip(arguments, call.args, strict=True)):
                return call
            return relax.Call(call.op, arguments, call.attrs)

    widener = Widener(mod)
    widener.builder_.update_func(mod.get_global_var("main"), widener.visit_expr(mod["main"]))
    return widener.builder_.get()


def share(array: np.ndarray) -> Any:
    """A Relax constant; it shares the memory of a large array, which must not change afterwards."""
    from tvm import relax, runtime

    if array.nbytes > 1 << 16 and array.dtype.kind in "iuf":
        return relax.const(runtime.from_dlpack(_aligned(array)))
    return relax.const(runtime.tensor(np.asarray(array, order="C")))


def _aligned(array: np.ndarray) -> np.ndarray:
    from tvmtune.arrays import aligned

    in_place = array.flags.c_contiguous and array.flags.writeable and not array.ctypes.data % 64
    return array if in_place else aligned(array)


def _permuted(source: np.ndarray, call: Any, shape: list[int]) -> np.ndarray:
    axes = call.attrs.axes
    return source.transpose(None if axes is None else [int(axis) for axis in axes])


def _reshaped(source: np.ndarray, call: Any, shape: list[int]) -> np.ndarray:
    return source.reshape(shape)


_MOVES = {
    "permute_dims": _permuted,
    "reshape": _reshaped,
    "expand_dims": _reshaped,
    "squeeze": _reshaped,
}


def _constant(builder: Any, expr: Any) -> np.ndarray | None:
    """The values of ``expr`` if it is a constant, else None."""
    from tvm import relax

    while isinstance(expr, relax.Var):
        expr = builder.lookup_binding(expr)
    return constant_value(expr)


def values(constant: Any) -> np.ndarray:
    """The values of a Relax constant, without a copy for the usual types."""
    tensor = constant.value
    if np.prod(tensor.shape) and str(tensor.dtype) in _NUMPY:
        return np.from_dlpack(tensor)
    copied: np.ndarray = tensor.numpy()
    return copied


def constant_value(expr: Any) -> np.ndarray | None:
    """As :func:`values`; None for an expression that is no constant."""
    return values(expr) if is_constant(expr) else None
