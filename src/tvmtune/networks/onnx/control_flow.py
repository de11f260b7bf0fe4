"""Branches and loops of ONNX models that do not depend on the data: taken, and unrolled.

Exporters emit ``If`` where a program tested a shape, and ``Loop`` for the loops of scripted programs
and for the sums over bags of embeddings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from tvmtune.networks.onnx.fold import constant_result, fold, small_constants
from tvmtune.networks.onnx.sequences import take_apart

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_NODES = 20_000
"""Nodes of an unrolled loop, at most."""


def resolve(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` without those branches and loops and the sequences that they fill, and folded.

    The inputs must have static shapes. The model itself is not changed, and returned if there is
    nothing to do.
    """
    while (result := take_apart(_unroll(_decide_branches(fold(model))))) is not model:
        model = result
    return model


def _decide_branches(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` with the branch taken in place of each If with a constant condition. The model
    itself is not changed."""
    while True:
        conditions = {
            tensor.name: bool(numpy_helper.to_array(tensor).reshape(-1)[0])
            for tensor in model.graph.initializer
            if tensor.data_type == TensorProto.BOOL and math.prod(tensor.dims) == 1
        }
        if not any(_decided(node, conditions) for node in model.graph.node):
            return model
        result = onnx.ModelProto()
        result.CopyFrom(model)
        del result.graph.node[:]
        for node in model.graph.node:
            if not _decided(node, conditions):
                result.graph.node.append(node)
                continue
            name = "then_branch" if conditions[node.input[0]] else "else_branch"
            branch = next(a.g for a in node.attribute if a.name == name)
            result.graph.initializer.extend(branch.initializer)
            result.graph.node.extend(branch.node)
            for inner, outer in zip(branch.output, node.output, strict=True):
                result.graph.node.append(helper.make_node("Identity", [inner.name], [outer]))
        model = fold(result)  # what was inside may be constant, too


def _decided(node: onnx.NodeProto, conditions: Mapping[str, bool]) -> bool:
    return node.op_type == "If" and node.input[0] in conditions


def _unroll(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model``, which is folded, with copies of the body in place of each Loop whose iterations
    can be counted. The model itself is not changed, and returned if there is nothing to unroll."""
    if not any(node.op_type == "Loop" for node in model.graph.node):
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    known = small_constants(model)
    del result.graph.node[:]
    unrolled = False
    for node in model.graph.node:
        copies = _Unrolled(node, known, model) if node.op_type == "Loop" else None
        if copies is None or not copies.complete:
            result.graph.node.append(node)
            continue
        unrolled = True
        result.graph.node.extend(copies.nodes)
        result.graph.initializer.extend(copies.initializers)
    return result if unrolled else model


class _Unrolled:
    """The copies of a loop's body, one after the other."""

    def __init__(
        self, loop: onnx.NodeProto, known: Mapping[str, np.ndarray], model: onnx.ModelProto
    ) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.complete = False
        """Whether the last iteration was found."""
        self._body = next(a.g for a in loop.attribute if a.name == "body")
        self._opsets = model.opset_import
        self._known = dict(known)
        self._prefix = f"{loop.output[0]}/"
        count, condition, *carried = (*loop.input, "", "")[: max(2, len(loop.input))]
        self._unroll(loop, count, condition, carried)

    def _unroll(
        self, loop: onnx.NodeProto, count: str, condition: str, carried: Sequence[str]
    ) -> None:
        most = self._value(count) if count else math.inf
        goes_on = self._value(condition) if condition else True
        collected: list[list[str]] = [[] for _ in self._body.output[1 + len(carried) :]]
        iteration = 0
        while most is not None and goes_on is not None:
            if iteration >= most or not goes_on:
                break
            if (iteration + 1) * max(1, len(self._body.node)) > MOST_NODES:
                return
            condition, *results = self._iterate(iteration, bool(goes_on), carried)
            carried = results[: len(carried)]
            for values, result in zip(collected, results[len(carried) :], strict=True):
                values.append(result)
            goes_on = self._value(condition)
            iteration += 1
        else:
            return
        if not all(collected):
            return  # the shape of an empty result is not known
        finals = [*carried, *(self._stacked(values) for values in collected)]
        for value, output in zip(finals, loop.output, strict=True):
            if output:
                self._add(helper.make_node("Identity", [value], [output]))
        self.complete = True

    def _iterate(self, number: int, condition: bool, carried: Sequence[str]) -> list[str]:
        """Add a copy of the body; returns the names of its results."""
        prefix = f"{self._prefix}{number}/"
        iteration, again, *states = (info.name for info in self._body.input)
        names = dict(zip(states, carried, strict=True))
        for name, value in ((iteration, np.int64(number)), (again, np.bool_(condition))):
            names[name] = prefix + name
            self._constant(names[name], np.asarray(value))
        for tensor in self._body.initializer:
            names[tensor.name] = prefix + tensor.name
            self._constant(names[tensor.name], numpy_helper.to_array(tensor))
        for node in self._body.node:
            names.update((output, prefix + output) for output in node.output if output)
        for node in self._body.node:
            self._add(_renamed(node, names, prefix))
        return [names.get(info.name, info.name) for info in self._body.output]

    def _stacked(self, values: Sequence[str]) -> str:
        """Of one value per iteration, along a new first axis."""
        name = f"{values[0]}/all"
        self._constant(f"{name}/axis", np.array([0]))
        parts = [f"{value}/part" for value in values]
        for value, part in zip(values, parts, strict=True):
            self._add(helper.make_node("Unsqueeze", [value, f"{name}/axis"], [part]))
        self._add(helper.make_node("Concat", parts, [name], axis=0))
        return name

    def _add(self, node: onnx.NodeProto) -> None:
        """The node, or its result if that is constant."""
        value = constant_result(node, self._known, self._opsets)
        if value is None:
            self.nodes.append(node)
        else:
            self._constant(node.output[0], value)

    def _constant(self, name: str, value: np.ndarray) -> None:
        self._known[name] = value
        self.initializers.append(numpy_helper.from_array(value, name))

    def _value(self, name: str) -> float | None:
        """Of a constant with one element; None for anything else."""
        value = self._known.get(name)
        return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None


def _renamed(node: onnx.NodeProto, names: Mapping[str, str], prefix: str) -> onnx.NodeProto:
    """With these names, and within its subgraphs with ``prefix`` before those that they define."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = ""
    for fields in (copy.input, copy.output):
        fields[:] = [names.get(name, name) for name in fields]
    for attribute in copy.attribute:
        graphs = [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs
        for graph in graphs:
            own = [each.name for each in (*graph.input, *graph.initializer)]
            own += [output for each in graph.node for output in each.output if output]
            inner = dict(names) | {name: prefix + name for name in own}
            for each in (*graph.input, *graph.initializer, *graph.output):
                each.name = inner.get(each.name, each.name)
            nodes = [_renamed(each, inner, prefix) for each in graph.node]
            del graph.node[:]
            graph.node.extend(nodes)
    return copy
