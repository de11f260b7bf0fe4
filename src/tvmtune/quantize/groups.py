"""Groups of layers that run one after another with no float operator between them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tvmtune.quantize.graph import variables_read
from tvmtune.quantize.layers import Layer

if TYPE_CHECKING:
    import tvm

EmitGroup = Callable[[Any, "Group", dict[str, Any]], dict[str, Any]]
"""``(block_builder, group, inputs) -> outputs``: float variables by their names."""


@dataclass(eq=False)
class Group:
    """Layers in program order; tensors go by the names of the graph's variables."""

    layers: list[Layer] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    """Tensors that the group reads and does not compute."""
    outputs: list[str] = field(default_factory=list)
    """Tensors of the group that something else reads."""


def partition(graph: tvm.IRModule, layers: Collection[Layer]) -> list[Group]:
    """The layers in groups. A new one begins where a layer depends on the current group through a
    float operator."""
    by_output = {layer.output: layer for layer in layers}
    covered = {name for layer in layers for name in layer.covers}
    groups = [Group()]
    dependent: set[str] = set()  # float values that depend on the current group
    read_by = variables_read(graph)
    for name, read in read_by.items():
        if name in by_output:
            layer = by_output[name]
            if dependent & set(layer.inputs):
                groups.append(Group())
                dependent = set()
            groups[-1].layers.append(layer)
        elif name not in covered and read & (dependent | _computed(groups[-1])):
            dependent.add(name)
    for group in groups:
        inside = _covered(group)
        read_elsewhere = set().union(*(read for n, read in read_by.items() if n not in inside))
        inputs = dict.fromkeys(name for layer in group.layers for name in layer.inputs)
        group.inputs = [name for name in inputs if name not in _computed(group)]
        group.outputs = [each.output for each in group.layers if each.output in read_elsewhere]
    return groups


def replace(graph: tvm.IRModule, groups: Sequence[Group], emit: EmitGroup) -> tvm.IRModule:
    """The graph with what ``emit`` makes of each group in place of its layers."""
    from tvm import relax
    from tvm.relax.expr_functor import PyExprMutator, mutator

    inside = {name: group for group in groups for name in _covered(group)}
    last = {group.layers[-1].output: group for group in groups}
    deferred = _deferred(graph, groups)

    @mutator
    class ReplaceGroups(PyExprMutator):
        def __init__(self, mod: Any) -> None:
            super().__init__(mod)
            self.variables: dict[str, Any] = {str(p.name): p for p in mod["main"].params}
            self.waiting: list[Any] = []

        def visit_var_binding_(self, binding: Any) -> None:
            name = str(binding.var.name)
            if name not in inside and name not in deferred:
                super().visit_var_binding_(binding)
                self.variables[name] = self.visit_expr(binding.var)
                return
            self.waiting.append(binding)
            if name in last:
                self.finish(last[name])

        def finish(self, group: Group) -> None:
            outputs = emit(self.builder_, group, {n: self.variables[n] for n in group.inputs})
            waiting, self.waiting = self.waiting, []
            for binding in waiting:
                name = str(binding.var.name)
                if name in outputs:
                    new = outputs[name]
                    if not isinstance(binding.var, relax.DataflowVar):
                        new = self.builder_.emit_output(new)
                    self.set_var_remap(binding.var, new)
                    self.variables[name] = new
                elif name not in inside:
                    super().visit_var_binding_(binding)
                    self.variables[name] = self.visit_expr(binding.var)

    replacing = ReplaceGroups(graph)
    function = replacing.visit_expr(graph["main"])
    replacing.builder_.update_func(graph.get_global_var("main"), function)
    return relax.transform.DeadCodeElimination()(replacing.builder_.get())


def _computed(group: Group) -> set[str]:
    return {layer.output for layer in group.layers}


def _covered(group: Group) -> set[str]:
    return {name for layer in group.layers for name in layer.covers}


def _deferred(graph: tvm.IRModule, groups: Sequence[Group]) -> set[str]:
    """Float values that depend on a group and stand before its last layer: they have to wait for the
    whole group."""
    deferred: set[str] = set()
    for group in groups:
        computed, inside = _computed(group), _covered(group)
        end = group.layers[-1].output
        dependent: set[str] = set()
        for name, read in variables_read(graph).items():
            if name == end:
                break
            if name not in inside and read & (computed | dependent):
                dependent.add(name)
        deferred |= dependent
    return deferred
