"""Concatenations without empty parts; those whose first parts are those of an earlier one read its
result.

Rotary positions of all columns leave none to pass through, for which TVM would compile a loop that it
cannot. A layer of a DenseNet concatenates the outputs of all layers before it: each element of such a
kernel would search dozens of parts for its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tvmtune.passes.bindings import bindings, operator_of, rebind
from tvmtune.static_shapes import static_shape

if TYPE_CHECKING:
    import tvm


def drop_empty(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` with concatenations of the parts that have elements; itself if all have."""
    made: dict[Any, Callable[[Any], Any]] = {}
    for variable, axis, parts in _concatenations(mod):
        full = [each for each in parts if 0 not in (static_shape(each) or ())]
        if 0 < len(full) < len(parts):
            made[variable] = partial(_concat, full, axis)
    return rebind(mod, made)


def share(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` with such concatenations of one result and the rest; itself if there are none."""
    results: dict[tuple[int, tuple[Any, ...]], Any] = {}
    """Of concatenations, by their axes and parts."""
    shared: dict[Any, Callable[[Any], Any]] = {}
    for variable, axis, parts in _concatenations(mod):
        for count in range(len(parts) - 1, 1, -1):
            if (earlier := results.get((axis, parts[:count]))) is not None:
                shared[variable] = partial(_concat, [earlier, *parts[count:]], axis)
                break
        results.setdefault((axis, parts), variable)
    return rebind(mod, shared)


def _concatenations(mod: tvm.IRModule) -> Iterator[tuple[Any, int, tuple[Any, ...]]]:
    """Their variables, axes and parts, in program order."""
    from tvm import relax

    tuples = {b.var: b.value for b in bindings(mod) if isinstance(b.value, relax.Tuple)}
    for binding in bindings(mod):
        if operator_of(binding.value) != "concat" or binding.value.attrs.axis is None:
            continue
        whole = tuples.get(binding.value.args[0], binding.value.args[0])
        if isinstance(whole, relax.Tuple):
            yield binding.var, int(binding.value.attrs.axis), tuple(whole.fields)


def _concat(parts: Sequence[Any], axis: int, mutator: Any) -> Any:
    from tvm import relax

    visited = [mutator.visit_expr(each) for each in parts]
    return relax.op.concat(visited, axis) if len(visited) > 1 else visited[0]
