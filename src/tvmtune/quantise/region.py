"""Which part of a network is to compute in whole numbers, layer by layer.

A layer is a convolution with what follows it for each channel (scale, bias, activation), or the sum of
two tensors with its activation. Everything else in the region stays in float.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from tvmtune.errors import TvmtuneError, UsageError, nearest

if TYPE_CHECKING:
    import tvm

Floats = npt.NDArray[np.float32]
START, STOP = "max_pool2d", "global_avg_pool2d"
"""Where VTA's tutorial has its region begin and end: behind the one, before the other."""
_FIRST = "conv2d"
"""Behind which it begins in a network without the usual start."""
_CHANNELWISE = {"relax.add", "relax.subtract", "relax.multiply", "relax.divide"}
LAYOUT = "NCHW"
_TRANSPOSED = "relax.nn.conv2d_transpose"
_KERNELS = {"relax.nn.conv2d": "OIHW", _TRANSPOSED: "IOHW"}
"""Convolutions, and the layouts of their kernels."""


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer; tensors go by the names of the graph's variables."""

    kind: Literal["convolution", "sum"]
    inputs: tuple[str, ...]
    output: str
    in_shapes: tuple[tuple[int, ...], ...]
    """(N, C, H, W) of each input."""
    out_shape: tuple[int, ...]
    low: float | None = None
    """What the activation cuts off; None for no bound."""
    high: float | None = None
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Top, left, bottom, right."""
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    up: tuple[int, int] = (1, 1)
    """How far apart the kernel meets rows and columns of the input, with zeros between them: the
    strides of a transposed convolution, which is a convolution of a kernel turned round."""
    constants: tuple[Any, ...] = ()
    """The weights' constant, and then what is applied to each channel: pairs of operator and
    constant."""
    covers: tuple[str, ...] = ()
    """The graph's variables that it stands for, the last of which is its output."""

    @property
    def kernel(self) -> tuple[int, ...]:
        """(O, I / groups, KH, KW)."""
        return tuple(int(d) for d in self.constants[0].ty.shape)

    def parameters(self) -> tuple[Floats, Floats]:
        """Weights (O, I / groups, KH, KW) and bias (O,), with all scales folded into them."""
        weights = _values(self.constants[0])
        bias = np.zeros(weights.shape[0])
        for op, constant in self.constants[1:]:
            value = np.broadcast_to(_values(constant).reshape(-1), bias.shape)
            if op == "relax.add":
                bias = bias + value
            elif op == "relax.subtract":
                bias = bias - value
            else:
                factor = value if op == "relax.multiply" else 1 / value
                bias, weights = bias * factor, weights * factor[:, None, None, None]
        return weights.astype(np.float32), bias.astype(np.float32)


@dataclass(frozen=True)
class Region:
    """Layers in program order, and what else there is between start and stop."""

    layers: tuple[Layer, ...]
    others: tuple[tuple[str, str], ...]
    """Variables that stay in float, and their operators."""


def find(
    graph: tvm.IRModule,
    start: str | None = None,
    stop: str | None = None,
    *,
    name: str = "",
    whole: bool = False,
) -> Region:
    """The layers behind the first operator called ``start`` and before the first called ``stop`` that
    follows.

    Operators go by TVM's names without ``nn.``; ``global_avg_pool2d`` stands for all of its forms.
    Without ``start`` or ``stop`` the usual ones; else the first convolution, and the first flattening
    or the network's end. ``whole``: all behind the first convolution and before the last pooling over
    the whole picture, if there is one.
    Raises :class:`UsageError` for one that the network does not have, :class:`TvmtuneError` if no
    layer lies between them.
    """
    bindings = [b for block in graph["main"].body.blocks for b in block.bindings]
    names = [operators(b.value) for b in bindings]
    if whole:
        begin = next((n for n, each in enumerate(names) if _FIRST in each), len(names))
        end = next((n for n in reversed(range(len(names))) if STOP in names[n]), None)
    else:
        begin = _place(names, start, (START, _FIRST), 0, "start-op")
        end = _place(names, stop, (STOP, "reshape", "flatten"), begin + 1, "stop-op")
    finder = _Finder(bindings[: len(bindings) if end is None else end], begin + 1, graph)
    layers = tuple(finder.layers())
    if not layers and whole:
        raise TvmtuneError(f"{name} has no convolution behind its first that int8 could compute.")
    if not layers:
        raise TvmtuneError(
            f"{name or 'the network'} has no convolution between {start or START} and {stop or STOP} "
            "that could be packed: choose others with --target-attr start-op= and stop-op=."
        )
    covered = {each for layer in layers for each in layer.covers}
    within = {str(b.var.name) for b in finder.bindings[finder.first :]} - covered
    others = tuple((name, operator) for name, operator in called(graph) if name in within)
    return Region(layers, others)


def called(graph: tvm.IRModule) -> list[tuple[str, str]]:
    """The graph's variables that are an operator's results, and the operators, in program order."""
    bindings = [b for block in graph["main"].body.blocks for b in block.bindings]
    return [(str(b.var.name), sorted(names)[0]) for b in bindings if (names := operators(b.value))]


