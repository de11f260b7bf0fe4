"""Ranges of integer inputs of PyTorch programs: indices of tables, such as token ids, and of rows."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

if TYPE_CHECKING:
    from torch.export import ExportedProgram

Origin = dict[str, int]
"""The inputs whose values something has, and what is added to them at most."""

_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
_PASSES_ON = {
    "_to_copy",
    "alias",
    "chunk",
    "clone",
    "contiguous",
    "detach",
    "expand",
    "expand_as",
    "flatten",
    "gather",
    "index",
    "index_select",
    "permute",
    "repeat",
    "reshape",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "t",
    "take_along_dim",
    "to",
    "transpose",
    "unbind",
    "unflatten",
    "unsqueeze",
    "view",
}
"""Operators whose results have values of their first argument."""

_JOINS = {"cat", "concat", "maximum", "minimum", "stack", "where"}
"""Operators whose results have values of several arguments."""

_ALONG_AN_AXIS = {
    "gather",
    "index_add",
    "index_copy",
    "index_fill",
    "index_select",
    "scatter",
    "scatter_add",
    "scatter_reduce",
}
"""Operators of a tensor, one of its axes, and indices along it."""


def index_ranges(program: ExportedProgram, names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """The lowest and highest index, by input, that is valid for everything it indexes.

    ``names`` are those of the tensors that the program takes, in order; its shapes are static. Inputs
    that index nothing are left out.
    """
    taken = set(program.graph_signature.user_inputs)
    placeholders = [
        node
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in taken and hasattr(node.meta["val"], "dtype")
    ]
    origins: dict[fx.Node, Origin] = {
        node: {name: 0}
        for node, name in zip(placeholders, names, strict=True)
        if node.meta["val"].dtype in _INTEGERS
    }
    ends: dict[str, int] = {}
    if origins:
        _follow(program.graph_module, origins, ends)
    return {name: (0, end - 1) for name, end in ends.items() if end > 0}


def _follow(
    module: fx.GraphModule, origins: dict[fx.Node, Origin], ends: dict[str, int]
) -> list[Origin]:
    """Lower in ``ends`` the extents that the inputs index, where ``origins`` has the inputs whose
    values a node has; returns those of the module's results."""

    def origin(*arguments: Any, more: int = 0) -> Origin:
        found: Origin = {}
        for node in arguments:
            for name, added in origins.get(node, {}).items() if isinstance(node, fx.Node) else ():
                found[name] = max(added + more, found.get(name, 0))
        return found

    results: list[Origin] = []
    for node in module.graph.nodes:
        arguments: Sequence[Any] = node.args
        if node.op == "output":
            results = [origin(each) for each in arguments[0]]
        if node.op != "call_function" or not node.args:
            continue
        kind, first = _kind(node), arguments[0]
        if _is_wrapped(node):
            # What was exported under no_grad() or autocast() is a graph of its own.
            for inner in _follow_wrapped(module, node, origin, ends):
                origins[node] = origins.get(node, {}) | inner
        elif kind in _PASSES_ON or node.target is operator.getitem:
            origins[node] = origin(first)
        elif kind in _JOINS:
            origins[node] = origin(*(first if isinstance(first, (list, tuple)) else node.args))
        elif kind == "copy":
            origins[node] = origin(arguments[1])
        elif kind == "add" and any(map(_is_count, arguments)):
            # Positions of several tokens, from that of the first.
            count = next(each for each in arguments if _is_count(each))
            origins[node] = origin(*arguments, more=int(count.args[0]) - 1)
        for index, extent in _lookups(kind, node.args):
            for name, added in origin(index).items():
                ends[name] = min(extent - added, ends.get(name, extent))
    return results


def _is_count(value: Any) -> bool:
    """Whether it is ``arange(n)``."""
    if not isinstance(value, fx.Node) or _kind(value) != "arange":
        return False
    return len(value.args) == 1 and isinstance(value.args[0], int)


def _is_wrapped(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.HigherOrderOperator)


def _follow_wrapped(
    module: fx.GraphModule, node: fx.Node, origin: Any, ends: dict[str, int]
) -> list[Origin]:
    """As :func:`_follow`, for the graph that an operator gets before its operands."""
    arguments: Sequence[Any] = node.args
    for place, argument in enumerate(arguments):
        named = isinstance(argument, fx.Node) and argument.op == "get_attr"
        inner = getattr(module, str(argument.target), None) if named else None
        if isinstance(inner, fx.GraphModule):
            parameters = [each for each in inner.graph.nodes if each.op == "placeholder"]
            operands = arguments[place + 1 :]
            return _follow(
                inner,
                {p: origin(o) for p, o in zip(parameters, operands, strict=False)},
                ends,
            )
    return []


def _kind(node: fx.Node) -> str:
    """``index_put`` for ``aten.index_put_.default``."""
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else str(schema.name).partition("::")[2].rstrip("_")


def _lookups(kind: str, args: Sequence[Any]) -> Iterator[tuple[Any, int]]:
    """Indices, and the extent of what each indexes."""
    if kind == "embedding":
        yield args[1], _extents(args[0])[0]
    elif "embedding_bag" in kind:
        yield args[1], _extents(args[0])[0]
        yield args[2], 1  # where bags begin: the first at 0, the others not before that
    elif kind == "one_hot" and len(args) > 1 and args[1] > 0:
        yield args[0], args[1]
    elif kind in _ALONG_AN_AXIS:
        yield args[2], _extents(args[0])[args[1]]
    elif kind == "take":
        yield args[1], math.prod(_extents(args[0]))
    elif kind == "take_along_dim":
        axis = args[2] if len(args) > 2 else None
        extents = _extents(args[0])
        yield args[1], math.prod(extents) if axis is None else extents[axis]
    elif kind in ("index", "index_put"):
        yield from zip(args[1], _extents(args[0]), strict=False)


def _extents(tensor: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in tensor.meta["val"].shape) or (1,)
