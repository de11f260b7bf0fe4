"""Constant folding for PyTorch programs.

Exporters keep the arithmetic on positions in their files (arange, comparisons, cos, sin), and so do
networks that make their masks themselves. With static shapes all of it is constant.
"""

from __future__ import annotations

import contextlib
import math
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_LARGEST_SOURCE = 4096
"""Weights of up to this many elements are sources of constants: frequencies, not matrices."""

_LARGEST = 1 << 20
"""Results of up to this many elements are kept: the mask of 1024 tokens."""


def fold(program: ExportedProgram) -> None:
    """Turn results that do not depend on the inputs of a static program into weights, in place."""
    graph, known = program.graph, _constants(program)
    first = next(iter(graph.nodes))
    for number, (node, tensor) in enumerate(known.items()):
        if isinstance(tensor, torch.Tensor) and any(user not in known for user in node.users):
            target = f"tvmtune_constant_{number}"
            with graph.inserting_before(first):
                weight = graph.placeholder(target)
            weight.meta["val"] = node.meta["val"]
            argument = TensorArgument(name=weight.name)
            spec = InputSpec(InputKind.CONSTANT_TENSOR, argument, target)
            program.graph_signature.input_specs.append(spec)
            program.constants[target] = tensor.contiguous()
            node.replace_all_uses_with(weight)
    for node in reversed(known):
        graph.erase_node(node)
    program.graph_module.recompile()


def _constants(program: ExportedProgram) -> dict[fx.Node, Any]:
    """Results that do not depend on the inputs, tensors or several of them, by their nodes."""
    known: dict[fx.Node, Any] = {}
    tensors = {**program.state_dict, **program.constants}
    targets = {s.arg.name: s.target for s in program.graph_signature.input_specs}
    with torch.no_grad():
        for node in program.graph.nodes:
            if node.op == "placeholder":
                tensor = tensors.get(targets.get(node.name))
                if isinstance(tensor, torch.Tensor) and (
                    tensor.numel() <= _LARGEST_SOURCE or all(map(_quantizes, node.users))
                ):
                    known[node] = tensor.detach()
            elif _is_pure(node) and all(source in known for source in node.all_input_nodes):
                # What PyTorch cannot compute stays, and the importer reports a real error.
                with contextlib.suppress(Exception):
                    known[node] = node.target(
                        *_values(node.args, known), **_values(node.kwargs, known)
                    )
    return {node: result for node, result in known.items() if node.op != "placeholder"}


def _is_pure(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return True
    return (
        isinstance(node.target, torch._ops.OpOverload)
        and node.target.namespace == "aten"
        and bool(node.target._schema.returns)
        and not node.target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in node.target.tags
        and _size(node.meta.get("val")) <= _LARGEST
    ) or _quantizes(node)


def _quantizes(node: fx.Node) -> bool:
    """Whether it makes integers of floats. The opposite stays in the program: backends compute layers
    with integer weights."""
    return str(node.target).startswith("quantized_decomposed.quantize_")


def _values(argument: Any, known: dict[fx.Node, Any]) -> Any:
    return fx.map_arg(argument, known.__getitem__)


def _size(result: Any) -> int:
    """Elements of a tensor, or of the tensors among several results."""
    if isinstance(result, torch.Tensor):
        return math.prod(result.shape)
    return sum(map(_size, result)) if isinstance(result, (list, tuple)) else 0
