"""Layers that can run one after another with nothing in between, and the graph that calls them so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tvmtune.quantise.region import Layer, reads

if TYPE_CHECKING:
    import tvm

Call = Callable[[Any, "Group", dict[str, Any]], dict[str, Any]]
"""``(block_builder, group, variables) -> variables``: float inputs and outputs by their names."""


@dataclass(eq=False)
class Group:
    """Layers in program order; tensors go by the names of the graph's variables."""

    layers: list[Layer] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    """What comes from elsewhere."""
    outputs: list[str] = field(default_factory=list)
    """What is read elsewhere."""


def cut(graph: tvm.IRModule, layers: Collection[Layer]) -> list[Group]:
    """A new group begins where a layer needs what the float network makes of the group before."""
    by_output = {layer.output: layer for layer in layers}
    covered = {name for layer in layers for name in layer.covers}
    groups = [Group()]
    tainted: set[str] = set()
    readers = reads(graph)
    for name, used in readers.items():
        if name in by_output:
            layer = by_output[name]
            if tainted & set(layer.inputs):
                groups.append(Group())
                tainted = set()
            groups[-1].layers.append(layer)
        elif name not in covered and used & (tainted | _made(groups[-1])):
            tainted.add(name)
    for group in groups:
        inside = {name for layer in group.layers for name in layer.covers}
        outside = set().union(*(used for name, used in readers.items() if name not in inside))
        read = dict.fromkeys(name for layer in group.layers for name in layer.inputs)
        group.inputs = [name for name in read if name not in _made(group)]
        group.outputs = [layer.output for layer in group.layers if layer.output in outside]
    return groups


def _made(group: Group) -> set[str]:
    return {layer.output for layer in group.layers}


def replace(graph: tvm.IRModule, groups: Sequence[Group], call: Call) -> tvm.IRModule:
    """The graph in which ``call`` emits each group in place of its layers."""
    from tvm import relax
    from tvm.relax.expr_functor import PyExprMutator, mutator

    inside = {n: group for group in groups for layer in group.layers for n in layer.covers}
    last = {group.layers[-1].output: group for group in groups}
    before = _early(graph, groups)

    @mutator
    class Replacing(PyExprMutator):
        def __init__(self, mod: Any) -> None:
            super().__init__(mod)
            self.variables: dict[str, Any] = {str(p.name): p for p in mod["main"].params}
            self.late: list[Any] = []

        def visit_var_binding_(self, binding: Any) -> None:
            name = str(binding.var.name)
            if name not in inside and name not in before:
                super().visit_var_binding_(binding)
                self.variables[name] = self.visit_expr(binding.var)
                return
            self.late.append(binding)
            if name in last:
                self.finish(last[name])

        def finish(self, group: Group) -> None:
            given = {name: self.variables[name] for name in group.inputs}
            made = call(self.builder_, group, given)
            waiting, self.late = self.late, []
            for binding in waiting:
                name = str(binding.var.name)
                if name in made:
                    new = made[name]
                    if not isinstance(binding.var, relax.DataflowVar):
                        new = self.builder_.emit_output(new)
                    self.set_var_remap(binding.var, new)
                    self.variables[name] = new
                elif name not in inside:
                    super().visit_var_binding_(binding)
                    self.variables[name] = self.visit_expr(binding.var)

    replacing = Replacing(graph)
    function = replacing.visit_expr(graph["main"])
    replacing.builder_.update_func(graph.get_global_var("main"), function)
    return relax.transform.DeadCodeElimination()(replacing.builder_.get())


def _early(graph: tvm.IRModule, groups: Sequence[Group]) -> set[str]:
    """What the float network makes of a group's outputs before the last of its layers: it has to wait
    for them."""
    found: set[str] = set()
    for group in groups:
        made = _made(group)
        inside = {name for layer in group.layers for name in layer.covers}
        end = group.layers[-1].output
        tainted: set[str] = set()
        for name, used in reads(graph).items():
            if name == end:
                break
            if name not in inside and used & (made | tainted):
                tainted.add(name)
        found |= tainted
    return found
