"""Concatenations whose first parts are those of an earlier one read its result.

A layer of a DenseNet concatenates the outputs of all layers before it. Each element of such a kernel
would search dozens of parts for its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmtune.passes.bindings import bindings, emit_as, operator_of

if TYPE_CHECKING:
    import tvm


def share(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` with such concatenations of one result and the rest; itself if there are none."""
    from tvm import relax

    results: dict[tuple[int, tuple[Any, ...]], Any] = {}
    """Of concatenations, by their axes and parts."""
    shared: dict[Any, tuple[Any, list[Any], int]] = {}
    """By the variables that hold their results: the earlier result, the rest, and the axis."""
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
                shared[binding.var] = (earlier, list(parts[count:]), axis)
                break
        results.setdefault((axis, parts), binding.var)
    if not shared:
        return mod

    @relax.expr_functor.mutator
    class Share(relax.PyExprMutator):
        def visit_var_binding_(self, binding: Any) -> None:
            found = shared.get(binding.var)
            if found is None:
                super().visit_var_binding_(binding)
                return
            earlier, rest, axis = found
            parts = [self.visit_expr(each) for each in (earlier, *rest)]
            emit_as(self, binding, relax.op.concat(parts, axis))

    sharing = Share(mod)
    sharing.builder_.update_func(mod.get_global_var("main"), sharing.visit_expr(mod["main"]))
    shared.clear()  # TVM keeps mutator classes forever, with everything their closures hold
    return relax.transform.DeadCodeElimination()(sharing.builder_.get())
