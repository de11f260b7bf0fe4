"""Moves transpositions through a network until they cancel.

TVM's layout conversion puts transpositions around what it does not know, and networks have their own:
ConvNeXt transposes twice in each block, ShuffleNet shuffles channels in NCHW. They cost copies of whole
feature maps, and no convolution fuses with what stands behind one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.passes.bindings import bindings, operator_of
from tvmtune.passes.constants import share, values
from tvmtune.types import product

if TYPE_CHECKING:
    import tvm

_UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "astype", "atan", "atanh", "ceil", "clip", "cos", "cosh",
    "erf", "exp", "floor", "isfinite", "isinf", "isnan", "log", "logical_not", "negative", "round",
    "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc", "nn.gelu",
    "nn.gelu_tanh", "nn.leakyrelu", "nn.relu", "nn.selu", "nn.silu", "nn.softplus",
)  # fmt: skip
_SEVERAL = (
    "add", "subtract", "multiply", "divide", "floor_divide", "mod", "floor_mod", "power", "maximum",
    "minimum", "atan2", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
    "logical_and", "logical_or", "logical_xor", "where", "ewise_fma",
)  # fmt: skip
_REDUCTIONS = ("mean", "sum", "max", "min", "prod", "std", "variance")
_SMALL = 16
"""An operand of an elementwise operator this many times smaller than the result may be transposed."""


def remove(mod: tvm.IRModule) -> tvm.IRModule:
    """The same program with the fewest transposed elements that moving transpositions leads to.

    ``mod`` itself if nothing is gained, or if ``main`` is not a single block.
    """
    if len(mod["main"].body.blocks) != 1 or not any(_permutation(b.value) for b in bindings(mod)):
        return mod
    made = [mod, *(_moved(mod, through_merges=merges) for merges in (False, True))]
    if any(operator_of(b.value) == "image.resize2d" for b in bindings(mod)):
        made.append(_moved(mod, through_merges=False, through_resizes=False))
    return min(made, key=_transposed_elements)


def _permutation(expr: Any) -> list[int] | None:
    """The axes of a transposition."""
    if operator_of(expr) != "permute_dims":
        return None
    rank = len(expr.ty.shape) if expr.attrs.axes is None else 0
    return [int(a) for a in expr.attrs.axes] if not rank else [*reversed(range(rank))]


def _transposed_elements(mod: tvm.IRModule) -> int:
    return sum(product(b.value.ty.shape) for b in bindings(mod) if _permutation(b.value))


def _inverse(axes: Sequence[int]) -> list[int]:
    return [int(place) for place in np.argsort(axes)]


def _shape(expr: Any) -> list[int]:
    return [int(extent) for extent in expr.ty.shape]


def _moved(
    mod: tvm.IRModule, *, through_merges: bool, through_resizes: bool = True
) -> tvm.IRModule:
    """Move transpositions towards the outputs wherever that takes no other one.

    ``through_merges``: also through reshapes that merge axes which are not adjacent before the
    transposition; another transposition brings these together. ``through_resizes``: also through those
    of images, after which there may be more to transpose.
    """
    from tvm import relax
    from tvm.ir import GenericConst

    @relax.expr_functor.mutator
    class Mover(relax.PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            call = self.visit_expr_post_order(call)
            rule = rules.get(operator_of(call))
            made = rule(call) if rule else None
            return call if made is None else made

        def visit_tuple_getitem_(self, item: Any) -> Any:
            item = self.visit_expr_post_order(item)
            fields = value_of(item.tuple_value)
            return fields.fields[item.index] if isinstance(fields, relax.Tuple) else item

    mover = Mover(mod)
    builder = mover.builder_

    def value_of(expr: Any) -> Any:
        while isinstance(expr, relax.Var) and (found := builder.lookup_binding(expr)) is not None:
            expr = found
        return expr

    def origin(expr: Any) -> tuple[Any, list[int]]:
        """What is transposed to give ``expr``, and the axes; ``expr`` itself if nothing is."""
        value = value_of(expr)
        axes = _permutation(value)
        return (expr, [*range(len(expr.ty.shape))]) if axes is None else (value.args[0], axes)

    def transposed(expr: Any, axes: Sequence[int]) -> Any:
        """``expr`` with these axes; no call if they are in order."""
        if [*axes] == [*range(len(axes))]:
            return expr
        return relax.op.permute_dims(expr, [*axes])

    def is_moved(axes: Sequence[int]) -> bool:
        return [*axes] != [*range(len(axes))]

    def permute_dims(call: Any) -> Any:
        base, first = origin(call.args[0])
        return transposed(base, [first[axis] for axis in _permutation(call) or ()])

    def elementwise(call: Any) -> Any:
        shape = _shape(call)
        moved = {
            tuple(axes)
            for base, axes in map(origin, tensors(call.args))
            if is_moved(axes) and sorted(_shape(base)) == sorted(shape)
        }
        if len(moved) != 1:
            return None
        (axes,) = moved
        arguments = [operand(a, axes, shape) if is_tensor(a) else a for a in call.args]
        if any(a is None for a in arguments):
            return None
        return transposed(builder.emit(relax.Call(call.op, arguments, call.attrs)), axes)

    def is_tensor(expr: Any) -> bool:
        return isinstance(expr.ty, relax.TensorType)

    def tensors(exprs: Sequence[Any]) -> list[Any]:
        return [expr for expr in exprs if is_tensor(expr)]

    def operand(expr: Any, axes: Sequence[int], shape: Sequence[int]) -> Any:
        """``expr`` as it must be if the result is to be transposed only later; None if that is not
        cheap."""
        base, own = origin(expr)
        if own == [*axes] and is_moved(own):
            return base
        extents = _shape(expr)
        if product(extents) == 1 and len(extents) <= len(axes):
            return expr
        wide = [1] * (len(axes) - len(extents)) + extents
        constant = value_of(expr)
        if isinstance(constant, GenericConst):
            return share(values(constant).reshape(wide).transpose(_inverse(axes)))
        if product(extents) * _SMALL > product(shape):
            return None
        if wide != extents:
            expr = builder.emit(relax.op.reshape(expr, wide))
            base, own = expr, [*range(len(wide))]
        made = transposed(base, [own[axis] for axis in _inverse(axes)])
        return made if made is base else builder.emit(made)

    def rounding(call: Any) -> Any:
        scale, zero = call.args[1:3]
        return elementwise(call) if product(_shape(scale)) * product(_shape(zero)) == 1 else None

    def pooling(call: Any) -> Any:
        base, axes = origin(call.args[0])
        attrs = call.attrs
        if axes != [0, 3, 1, 2] or (attrs.layout, attrs.out_layout) != ("NCHW", "NCHW"):
            return None
        pool = getattr(relax.op.nn, operator_of(call).removeprefix("nn."))
        lists = (attrs.pool_size, attrs.strides, attrs.padding, attrs.dilation)
        made = pool(
            base,
            *([int(n) for n in each] for each in lists),
            bool(attrs.ceil_mode),
            bool(attrs.count_include_pad),
            "NHWC",
        )
        return transposed(builder.emit(made), axes)

    def resize(call: Any) -> Any:
        base, axes = origin(call.args[0])
        attrs = call.attrs
        if not through_resizes or axes != [0, 3, 1, 2] or attrs.layout != "NCHW":
            return None
        made = relax.op.image.resize2d(
            base,
            call.args[1],
            tuple(float(n) for n in attrs.roi),
            "NHWC",
            str(attrs.method),
            str(attrs.coordinate_transformation_mode),
            str(attrs.rounding_method),
            float(attrs.cubic_alpha),
            int(attrs.cubic_exclude),
            float(attrs.extrapolation_value),
            str(call.ty.dtype),
        )
        return transposed(builder.emit(made), axes)

    def reduction(call: Any) -> Any:
        base, axes = origin(call.args[0])
        if not is_moved(axes):
            return None
        if call.attrs.axis is None:
            return relax.Call(call.op, [base], call.attrs)
        reduced = {int(axis) % len(axes) for axis in call.attrs.axis}
        keep = bool(call.attrs.keepdims)
        operator = getattr(relax.op, operator_of(call))
        made = builder.emit(operator(base, sorted(axes[axis] for axis in reduced), keep))
        if keep:
            return transposed(made, axes)
        left = [axes[axis] for axis in range(len(axes)) if axis not in reduced]
        return transposed(made, [sorted(left).index(axis) for axis in left])

    def concatenation(call: Any) -> Any:
        parts = value_of(call.args[0])
        if not isinstance(parts, relax.Tuple) or call.attrs.axis is None:
            return None
        origins = [origin(part) for part in parts.fields]
        axes = origins[0][1]
        if not is_moved(axes) or any(own != axes for _, own in origins):
            return None
        made = relax.op.concat([base for base, _ in origins], axes[int(call.attrs.axis)])
        return transposed(builder.emit(made), axes)

    def split(call: Any) -> Any:
        base, axes = origin(call.args[0])
        if not is_moved(axes):
            return None
        parts = call.attrs.indices_or_sections
        parts = [int(p) for p in parts] if hasattr(parts, "__len__") else int(parts)
        made = builder.emit(relax.op.split(base, parts, axes[int(call.attrs.axis)]))
        count = len(made.ty.fields)
        pieces = [builder.emit(relax.TupleGetItem(made, n)) for n in range(count)]
        return relax.Tuple([builder.emit(relax.op.permute_dims(p, axes)) for p in pieces])

    def pad(call: Any) -> Any:
        base, axes = origin(call.args[0])
        if not is_moved(axes):
            return None
        widths = [int(width) for width in call.attrs.pad_width]
        moved = [0] * len(widths)
        for place, axis in enumerate(axes):
            moved[2 * axis : 2 * axis + 2] = widths[2 * place : 2 * place + 2]
        attrs = call.attrs
        made = relax.op.nn.pad(base, moved, str(attrs.pad_mode), float(attrs.pad_value))
        return transposed(builder.emit(made), axes)

    def reshape(call: Any) -> Any:
        base, axes = origin(call.args[0])
        if not is_moved(axes):
            return None
        new = _shape(call)
        groups = _groups(_shape(call.args[0]), new)
        # Each group's axes before the transposition, and after the reshape.
        places = [([axes[axis] for axis in old], made) for old, made in groups]
        ordered = sorted(places, key=lambda group: min(group[0], default=len(axes)))
        order = [axis for group, _ in ordered for axis in group]
        if order != [*range(len(axes))]:
            if not through_merges:
                return None
            base = builder.emit(relax.op.permute_dims(base, order))
        order = [axis for _, made in ordered for axis in made]
        made = builder.emit(relax.op.reshape(base, [new[axis] for axis in order]))
        return transposed(made, _inverse(order))

    rules: dict[str, Callable[[Any], Any]] = {
        **dict.fromkeys([*_UNARY, *_SEVERAL], elementwise),
        **dict.fromkeys(("quantize", "dequantize"), rounding),
        **dict.fromkeys(("nn.max_pool2d", "nn.avg_pool2d"), pooling),
        **dict.fromkeys(_REDUCTIONS, reduction),
        **dict.fromkeys(("reshape", "expand_dims", "squeeze", "flatten"), reshape),
        "permute_dims": permute_dims,
        "concat": concatenation,
        "split": split,
        "nn.pad": pad,
        "image.resize2d": resize,
    }
    builder.update_func(mod.get_global_var("main"), mover.visit_expr(mod["main"]))
    result = builder.get()
    for each in (relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()):
        result = each(result)
    # TVM keeps the class, and its functions would keep the weights.
    builder = None
    return result


def _groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The axes of a reshape's input and output that hold the same elements, in as many parts as
    possible; extents of 1 are parts of their own where they can be."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        if i < len(old) and old[i] == 1 and not (j < len(new) and new[j] == 1):
            groups.append(([i], []))
            i += 1
            continue
        if j < len(new) and new[j] == 1 and not (i < len(old) and old[i] == 1):
            groups.append(([], [j]))
            j += 1
            continue
        mine, others = [i], [j]
        size, other = old[i], new[j]
        i, j = i + 1, j + 1
        while size != other:
            if size < other:
                mine.append(i)
                size *= old[i]
                i += 1
            else:
                others.append(j)
                other *= new[j]
                j += 1
        groups.append((mine, others))
    return groups
