"""Recurrent operators over sequences of a fixed length (:mod:`tvmtune.networks.recurrent`).

Inputs have the shapes X (T, B, I), W (D, G*H, I), R (D, G*H, H) and B (D, 2*G*H), states (D, B, H) and
the output Y (T, D, B, H), for T steps, a batch of B, I features, D directions, G gates and H hidden
values. With ``layout`` 1, the batch is the first axis of X, Y and the states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvmtune.networks import recurrent
from tvmtune.networks.onnx.converters.request import Converter, Node, constant, optional, required
from tvmtune.networks.recurrent import ACTIVATIONS, MOST_STEPS, Layer, Weights
from tvmtune.networks.relax_operators import shape


def lstm(node: Node) -> Any:
    node.refuse({"input_forget": 0})
    if node.input(7) is not None:
        raise ValueError("its peepholes, the input P, are not supported")
    layer = _layer(node, gates=4, activations=("Sigmoid", "Tanh", "Tanh"))
    return _results(node, recurrent.lstm(layer, _initial(node, 5), _initial(node, 6)))


def gru(node: Node) -> Any:
    layer = _layer(node, gates=3, activations=("Sigmoid", "Tanh"))
    linear = bool(node.attrs.get("linear_before_reset", 0))
    return _results(node, recurrent.gru(layer, _initial(node, 5), linear_before_reset=linear))


def rnn(node: Node) -> Any:
    layer = _layer(node, gates=1, activations=("Tanh",))
    return _results(node, recurrent.rnn(layer, _initial(node, 5)))


def _layer(node: Node, gates: int, activations: Sequence[str]) -> Layer:
    """Raises ValueError for what is not supported."""
    direction = node.text("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        raise ValueError(f"its direction '{direction}' is not known")
    node.refuse({"clip": None})
    directions = 2 if direction == "bidirectional" else 1
    layer = Layer(
        node.builder,
        node.inputs[0],
        _weights(node, gates, directions),
        _activations(node, activations, directions),
        batch_first=_batch_first(node),
        backward=direction == "reverse",
    )
    _check_lengths(node, layer.steps)
    return layer


def _weights(node: Node, gates: int, directions: int) -> Weights:
    weight = required(node.inputs[1], "weights W")
    states = required(node.inputs[2], "weights R")
    hidden, features = states.shape[-1], shape(node.inputs[0])[-1]
    columns = gates * hidden
    bias = optional(node.input(3), "bias B")
    if bias is None:
        bias = np.zeros((directions, 2 * columns), weight.dtype)
    for name, array, extents in (
        ("W", weight, (columns, features)),
        ("R", states, (columns, hidden)),
        ("B", bias, (2 * columns,)),
    ):
        if array.shape != (directions, *extents):
            wanted = (directions, *extents)
            raise ValueError(f"its input {name} has the shape {array.shape}, not {wanted}")
    return Weights(weight, states, bias.reshape(directions, 2, gates, hidden))


def _activations(
    node: Node, defaults: Sequence[str], directions: int
) -> list[Callable[[Any], Any]]:
    given = node.attrs.get("activations", [*defaults] * directions)
    names = [n.decode() if isinstance(n, bytes) else n for n in given]
    names = [name.capitalize() for name in names]  # ONNX Runtime ignores the case, too
    for name in names:
        if name not in ACTIVATIONS:
            raise ValueError(f"its activation {name} is not supported")
    own = names[: len(defaults)]
    if names != own * directions or len(own) < len(defaults):
        raise ValueError(
            f"its activations {', '.join(names)} are not supported: each direction must have "
            f"the same {len(defaults)}"
        )
    return [ACTIVATIONS[name] for name in own]


def _check_lengths(node: Node, steps: int) -> None:
    given = node.input(4)
    if given is None:
        return
    lengths = constant(given)
    if lengths is None or (lengths != steps).any():
        raise ValueError(f"its sequence_lens must be constant and all {steps}, the number of steps")


def _batch_first(node: Node) -> bool:
    return bool(node.attrs.get("layout", 0))


def _initial(node: Node, position: int) -> Any:
    """A state that the node's input gives, (D, B, H)."""
    given = node.input(position)
    return given if given is None or not _batch_first(node) else _swapped(node, given)


def _results(node: Node, results: recurrent.Results) -> Any:
    states = [state for state in (results.state, results.cell) if state is not None]
    if _batch_first(node):
        states = [_swapped(node, state) for state in states]
    return node.results(results.sequence, *states)


def _swapped(node: Node, state: Any) -> Any:
    return node.op.permute_dims(state, [1, 0, 2])


CONVERTERS: dict[str, Converter] = {"GRU": gru, "LSTM": lstm, "RNN": rnn}

_ALL = (
    f"more than {MOST_STEPS} steps; weights that are not constant; sequence_lens other than the number "
    "of steps; clip; activations other than Relu, Sigmoid and Tanh"
)

LIMITS = {"GRU": _ALL, "LSTM": f"{_ALL}; peepholes; input_forget", "RNN": _ALL}
"""What is not supported, by operator."""
