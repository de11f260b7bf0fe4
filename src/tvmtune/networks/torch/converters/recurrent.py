"""Recurrent layers, whole (:mod:`tvmtune.networks.recurrent`).

PyTorch decomposes them, and the importer unrolls them, into some twenty operators for each step, of
which each product packs the same weights once more. A layer's input is (T, B, I), or (B, T, I) with
``batch_first``, for T steps, a batch of B and I features; states are (L*D, B, S), layer by layer, for L
layers, D directions and S values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax

from tvmtune.arrays import numpy_dtype
from tvmtune.networks import recurrent
from tvmtune.networks.recurrent import ACTIVATIONS, Layer, Results, Weights
from tvmtune.networks.relax_operators import Operators, shape
from tvmtune.networks.torch.converters.arithmetic import dtype_name

_aten = torch.ops.aten


@dataclass(frozen=True)
class _Kind:
    gates: tuple[int, ...]
    """Where PyTorch has the gates that :class:`Weights` has in ONNX's order."""
    activations: tuple[str, ...]
    states: int
    """Tensors that are a state."""
    compute: Callable[..., Results]
    """Of a :class:`Layer` and these tensors."""


def _gru(layer: Layer, state: Any) -> Results:
    return recurrent.gru(layer, state, linear_before_reset=True)


_KINDS: dict[Any, _Kind] = {
    _aten.lstm.input: _Kind((0, 3, 1, 2), ("Sigmoid", "Tanh", "Tanh"), 2, recurrent.lstm),
    _aten.gru.input: _Kind((1, 0, 2), ("Sigmoid", "Tanh"), 1, _gru),
    _aten.rnn_tanh.input: _Kind((0,), ("Tanh",), 1, recurrent.rnn),
    _aten.rnn_relu.input: _Kind((0,), ("Relu",), 1, recurrent.rnn),
}


@dataclass(frozen=True)
class _Arguments:
    """Of all four operators, in PyTorch's order."""

    x: fx.Node
    states: Any
    """A node, or two of an LSTM."""
    weights: list[fx.Node]
    has_biases: bool
    layers: int
    dropout: float
    training: bool
    bidirectional: bool
    batch_first: bool

    @classmethod
    def of(cls, node: fx.Node) -> _Arguments:
        values: Any = node.args
        return cls(*values)

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1


def whole_layers(program: torch.export.ExportedProgram, weights: Collection[str]) -> set[Any]:
    """The operators of ``program`` that are to be converted as they are, not decomposed: those all of
    whose calls the converters here support. ``weights`` are the names of nodes that are constant."""
    found: dict[Any, bool] = {}
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target in _KINDS:
            found[node.target] = found.get(node.target, True) and _is_supported(node, weights)
    return {target for target, supported in found.items() if supported}


def _is_supported(node: fx.Node, weights: Collection[str]) -> bool:
    if node.kwargs:
        return False
    arguments = _Arguments.of(node)
    return not (arguments.training and arguments.dropout) and all(
        weight.name in weights for weight in arguments.weights
    )


def _convert(node: fx.Node, importer: Any) -> Any:
    kind, arguments = _KINDS[node.target], _Arguments.of(node)
    op, x = Operators(importer.block_builder), importer.env[arguments.x]
    given = arguments.states if kind.states > 1 else [arguments.states]
    parts = [_by_layer(op, importer.env[state], arguments) for state in given]
    finals: list[list[Any]] = [[] for _ in given]
    for number, weights in enumerate(_layers(arguments, kind, importer)):
        layer = Layer(
            importer.block_builder,
            x,
            weights,
            [ACTIVATIONS[name] for name in kind.activations],
            batch_first=arguments.batch_first,
        )
        results = kind.compute(layer, *(part[number] for part in parts))
        x = _joined_directions(op, results.sequence, arguments)
        for final, state in zip(finals, (results.state, results.cell), strict=False):
            final.append(state)
    last = [final[0] if len(final) == 1 else op.concat(final, axis=0) for final in finals]
    return importer.block_builder.emit(relax.Tuple([x, *last]))


def _by_layer(op: Operators, state: Any, arguments: _Arguments) -> list[Any]:
    """The states (D, B, S) of each layer."""
    if arguments.layers == 1:
        return [state]
    size = arguments.directions
    return [
        op.strided_slice(state, [0], [n * size], [(n + 1) * size]) for n in range(arguments.layers)
    ]


def _joined_directions(op: Operators, sequence: Any, arguments: _Arguments) -> Any:
    """(T, B, D*S) of (T, D, B, S); (B, T, D*S) of (B, T, D, S)."""
    extents = shape(sequence)
    if not arguments.batch_first:
        steps, directions, batch, size = extents
        extents = [steps, batch, directions, size]
        if directions > 1 and batch > 1:
            sequence = op.permute_dims(sequence, [0, 2, 1, 3])
    return op.reshape(sequence, [*extents[:2], extents[2] * extents[3]])


def _layers(arguments: _Arguments, kind: _Kind, importer: Any) -> Iterator[Weights]:
    """Of each layer, from one list of all of them: for each direction the weights of the input and of
    the state, their biases, and an LSTM's projection."""
    dtype = numpy_dtype(dtype_name(arguments.x.meta["val"].dtype))
    arrays = [
        importer.constants[weight.name].detach().to(torch.float64).numpy().astype(dtype)
        for weight in arguments.weights
    ]
    each = len(arrays) // (arguments.layers * arguments.directions)
    sets = [arrays[first : first + each] for first in range(0, len(arrays), each)]
    for first in range(0, len(sets), arguments.directions):
        directions = sets[first : first + arguments.directions]
        inputs, states, *others = (np.stack(same) for same in zip(*directions, strict=True))
        hidden = states.shape[1] // len(kind.gates)

        def by_gate(array: np.ndarray, hidden: int = hidden) -> np.ndarray:
            gates = array.reshape(len(array), len(kind.gates), hidden, *array.shape[2:])
            return gates[:, list(kind.gates)]

        bias = np.zeros((arguments.directions, 2, len(kind.gates), hidden), dtype)
        if arguments.has_biases:
            bias = np.stack([by_gate(others.pop(0)), by_gate(others.pop(0))], axis=1)
        yield Weights(
            by_gate(inputs).reshape(inputs.shape),
            by_gate(states).reshape(states.shape),
            bias,
            others[0] if others else None,
        )


CONVERTERS = {target.__name__: _convert for target in _KINDS}