def distinct(graph: tvm.IRModule) -> tvm.IRModule:
    """The graph with a name of its own for each variable: passes may leave two of one name, and layers
    and tensors go by names here."""
    from tvm import relax
    from tvm.relax.expr_functor import PyExprMutator, mutator

    main = graph["main"]
    names = [str(p.name) for p in main.params]
    names += [str(b.var.name) for block in main.body.blocks for b in block.bindings]
    if len(set(names)) == len(names):
        return graph

    @mutator
    class Renaming(PyExprMutator):
        def __init__(self, mod: Any) -> None:
            super().__init__(mod)
            self.taken = {str(p.name) for p in mod["main"].params}

        def visit_var_binding_(self, binding: Any) -> None:
            name, count = str(binding.var.name), 0
            while name in self.taken:
                count += 1
                name = f"{binding.var.name}_{count}"
            self.taken.add(name)
            value = self.visit_expr(binding.value)
            if isinstance(binding.var, relax.DataflowVar):
                new = self.builder_.emit(value, name)
            else:
                new = self.builder_.emit_output(value, name)
            self.set_var_remap(binding.var, new)

    renaming = Renaming(graph)
    function = renaming.visit_expr(main)
    renaming.builder_.update_func(graph.get_global_var("main"), function)
    return renaming.builder_.get()


def operators(value: Any) -> set[str]:
    """The names that a binding's operator goes by; none where it is no call of one."""
    op = getattr(getattr(value, "op", None), "name", "")
    if not op.startswith("relax."):
        return set()
    short = op.removeprefix("relax.").removeprefix("nn.")
    found = {short}
    if short in ("mean", "adaptive_avg_pool2d", "avg_pool2d"):
        shape, before = _shape(value), _shape(value.args[0])
        whole = len(before) == 4 and int(np.prod(shape)) == before[0] * before[1]
        found |= {STOP} if whole else set()
    return found


def _place(
    names: list[set[str]], wanted: str | None, usual: tuple[str, ...], first: int, attribute: str
) -> Any:
    for each in usual if wanted is None else (wanted,):
        for place in range(first, len(names)):
            if each in names[place]:
                return place
    if wanted is None and attribute == "stop-op":
        return None
    known = sorted(set().union(*names[first:])) if names[first:] else []
    where = "" if first == 0 else " behind its start"
    raise UsageError(
        f"the network has no operator '{wanted or usual[0]}' for {attribute}{where}."
        f"{nearest(wanted or usual[0], known)}"
    )


class _Finder:
    """Follows what is done to a layer's output by its only user."""

    def __init__(self, bindings: list[Any], first: int, graph: tvm.IRModule) -> None:
        self.bindings, self.first = bindings, first
        self.users = _users(graph)
        self.by_name = {str(b.var.name): b for b in bindings[first:]}

    def layers(self) -> Iterator[Layer]:
        taken: set[str] = set()
        for binding in self.bindings[self.first :]:
            name, value = str(binding.var.name), binding.value
            if name in taken:
                continue
            op = getattr(getattr(value, "op", None), "name", "")
            if op in _KERNELS and _is_plain(value):
                layer = self.convolution(binding)
            elif op == "relax.add" and _is_sum(value):
                layer = self.sum(binding)
            else:
                continue
            taken.update(layer.covers)
            yield layer

    def convolution(self, binding: Any) -> Layer:
        call = binding.value
        transposed = call.op.name == _TRANSPOSED
        constants: list[Any] = [_turned(call) if transposed else call.args[1]]
        covers, name = [str(binding.var.name)], str(binding.var.name)
        channels = _shape(call)[1]
        while (follower := self.only_user(name)) is not None:
            op, args = follower.value.op.name, follower.value.args
            if op not in _CHANNELWISE or len(args) != 2:
                break
            constant = next((a for a in args if is_constant(a)), None)
            if constant is None or not _by_channel(constant, channels):
                break
            if op in ("relax.subtract", "relax.divide") and is_constant(args[0]):
                break
            constants.append((op, constant))
            name = str(follower.var.name)
            covers.append(name)
        low, high, name = self.activation(name, covers)
        attrs = call.attrs
        return Layer(
            "convolution",
            (str(call.args[0].name),),
            name,
            (_shape(call.args[0]),),
            _shape(call),
            low,
            high,
            strides=(1, 1) if transposed else _pair(attrs.strides),
            padding=_around(call) if transposed else tuple(int(p) for p in attrs.padding),  # type: ignore[arg-type]
            dilation=_pair(attrs.dilation),
            groups=int(attrs.groups),
            up=_pair(attrs.strides) if transposed else (1, 1),
            constants=tuple(constants),
            covers=tuple(covers),
        )

    def sum(self, binding: Any) -> Layer:
        covers, name = [str(binding.var.name)], str(binding.var.name)
        low, high, name = self.activation(name, covers)
        args = binding.value.args
        return Layer(
            "sum",
            tuple(str(a.name) for a in args),
            name,
            tuple(_shape(a) for a in args),
            _shape(binding.value),
            low,
            high,
            covers=tuple(covers),
        )

    def activation(self, name: str, covers: list[str]) -> tuple[float | None, float | None, str]:
        """Bounds that cut ``name``, and the variable that they lead to; maximum and minimum follow one
        another where a file clips by them."""
        low: float | None = None
        high: float | None = None
        while (follower := self.only_user(name)) is not None:
            found = _bounds(follower.value)
            if found is None:
                break
            low = _tighter(max, low, found[0])
            high = _tighter(min, high, found[1])
            name = str(follower.var.name)
            covers.append(name)
        return low, high, name

    def only_user(self, name: str) -> Any:
        """The binding that alone uses a variable, if it lies in the region."""
        users = self.users.get(name, [])
        if len(users) != 1 or users[0] not in self.by_name:
            return None
        found = self.by_name[users[0]]
        return found if hasattr(found.value, "op") and hasattr(found.value.op, "name") else None


