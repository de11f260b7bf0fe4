"""Concatenations whose first parts are those of an earlier one read its result.

A layer of a DenseNet concatenates the outputs of all layers before it. Each element of such a kernel
would search dozens of parts for its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tvmtune.passes.bindings import bindings, operator_of, rebind

if TYPE_CHECKING:
    import tvm


def share(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` with such concatenations of one result and the rest; itself if there are none."""
    from tvm import relax

    results: dict[tuple[int, tuple[Any, ...]], Any] = {}
    """Of concatenations, by their axes and parts."""
    shared: dict[Any, Callable[[Any], Any]] = {}
    tuples = {b.var: b.value for b in bindings(mod) if isinstance(b.value, relax.Tuple)}
    for binding in bindings(mod):
        if operator_of(binding.value) != "concat" or binding.value.attrs.axis is None:
            continue
        whole = tuples.get(binding.value.args[0], binding.value.args[0])
        if not isinstance(whole, relax.Tuple):
            continue
        axis, parts = int(binding.value.attrs.axis), tuple(whole.fields)
        for count in range(len(parts) - 1, 1, -1):
            if (earlier := results.get((axis, parts[:count]))) is not None:
                shared[binding.var] = partial(_concat, [earlier, *parts[count:]], axis)
                break
        results.setdefault((axis, parts), binding.var)
    return rebind(mod, shared)


def _concat(parts: Sequence[Any], axis: int, mutator: Any) -> Any:
    from tvm import relax

    return relax.op.concat([mutator.visit_expr(each) for each in parts], axis)
