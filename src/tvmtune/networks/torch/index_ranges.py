"""Ranges of integer inputs of PyTorch programs: indices of tables, such as token ids, and of rows."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

if TYPE_CHECKING:
    from torch.export import ExportedProgram

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
    "to",
    "transpose",
    "unbind",
    "unflatten",
    "unsqueeze",
    "view",
}
"""Operators whose results have values of their first argument."""

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
    origin = {
        node: name
        for node, name in zip(placeholders, names, strict=True)
        if node.meta["val"].dtype in _INTEGERS
    }
    ranges: dict[str, tuple[int, int]] = {}
    for node in program.graph.nodes:
        if node.op != "call_function" or not node.args:
            continue
        kind = _kind(node)
        if kind in _PASSES_ON or node.target is operator.getitem:
            first = node.args[0]
            if isinstance(first, fx.Node) and first in origin:
                origin[node] = origin[first]
        for index, extent in _lookups(kind, node.args):
            if isinstance(index, fx.Node) and index in origin:
                last = min(extent - 1, ranges.get(origin[index], (0, extent))[1])
                ranges[origin[index]] = (0, last)
    return ranges


def _kind(node: fx.Node) -> str:
    """``index_put`` for ``aten.index_put_.default``."""
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else str(schema.name).partition("::")[2].rstrip("_")


def _lookups(kind: str, args: Sequence[Any]) -> Iterator[tuple[Any, int]]:
    """Indices, and the extent of what each indexes."""
    if kind in ("embedding", "embedding_bag"):
        yield args[1], _extents(args[0])[0]
    elif kind == "one_hot" and len(args) > 1 and args[1] > 0:
        yield args[0], args[1]
    elif kind in _ALONG_AN_AXIS:
        yield args[2], _extents(args[0])[args[1]]
    elif kind in ("index", "index_put"):
        yield from zip(args[1], _extents(args[0]), strict=False)


def _extents(tensor: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in tensor.meta["val"].shape) or (1,)
