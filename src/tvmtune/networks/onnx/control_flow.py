"""Branches and loops of ONNX models that do not depend on the data: taken, and unrolled.

Exporters emit ``If`` where a program tested a shape, and ``Loop`` for the loops of scripted programs
and for the sums over bags of embeddings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper

from tvmtune.networks.onnx.fold import fold, small_constants, with_nodes
from tvmtune.networks.onnx.operators import names_defined, names_read
from tvmtune.networks.onnx.replacement import Replacement
from tvmtune.networks.onnx.sequences import without_sequences

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MOST_NODES = 20_000
"""Nodes of a model with its loops unrolled, at most."""
_TOO_MANY = f"the model would have more than {MOST_NODES:,} nodes"

LIMITS = {
    "If": "a condition that depends on the data; sparse weights",
    "Loop": "a number of iterations that depends on the data; more than "
    f"{MOST_NODES:,} nodes after unrolling; stacked results of no iteration; sparse weights",
}
"""What is not supported, by operator."""


class _Kept(Exception):
    """A branch or loop stays; the message is the reason."""


def without_control_flow(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model``, folded, without its branches, loops and sequences that do not depend on the
    data.

    The inputs must have static shapes. The model itself is not changed, and returned if there is
    nothing to do.
    """
    # What was inside may be constant, and decide others.
    while (result := without_sequences(_inlined(fold(model)))) is not model:
        model = result
    return model


def why_kept(model: onnx.ModelProto, node: onnx.NodeProto) -> str | None:
    """Why :func:`without_control_flow` left this node in the model that it returned; None if it is
    neither ``If`` nor ``Loop``."""
    replace = _REPLACEMENTS.get(node.op_type)
    if replace is None:
        return None
    try:
        replace(
            node, Replacement(small_constants(model), names_defined(model.graph), model), MOST_NODES
        )
    except _Kept as reason:
        return str(reason)
    return _TOO_MANY


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model``, which is folded, with the nodes inside in place of each If and Loop for which
    that is possible."""
    if not any(node.op_type in _REPLACEMENTS for node in model.graph.node):
        return model
    known, taken = small_constants(model), names_defined(model.graph)
    room = MOST_NODES - len(model.graph.node)
    nodes: list[onnx.NodeProto] = []
    replacements: list[Replacement] = []
    for node in model.graph.node:
        if node.op_type not in _REPLACEMENTS:
            nodes.append(node)
            continue
        inside = Replacement(known, taken, model)
        try:
            _REPLACEMENTS[node.op_type](node, inside, room)
        except _Kept:
            nodes.append(node)
            continue
        replacements.append(inside)
        room -= len(inside.nodes)
        nodes += inside.nodes
    if not replacements:
        return model
    result = with_nodes(model, nodes)
    read = names_read(result.graph)
    for inside in replacements:
        result.graph.initializer.extend(inside.weights(read))
    return result


def _decide(node: onnx.NodeProto, inside: Replacement, room: int) -> None:
    """Copy the branch that an If takes."""
    condition = inside.scalar(node.input[0])
    if condition is None:
        raise _Kept("its condition depends on the data")
    name = "then_branch" if condition else "else_branch"
    branch = next(a.g for a in node.attribute if a.name == name)
    _check_dense(branch)
    prefix = inside.prefix(_first_result(node))
    names = inside.add_weights(branch, prefix)
    _name_results(node, inside.add_nodes(branch, prefix, names), inside)


def _unroll(loop: onnx.NodeProto, inside: Replacement, room: int) -> None:
    """Copy the body of a Loop, once per iteration."""
    body = next(a.g for a in loop.attribute if a.name == "body")
    _check_dense(body)
    prefix = inside.prefix(_first_result(loop))
    count, condition, *carried = (*loop.input, "", "")[: max(2, len(loop.input))]
    most = inside.scalar(count) if count else np.inf
    goes_on = inside.scalar(condition) if condition else True
    weights = inside.add_weights(body, prefix)
    size = max(1, len(body.node))
    if goes_on and most not in (None, np.inf) and _repeats_condition(body):
        _check_room(int(most) * size, room)
    collected: list[list[str]] = [[] for _ in body.output[1 + len(carried) :]]
    iteration = 0
    while most is None or iteration < most:
        if goes_on is None or (most is None and goes_on):
            raise _Kept("the number of its iterations depends on the data")
        if not goes_on:
            break
        _check_room((iteration + 1) * size, room)
        names = weights | _state(body, iteration, carried, prefix, inside)
        condition, *results = inside.add_nodes(body, f"{prefix}{iteration}/", names)
        carried = results[: len(carried)]
        for values, result in zip(collected, results[len(carried) :], strict=True):
            values.append(result)
        goes_on = inside.scalar(condition)
        iteration += 1
    if not all(collected):
        raise _Kept("it has no iteration, so that the shape of its stacked results is not known")
    stacked = []
    for number, values in enumerate(collected):
        stacked.append(f"{prefix}stacked/{number}")
        inside.stack(values, 0, stacked[-1])
    _name_results(loop, [*carried, *stacked], inside)


def _state(
    body: onnx.GraphProto, iteration: int, carried: Sequence[str], prefix: str, inside: Replacement
) -> dict[str, str]:
    """Names of what the body gets: the number of the iteration, a true condition, what it carries."""
    number, again, *states = (info.name for info in body.input)
    names = dict(zip(states, carried, strict=True))
    for name, value in ((number, np.int64(iteration)), (again, np.bool_(True))):
        names[name] = f"{prefix}{iteration}/{name}"
        inside.add_constant(names[name], np.asarray(value))
    return names


def _repeats_condition(body: onnx.GraphProto) -> bool:
    """Whether the condition after an iteration is the one before it."""
    again, result = body.input[1].name, body.output[0].name
    same = {again}
    for node in body.node:
        if node.op_type == "Identity" and node.input[0] in same:
            same.add(node.output[0])
    return result in same


def _check_room(nodes: int, room: int) -> None:
    if nodes > room:
        raise _Kept(_TOO_MANY)


def _check_dense(graph: onnx.GraphProto) -> None:
    if graph.sparse_initializer:
        raise _Kept(f"its weight '{graph.sparse_initializer[0].values.name}' is sparse")


def _name_results(node: onnx.NodeProto, results: Sequence[str], inside: Replacement) -> None:
    for result, output in zip(results, node.output, strict=False):
        if output:
            inside.add(helper.make_node("Identity", [result], [output]))


def _first_result(node: onnx.NodeProto) -> str:
    return next(output for output in node.output if output)


_REPLACEMENTS: Mapping[str, Callable[[onnx.NodeProto, Replacement, int], None]] = {
    "If": _decide,
    "Loop": _unroll,
}
"""What adds the nodes that take a node's place, at most so many of a loop; raises :class:`_Kept`."""
