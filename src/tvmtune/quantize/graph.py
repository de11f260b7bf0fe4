"""Queries of a Relax graph by the names of its variables, and unique names for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.passes.bindings import bindings

if TYPE_CHECKING:
    import tvm

GLOBAL_POOL = "global_avg_pool2d"
"""One name for all the forms in which a graph may average over the whole image."""


def shape_of(value: Any) -> tuple[int, ...]:
    """The static shape of a Relax expression."""
    return tuple(int(d) for d in value.ty.shape)


def operator_names(value: Any) -> set[str]:
    """The names that a binding's operator goes by; empty for anything but an operator call.

    Names are TVM's without ``nn.``, and :data:`GLOBAL_POOL` for a mean over the whole image.
    """
    op = getattr(getattr(value, "op", None), "name", "")
    if not op.startswith("relax."):
        return set()
    short = op.removeprefix("relax.").removeprefix("nn.")
    names = {short}
    if short in ("mean", "adaptive_avg_pool2d", "avg_pool2d"):
        shape, before = shape_of(value), shape_of(value.args[0])
        if len(before) == 4 and int(np.prod(shape)) == before[0] * before[1]:
            names.add(GLOBAL_POOL)
    return names


def operator_calls(graph: tvm.IRModule) -> list[tuple[str, str]]:
    """Variables that hold results of operators, and these operators, in program order."""
    return [
        (str(b.var.name), sorted(names)[0])
        for b in bindings(graph)
        if (names := operator_names(b.value))
    ]


def variables_read(graph: tvm.IRModule) -> dict[str, set[str]]:
    """The variables that each binding reads, in program order. The last entry, under the empty name,
    holds the network's outputs."""
    from tvm import relax

    body = graph["main"].body
    read = {
        str(binding.var.name): {str(v.name) for v in relax.analysis.free_vars(binding.value)}
        for block in body.blocks
        for binding in block.bindings
    }
    return read | {"": {str(v.name) for v in relax.analysis.free_vars(body.body)}}


def variable_users(graph: tvm.IRModule) -> Mapping[str, list[str]]:
    """The variables computed from each variable; an empty name stands for the network's outputs."""
    users: dict[str, list[str]] = {}
    for name, read in variables_read(graph).items():
        for each in read:
            users.setdefault(each, []).append(name)
    return users


def with_unique_names(graph: tvm.IRModule) -> tvm.IRModule:
    """The graph with a unique name for each variable.

    Passes may leave two variables of one name, and quantization identifies tensors by name.
    """
    from tvm import relax
    from tvm.relax.expr_functor import PyExprMutator, mutator

    main = graph["main"]
    names = [str(p.name) for p in main.params]
    names += [str(b.var.name) for block in main.body.blocks for b in block.bindings]
    if len(set(names)) == len(names):
        return graph

    @mutator
    class Rename(PyExprMutator):
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

    renaming = Rename(graph)
    function = renaming.visit_expr(main)
    renaming.builder_.update_func(graph.get_global_var("main"), function)
    return renaming.builder_.get()
