"""Rewrites of PyTorch programs with complex tensors, which the import takes apart.

Its converters are in :mod:`tvmtune.networks.torch.converters.complex_numbers`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

_aten = torch.ops.aten


def split_weights(program: Any) -> None:
    """Replace complex weights by real ones with the parts as last axis, in place."""
    tensors = {**program.state_dict, **program.constants}
    signature = program.graph_signature
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    for place, spec in enumerate(signature.input_specs):
        tensor = tensors.get(spec.target)
        if not isinstance(tensor, torch.Tensor) or not tensor.is_complex():
            continue
        node = nodes[spec.arg.name]
        parts = torch.view_as_real(tensor.detach().resolve_conj().contiguous())
        with program.graph.inserting_after(node):
            whole = program.graph.call_function(_aten.view_as_complex.default, (node,))
        whole.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(whole, delete_user_cb=lambda user, made=whole: user is not made)
        node.meta["val"] = node.meta["val"].new_empty(parts.shape, dtype=parts.dtype)
        target = f"tvmtune_parts_{place}"
        program.constants.pop(spec.target, None)
        program.constants[target] = parts
        argument = TensorArgument(name=node.name)
        signature.input_specs[place] = InputSpec(InputKind.CONSTANT_TENSOR, argument, target)
    program.graph_module.recompile()


def read_parts(program: Any) -> None:
    """Replace ``z.real``, which PyTorch exports as an element of a pair of both parts, by that part, in
    place: the other need not be computed."""
    graph = program.graph
    for pair in graph.find_nodes(op="call_function", target=_aten.view_as_real.default):
        axis = pair.meta["val"].dim() - 1
        for node in list(pair.users):
            if node.target is _aten.select.int and node.args[1] % (axis + 1) == axis:
                node.target = (_aten.real if node.args[2] in (0, -2) else _aten.imag).default
                node.args = pair.args
    graph.eliminate_dead_code()
    program.graph_module.recompile()
