"""Buffers and inputs that a PyTorch program changes in place, such as the cache of a language model.

Exported programs change them by operators such as ``index_copy_``. For a library they are inputs, and
their new values are outputs.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import fx
from torch.export.graph_signature import InputKind, InputSpec

from tvmtune.errors import TvmtuneError, one_line
from tvmtune.networks.importer_helpers import quiet

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_KEPT = (InputKind.BUFFER, InputKind.CONSTANT_TENSOR, InputKind.PARAMETER)
"""What a program keeps from run to run."""


class Changes(NamedTuple):
    """What a program changes whenever it is run."""

    kept: list[str]
    """Buffers that it reads before it changes them, by their paths in the module."""
    written: list[str]
    """Other buffers, of which no run sees what the last one wrote."""
    inputs: list[str]
    """Arguments, by name."""


NOTHING = Changes([], [], [])


def changes(program: ExportedProgram, label: str) -> Changes:
    """What ``program`` changes in place; buffers whose old values it never reads are left out.

    Tensors that it changes although they are constants, as in exports of transformers' caches that are
    not strict, are made buffers of ``program``.
    """
    suspects = {*_changed_placeholders(program)}
    signature = program.graph_signature
    known = signature.buffers_to_mutate or signature.user_inputs_to_mutate
    if not suspects and not known and not _has_inner_graphs(program):
        return NOTHING
    _make_buffers(program, suspects)
    try:
        with quiet():
            plain = program.run_decompositions({})
    except Exception as error:  # PyTorch has no class of its own for this
        raise TvmtuneError(
            f"{label} changes its buffers in a way that PyTorch cannot express without side effects: "
            f"{one_line(error)}; do not give two buffers the same memory or the same new tensor, and "
            "export the network again"
        ) from error
    nodes = {node.name: node for node in plain.graph.find_nodes(op="placeholder")}
    read = {
        spec.target
        for spec in plain.graph_signature.input_specs
        if spec.kind in _KEPT
        and any(_reads(user, nodes[spec.arg.name]) for user in nodes[spec.arg.name].users)
    }
    after = plain.graph_signature
    changed = dict.fromkeys(
        [*after.buffers_to_mutate.values(), *after.parameters_to_mutate.values()]
    )
    inputs = dict.fromkeys(plain.graph_signature.user_inputs_to_mutate.values())
    return Changes(
        [path for path in changed if path in read],
        [path for path in changed if path not in read],
        [*inputs],
    )


def _make_buffers(program: ExportedProgram, names: Collection[str]) -> None:
    """Make buffers of the constants among these placeholders, each with memory of its own: PyTorch
    keeps what shares memory with an unused buffer as such a constant."""
    specs = program.graph_signature.input_specs
    for place, spec in enumerate(specs):
        if spec.kind is InputKind.CONSTANT_TENSOR and spec.arg.name in names:
            specs[place] = InputSpec(InputKind.BUFFER, spec.arg, spec.target, persistent=False)
            program.constants[spec.target] = program.constants[spec.target].clone()


def _has_inner_graphs(program: ExportedProgram) -> bool:
    """Whether operators have graphs of their own, as what was exported under ``no_grad()`` has."""
    return any(isinstance(n.target, torch._ops.HigherOrderOperator) for n in program.graph.nodes)


def _changed_placeholders(program: ExportedProgram) -> Iterator[str]:
    """Names of the placeholders that an operator may change, perhaps through a view."""
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None or not schema.is_mutable:
            continue
        names = [argument.name for argument in schema.arguments]
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        for argument in schema.arguments:
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = given.get(argument.name)
            for each in value if isinstance(value, (list, tuple)) else [value]:
                source = _source(each)
                if source is not None and source.op == "placeholder":
                    yield source.name


def _source(value: object) -> fx.Node | None:
    """The tensor of which ``value`` is a view, or itself."""
    while isinstance(value, fx.Node) and value.op == "call_function":
        schema = getattr(value.target, "_schema", None)
        is_view = schema is not None and any(r.alias_info is not None for r in schema.returns)
        if not value.args or not (is_view or value.target is operator.getitem):
            break
        value = value.args[0]
    return value if isinstance(value, fx.Node) else None


def _reads(user: fx.Node, node: fx.Node) -> bool:
    """Whether ``user`` depends on the values of ``node``, not only on its shape."""
    if user.target is torch.ops.aten.copy.default:
        return user.args[0] is not node or node in user.args[1:]
    return True
