"""Half-precision networks: stored in float16 or bfloat16, summed in float32.

A sum of float16 products that is rounded after each term loses several of its 11 bits, and on a CPU
without float16 arithmetic each rounding costs an instruction. So convolutions and matrix products sum
in float32, and fused epilogues (bias, activation) compute in float32, too: each kernel rounds once.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.passes import constants
from tvmtune.passes.bindings import operator_of

if TYPE_CHECKING:
    import tvm

HALF_DTYPES = ("float16", "bfloat16")
MATRIX_OPERATORS = (
    "matmul",
    "nn.conv1d",
    "nn.conv2d",
    "nn.conv3d",
    "nn.conv1d_transpose",
    "nn.conv2d_transpose",
    "nn.conv3d_transpose",
)
"""Relax operators of two tensors with an attribute ``out_dtype``."""


ELEMENTWISE = frozenset(
    f"relax.{name}"
    for name in (
        "add",
        "subtract",
        "multiply",
        "divide",
        "maximum",
        "minimum",
        "clip",
        "nn.relu",
        "nn.leakyrelu",
        "nn.gelu",
        "nn.gelu_tanh",
        "nn.silu",
        "sigmoid",
        "tanh",
        "erf",
        "exp",
        "negative",
    )
)
"""Computed in float32 if a float32 sum is among the operands."""

REDUCTIONS = frozenset(
    f"relax.{name}"
    for name in (
        "sum",
        "mean",
        "variance",
        "std",
        "prod",
        "cumprod",
        "cumsum",
        "nn.softmax",
        "nn.log_softmax",
        "nn.layer_norm",
        "nn.group_norm",
        "nn.instance_norm",
        "nn.rms_norm",
        *(f"nn.avg_pool{n}d" for n in (1, 2, 3)),
        *(f"nn.adaptive_avg_pool{n}d" for n in (1, 2, 3)),
    )
)
"""Always computed in float32."""


def sum_in_float32(mod: tvm.IRModule) -> tvm.IRModule:
    """Compute convolutions, matrix products and reductions of half-precision values, and element-wise
    operators that follow them, in float32; all other operators keep their operands."""
    from tvm import relax
    from tvm.relax.expr_functor import PyExprMutator, mutator

    readers = _Readers(mod)
    makers = {f"relax.{name}": _maker(relax.op, name) for name in MATRIX_OPERATORS}

    @mutator
    class Widen(PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            before = call.args
            call = self.visit_expr_post_order(call)
            name = getattr(call.op, "name", "")
            if name in makers and all(_is_half(arg) for arg in call.args):
                make = makers[name]
                taken = list(inspect.signature(make).parameters)[2:]
                attributes = {key: getattr(call.attrs, key) for key in taken}
                wide = make(*call.args, **(attributes | {"out_dtype": "float32"}))
                return self._rounded(wide, call)
            if name in ELEMENTWISE | REDUCTIONS and _is_half(call):
                # A value that other kernels read is in memory anyway: do not store it twice.
                wider = [
                    self._unrounded(arg) if readers.share_a_kernel(old) else None
                    for old, arg in zip(before, call.args, strict=True)
                ]
                if name in REDUCTIONS or any(w is not None for w in wider):
                    args = [
                        w if w is not None else self._widened(arg)
                        for w, arg in zip(wider, call.args, strict=True)
                    ]
                    factor = _reciprocal(call.args[1]) if name == "relax.divide" else None
                    if factor is not None:
                        return self._rounded(relax.op.multiply(args[0], factor), call)
                    return self._rounded(relax.Call(call.op, args, call.attrs), call)
            return call

        def _rounded(self, wide: Any, like: Any) -> Any:
            wide = self.builder_.emit(self.builder_.normalize(wide))
            return relax.op.astype(wide, str(like.ty.dtype))

        def _unrounded(self, arg: Any) -> Any:
            """The float32 value that was rounded to ``arg``, or None."""
            found = self.lookup_binding(arg) if isinstance(arg, relax.Var) else arg
            if operator_of(found) != "astype":
                return None
            source = found.args[0]
            return source if str(source.ty.dtype) == "float32" else None

        def _widened(self, arg: Any) -> Any:
            return relax.op.astype(arg, "float32") if _is_half(arg) else arg

    widen = Widen(mod)
    for variable, function in mod.functions.items():
        if isinstance(function, relax.Function):
            widen.builder_.update_func(variable, widen.visit_expr(function))
    # TVM keeps mutator classes forever, with everything their closures hold: the weights.
    readers.clear()
    return widen.builder_.get()


def rounds_to(mod: tvm.IRModule) -> set[str]:
    """The half-precision dtypes that a kernel rounds to."""
    text = mod.script(show_meta=False)
    return {half for half in HALF_DTYPES if f'T.Cast("{half}"' in text}


class _Readers:
    """Which bindings read each variable."""

    def __init__(self, mod: tvm.IRModule) -> None:
        from tvm import relax

        self._of: dict[Any, list[tuple[int, Any]]] = {}
        """With the position of each in its function."""
        self._returned: set[Any] = set()
        for function in mod.functions.values():
            if isinstance(function, relax.Function):
                self._add(function)

    def _add(self, function: Any) -> None:
        from tvm import relax
        from tvm.relax.analysis import free_vars

        bindings = [each for block in function.body.blocks for each in block.bindings]
        for place, binding in enumerate(bindings):
            if isinstance(binding.value, relax.Tuple):
                self._returned.update(free_vars(binding.value))
            for variable in free_vars(binding.value):
                self._of.setdefault(variable, []).append((place, binding))
        self._returned.update(free_vars(function.body.body))

    def share_a_kernel(self, value: Any) -> bool:
        """Whether nothing reads a value outside the kernel of one of its readers: there is only one,
        or all are element-wise and lead to one such operator, as those of ``x * sigmoid(x)`` do."""
        if value in self._returned:
            return False
        ahead = dict(self._of.get(value, ()))
        if len(ahead) == 1:
            return True
        while ahead:
            first = ahead.pop(min(ahead))
            if not _is_elementwise(first.value):
                return False
            if not ahead:
                return True
            if first.var in self._returned:
                return False
            ahead.update(self._of.get(first.var, ()))
        return False

    def clear(self) -> None:
        self._of.clear()
        self._returned.clear()


def _is_elementwise(value: Any) -> bool:
    return f"relax.{operator_of(value)}" in ELEMENTWISE


def _reciprocal(divisor: Any) -> Any | None:
    """A constant in float32 to multiply by instead: a division takes as long as ten other instructions,
    and the result is rounded to half precision anyway. None for what is not constant, and if a
    reciprocal is not a normal number."""
    values = constants.constant_value(divisor)
    if values is None:
        return None
    with np.errstate(divide="ignore", over="ignore"):
        inverse = 1 / np.asarray(values, "float32")
    limits = np.finfo("float32")
    size = np.abs(inverse)
    is_normal = (size >= limits.tiny) & (size <= limits.max)
    return constants.share(inverse.astype("float32")) if is_normal.all() else None


def _is_half(value: Any) -> bool:
    return str(getattr(getattr(value, "ty", None), "dtype", "")) in HALF_DTYPES


def _maker(ops: Any, name: str) -> Any:
    for part in name.split("."):
        ops = getattr(ops, part)
    return ops