def _bounds(call: Any) -> tuple[float | None, float | None] | None:
    """What an operator cuts off below and above; None if it does not just cut."""
    op, args = call.op.name, call.args
    if op == "relax.nn.relu":
        return 0.0, None
    if op == "relax.nn.relu6":
        return 0.0, 6.0
    if op == "relax.clip":
        return float(args[1].value), float(args[2].value)
    if op in ("relax.maximum", "relax.minimum"):
        for each in args:
            if is_constant(each) and int(np.prod(_shape(each))) == 1:
                bound = float(_values(each).reshape(-1)[0])
                return (bound, None) if op == "relax.maximum" else (None, bound)
    return None


def _tighter(
    choose: Callable[[float, float], float], one: float | None, other: float | None
) -> float | None:
    if one is None or other is None:
        return one if other is None else other
    return choose(one, other)


def reads(graph: tvm.IRModule) -> dict[str, set[str]]:
    """The variables that each binding reads, in program order; the network's outputs at last, under an
    empty name."""
    from tvm import relax

    body = graph["main"].body
    found = {
        str(binding.var.name): {str(v.name) for v in relax.analysis.free_vars(binding.value)}
        for block in body.blocks
        for binding in block.bindings
    }
    return found | {"": {str(v.name) for v in relax.analysis.free_vars(body.body)}}


def _users(graph: tvm.IRModule) -> Mapping[str, list[str]]:
    """The variables that are computed from each; an empty name for the network's outputs."""
    found: dict[str, list[str]] = {}
    for name, used in reads(graph).items():
        for each in used:
            found.setdefault(each, []).append(name)
    return found


def is_constant(value: Any) -> bool:
    import tvm

    return isinstance(value, tvm.ir.GenericConst)


def _values(constant: Any) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = constant.value.numpy().astype(np.float64)
    return found


def _is_plain(call: Any) -> bool:
    """Whether a convolution is one that layers can stand for."""
    attrs = call.attrs
    return (
        is_constant(call.args[1])
        and attrs.data_layout == LAYOUT
        and attrs.kernel_layout == _KERNELS[call.op.name]
        and call.args[1].ty.dtype == "float32"
        and (call.op.name != _TRANSPOSED or min(_around(call)) >= 0)
    )


def _turned(call: Any) -> Any:
    """The kernel (I, O / groups, KH, KW) of a transposed convolution as that of a convolution."""
    from tvm import relax

    weights, groups = call.args[1].value.numpy(), int(call.attrs.groups)
    ins, outs, *size = weights.shape
    parts = weights.reshape(groups, ins // groups, outs, *size).swapaxes(1, 2)
    turned = parts.reshape(groups * outs, ins // groups, *size)[:, :, ::-1, ::-1]
    return relax.const(np.ascontiguousarray(turned))


def _around(call: Any) -> tuple[int, int, int, int]:
    """The padding of the convolution that a transposed one is."""
    top, left, bottom, right = (int(p) for p in call.attrs.padding)
    more_h, more_w = _pair(call.attrs.output_padding)
    wide_h, wide_w = _pair(call.attrs.dilation)
    _, _, kernel_h, kernel_w = _shape(call.args[1])
    reach_h, reach_w = (kernel_h - 1) * wide_h, (kernel_w - 1) * wide_w
    return reach_h - top, reach_w - left, reach_h - bottom + more_h, reach_w - right + more_w


def _pair(values: Any) -> tuple[int, int]:
    one, other = (int(v) for v in values)
    return one, other


def _is_sum(call: Any) -> bool:
    one, other = call.args
    if is_constant(one) or is_constant(other):
        return False
    floats = {str(one.ty.dtype), str(other.ty.dtype)} == {"float32"}
    return floats and len(_shape(one)) == 4 and _shape(one) == _shape(other)


def _by_channel(constant: Any, channels: int) -> bool:
    """Whether a constant has one value for each channel of NCHW, or one for all."""
    shape = tuple(int(d) for d in constant.ty.shape)
    size = int(np.prod(shape))
    return size == 1 or (size == channels and len(shape) >= 3 and shape[-3] == channels)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(int(d) for d in value.ty.shape)
