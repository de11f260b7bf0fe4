"""From a graph that PyTorch captured to a network, with its weights as constants."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from tvmtune.errors import TvmtuneError
from tvmtune.networks.importer_helpers import quiet
from tvmtune.networks.model_file import kind_and_line
from tvmtune.networks.torch.network import TorchNetwork

LABEL = "the graph"
"""What messages call the network."""


class NoGraph(Exception):
    """The graph has to run in eager mode; the message says why, unless nobody would miss a kernel."""


def is_weight(tensor: torch.Tensor) -> bool:
    """Whether a graph's input is a parameter or buffer of the module that it was captured from."""
    return (
        isinstance(tensor, torch.nn.Parameter)
        or getattr(tensor, "_dynamo_static_input_type", None) is not None
    )


def check(graph: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Raise :class:`NoGraph` for a graph that no library could replace."""
    if not any(node.op.startswith("call_") for node in graph.graph.nodes):
        raise NoGraph
    for value in inputs:
        if isinstance(value, torch.SymInt) or (
            isinstance(value, torch.Tensor)
            and any(isinstance(extent, torch.SymInt) for extent in value.shape)
        ):
            raise NoGraph(
                "its shapes are dynamic; torch.compile(..., dynamic=False) compiles each shape"
            )
        if not isinstance(value, torch.Tensor):
            raise NoGraph(f"it takes a number that varies ({value!r}), not only tensors")
        if value.device.type != "cpu":
            raise NoGraph(f"its inputs are on the device {value.device}, not on the CPU")
        if value.layout is not torch.strided or type(value) not in (
            torch.Tensor,
            torch.nn.Parameter,
            torch.nn.Buffer,
        ):
            raise NoGraph(f"it takes a {type(value).__name__} with the layout {value.layout}")
    if torch.is_grad_enabled() and any(value.requires_grad for value in inputs):
        raise NoGraph(
            "gradients are required; call the model in torch.no_grad() or inference_mode()"
        )
    if torch.is_autocast_enabled("cpu"):
        raise NoGraph("torch.autocast is on; convert the network's dtype instead")


def network_of(graph: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> TorchNetwork:
    """The network that the graph computes from those ``inputs`` that are no weights.

    Raises :class:`NoGraph` if PyTorch cannot export it, or if it is not a network that tvmtune takes.
    """
    frozen = _freeze(graph, inputs)
    tensors = tuple(value for value in inputs if not is_weight(value))
    if not tensors:
        raise NoGraph("it takes no input besides its weights")
    try:
        with quiet(), torch.no_grad(), torch._guards.tracing(None):
            program = torch.export.export(frozen, tensors, strict=False)
            signature = program.run_decompositions().graph_signature
    except Exception as error:  # every part of the exporter has its own classes
        raise NoGraph(f"PyTorch cannot export it: {kind_and_line(error)}") from error
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if changed:
        what = "a buffer" if changed[0].startswith("weight_") else f"its input '{changed[0]}'"
        raise NoGraph(f"it changes {what} in place")
    try:
        return TorchNetwork(program, name="graph", label=LABEL)
    except TvmtuneError as error:
        raise NoGraph(str(error)) from error


def in_eager_mode(
    graph: fx.GraphModule, inputs: Sequence[torch.Tensor], network: TorchNetwork
) -> list[torch.Tensor]:
    """The outputs of the graph, which must not change its inputs.

    Raises :class:`NoGraph` if one is not a new tensor: a library can only copy inputs and weights.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        outputs = graph(*inputs)
    tensors = isinstance(outputs, (tuple, list)) and all(
        isinstance(value, torch.Tensor) for value in outputs
    )
    if not tensors or len(outputs) != len(network.outputs):
        raise NoGraph("it returns more than tensors")
    storages = {value.untyped_storage().data_ptr() for value in inputs}
    for spec, value in zip(network.outputs, outputs, strict=True):
        storage = value.untyped_storage().data_ptr()
        if value.numel() and storage in storages:
            raise NoGraph(
                f"its output '{spec.name}' shares memory with an input, a weight or another output"
            )
        storages.add(storage)
    return list(outputs)


def _freeze(graph: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> fx.GraphModule:
    """A copy of the graph with attributes for the inputs that are weights."""
    frozen = fx.GraphModule(graph, copy.deepcopy(graph.graph))
    placeholders = frozen.graph.find_nodes(op="placeholder")
    for number, (node, value) in enumerate(zip(placeholders, inputs, strict=True)):
        if not is_weight(value):
            continue
        name = f"weight_{number}"
        frozen.register_buffer(name, value.detach())
        with frozen.graph.inserting_before(node):
            attribute = frozen.graph.get_attr(name)
        node.replace_all_uses_with(attribute)
        frozen.graph.erase_node(node)
    frozen.recompile()
    return frozen.eval()
