"""Recurrent operators over sequences of a fixed length, unrolled.

Inputs have the shapes X (T, B, I), W (D, G*H, I), R (D, G*H, H) and B (D, 2*G*H), states (D, B, H) and
the output Y (T, D, B, H), for T steps, a batch of B, I features, D directions, G gates and H hidden
values. With ``layout`` 1, the batch is the first axis of X, Y and the states.

All that does not depend on a state is computed first: one matrix product for all steps, gates and
directions. Then each step is the product of the state and R, and a kernel for everything else. It
finds its part of the first product by an index, which is a constant, where slices would make a kernel
for each step. As operators of Relax, the parts of a step would take TVM's passes most of the time to
compile, and the two results of an LSTM's step would be kernels of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi

from tvmtune.networks.onnx.converters.request import (
    Converter,
    Node,
    constant,
    dtype,
    optional,
    required,
    shape,
)

MOST_STEPS = 2000
"""Of a sequence: each step becomes kernel calls, and the time to compile grows with their number."""

_OPAQUE = 8
"""``OpPatternKind`` of TVM's fusion: kernels of the last step stay the same as those of others."""


def lstm(node: Node) -> Any:
    """The equations of https://onnx.ai/onnx/operators/onnx__LSTM.html, without peepholes."""
    node.refuse({"input_forget": 0})
    if node.input(7) is not None:
        raise ValueError("its peepholes, the input P, are not supported")
    layer = _Layer(node, gates=4, activations=("Sigmoid", "Tanh", "Tanh"))
    f, g, h = layer.activations

    def lstm_step(projected: Any, index: Any, product: Any, cell: Any) -> list[Any]:
        def gate(number: int, at: tuple[Any, ...]) -> Any:
            return _sum(projected, index, product, number, at)

        def next_cell(*at: Any) -> Any:
            return f(gate(2, at)) * cell(*at) + f(gate(0, at)) * g(gate(3, at))

        # It computes the cell again: as a stage that reads the other, it could not be inlined.
        def next_state(*at: Any) -> Any:
            return f(gate(1, at)) * h(next_cell(*at))

        return [_computed(cell, next_state, "state"), _computed(cell, next_cell, "cell")]

    projected, weight = layer.projected(layer.bias.sum(1)), layer.recurrent_weight(0, 4)
    state, cell = layer.initial(5), layer.initial(6)
    states = []
    for step in range(layer.steps):
        product = node.op.matmul(state, weight)
        state, cell = layer.kernel(lstm_step, projected, step, product, cell)
        states.append(state)
    return node.results(layer.sequence(states), layer.final(state), layer.final(cell))


def gru(node: Node) -> Any:
    """The equations of https://onnx.ai/onnx/operators/onnx__GRU.html."""
    layer = _Layer(node, gates=3, activations=("Sigmoid", "Tanh"))
    linear = bool(node.attrs.get("linear_before_reset", 0))
    step_of = _linear_gru(layer) if linear else _plain_gru(layer)
    state, states = layer.initial(5), []
    for step in range(layer.steps):
        state = step_of(step, state)
        states.append(state)
    return node.results(layer.sequence(states), layer.final(state))


def _plain_gru(layer: _Layer) -> Callable[[int, Any], Any]:
    """Steps in which the reset gate scales the state."""
    f, g = layer.activations
    projected = layer.projected(layer.bias.sum(1))
    weights = layer.recurrent_weight(0, 2), layer.recurrent_weight(2, 3)

    def gate(projected: Any, index: Any, product: Any, number: int, at: tuple[Any, ...]) -> Any:
        return f(_sum(projected, index, product, number, at))

    def gru_reset(projected: Any, index: Any, product: Any, state: Any) -> Any:
        return _computed(
            state, lambda *at: gate(projected, index, product, 1, at) * state(*at), "reset"
        )

    def gru_update(projected: Any, index: Any, product: Any, last: Any, state: Any) -> Any:
        def next_state(*at: Any) -> Any:
            candidate = g(_of_gate(projected, index, 2, at) + last(*at))
            return _mixed(gate(projected, index, product, 0, at), candidate, state(*at))

        return _computed(state, next_state, "state")

    def step_of(step: int, state: Any) -> Any:
        product = layer.node.op.matmul(state, weights[0])
        (part,) = layer.kernel(gru_reset, projected, step, product, state)
        last = layer.node.op.matmul(part, weights[1])
        return layer.kernel(gru_update, projected, step, product, last, state)[0]

    return step_of


def _linear_gru(layer: _Layer) -> Callable[[int, Any], Any]:
    """Steps in which the reset gate scales the state's product, with its bias."""
    f, g = layer.activations
    bias = layer.bias.sum(1)
    bias[:, 2] = layer.bias[:, 0, 2]
    projected, weight = layer.projected(bias), layer.recurrent_weight(0, 3)
    inner = layer.constant(layer.bias[:, 1, 2])

    def gru_step(projected: Any, index: Any, product: Any, inner: Any, state: Any) -> Any:
        def gate(number: int, at: tuple[Any, ...]) -> Any:
            return f(_sum(projected, index, product, number, at))

        def next_state(*at: Any) -> Any:
            direction = at[0] if len(at) > 2 else 0
            part = gate(1, at) * (_columns(projected, product, 2, at) + inner(direction, at[-1]))
            candidate = g(_of_gate(projected, index, 2, at) + part)
            return _mixed(gate(0, at), candidate, state(*at))

        return _computed(state, next_state, "state")

    def step_of(step: int, state: Any) -> Any:
        product = layer.node.op.matmul(state, weight)
        return layer.kernel(gru_step, projected, step, product, inner, state)[0]

    return step_of


def rnn(node: Node) -> Any:
    """The equation of https://onnx.ai/onnx/operators/onnx__RNN.html."""
    layer = _Layer(node, gates=1, activations=("Tanh",))
    (f,) = layer.activations

    def rnn_step(projected: Any, index: Any, product: Any) -> Any:
        return _computed(product, lambda *at: f(_sum(projected, index, product, 0, at)), "state")

    projected, weight = layer.projected(layer.bias.sum(1)), layer.recurrent_weight(0, 1)
    state, states = layer.initial(5), []
    for step in range(layer.steps):
        product = node.op.matmul(state, weight)
        (state,) = layer.kernel(rnn_step, projected, step, product)
        states.append(state)
    return node.results(layer.sequence(states), layer.final(state))


def _of_gate(projected: Any, index: Any, gate: int, at: tuple[Any, ...]) -> Any:
    """What a gate reads of :meth:`_Layer.projected` for this element of a state."""
    return projected(index(*at[:-1]), gate, at[-1])


def _columns(projected: Any, product: Any, gate: int, at: tuple[Any, ...]) -> Any:
    """What a gate reads of a state's product with R, in which the gates are one after another."""
    return product(*at[:-1], gate * projected.shape[2] + at[-1])


def _sum(projected: Any, index: Any, product: Any, gate: int, at: tuple[Any, ...]) -> Any:
    return _of_gate(projected, index, gate, at) + _columns(projected, product, gate, at)


def _computed(like: Any, element: Callable[..., Any], name: str) -> Any:
    return te.compute(like.shape, element, name=name)


def _mixed(update: Any, candidate: Any, state: Any) -> Any:
    """``(1 - update) * candidate + update * state``"""
    return candidate + update * (state - candidate)


def _relu(x: Any) -> Any:
    return tirx.max(x, tirx.const(0, x.ty.dtype))


_ACTIVATIONS = {"Relu": _relu, "Sigmoid": tirx.sigmoid, "Tanh": tirx.tanh}


class _Layer:
    """What the operators have in common.

    Inside, a state is of the shape (D, B, H), or (B, H) for one direction. A step of both directions
    reads the sequence forward in one and backward in the other.
    """

    activations: list[Callable[[Any], Any]]
    bias: np.ndarray
    """(D, 2, G, H): of the input, then of the state; zeros if the node has none."""

    def __init__(self, node: Node, gates: int, activations: Sequence[str]) -> None:
        """Raises ValueError for what is not supported."""
        direction = node.text("direction", "forward")
        if direction not in ("forward", "reverse", "bidirectional"):
            raise ValueError(f"its direction '{direction}' is not known")
        node.refuse({"clip": None})
        self.node, self._gates, self._reversed = node, gates, direction == "reverse"
        self._directions = 2 if direction == "bidirectional" else 1
        self._batch_first = bool(node.attrs.get("layout", 0))
        self._x = node.inputs[0]
        first, second, features = shape(self._x)
        self.steps, self._batch = (second, first) if self._batch_first else (first, second)
        if not 0 < self.steps <= MOST_STEPS:
            raise ValueError(
                f"its sequence has {self.steps} steps, each of which becomes a part of the program; "
                f"1 to {MOST_STEPS} are supported"
            )
        self._check_lengths()
        self.activations = self._activations(activations)
        self._weight = required(node.inputs[1], "weights W")
        self._recurrent = required(node.inputs[2], "weights R")
        self._hidden = self._recurrent.shape[-1]
        columns = gates * self._hidden
        bias = optional(node.input(3), "bias B")
        if bias is None:
            bias = np.zeros((self._directions, 2 * columns), self._weight.dtype)
        for name, array, extents in (
            ("W", self._weight, (columns, features)),
            ("R", self._recurrent, (columns, self._hidden)),
            ("B", bias, (2 * columns,)),
        ):
            if array.shape != (self._directions, *extents):
                wanted = (self._directions, *extents)
                raise ValueError(f"its input {name} has the shape {array.shape}, not {wanted}")
        self.bias = bias.reshape(self._directions, 2, gates, self._hidden)

    def projected(self, bias: np.ndarray) -> Any:
        """The products of the inputs and W, plus a bias (D, G, H), in the shape (T*B*D, G, H)."""
        op = self.node.op
        matrix = self._weight.reshape(-1, self._weight.shape[-1]).T
        x = op.reshape(self._x, [self.steps * self._batch, len(matrix)])
        product = op.matmul(x, self.constant(matrix))
        if bias.any():
            product = op.add(product, self.constant(bias.reshape(-1)))
        places = self.steps * self._batch * self._directions
        return op.reshape(product, [places, self._gates, self._hidden])

    def kernel(
        self, equations: Callable[..., Any], projected: Any, step: int, *tensors: Any
    ) -> list[Any]:
        """The results of a kernel that a TE program defines, which also gets an index: the rows of
        ``projected`` that each direction and each element of the batch reads in this step."""
        builder = self.node.builder
        times = [self.steps - 1 - step if self._reversed else step, self.steps - 1 - step]
        time = np.array(times[: self._directions])[:, None]
        batch = np.arange(self._batch)
        place = batch * self.steps + time if self._batch_first else time * self._batch + batch
        index = place * self._directions + np.arange(self._directions)[:, None]
        result = builder.emit_te(
            equations,
            projected,
            relax.const(index.reshape(self._state[:-1]), "int64"),
            *tensors,
            primfunc_name_hint=equations.__name__,
            primfunc_attrs={"op_pattern": _OPAQUE},
        )
        if not isinstance(result.ty, relax.TupleType):
            return [result]
        return [builder.emit(relax.TupleGetItem(result, n)) for n in range(len(result.ty.fields))]

    def recurrent_weight(self, first: int, end: int) -> Any:
        """R of the gates from ``first`` up to ``end``, as a state is multiplied with it."""
        part = self._recurrent[:, first * self._hidden : end * self._hidden].transpose(0, 2, 1)
        return self.constant(part if self._directions > 1 else part[0])

    def initial(self, position: int) -> Any:
        """The state that the node's input gives, or zeros."""
        given = self.node.input(position)
        if given is None:
            return self.constant(np.zeros(self._state, self._weight.dtype))
        if self._batch_first and self._directions > 1:
            given = self.node.op.permute_dims(given, [1, 0, 2])
        return self._reshaped(given, self._state)

    def final(self, state: Any) -> Any:
        """Y_h or Y_c."""
        whole = self._reshaped(state, [self._directions, self._batch, self._hidden])
        return self.node.op.permute_dims(whole, [1, 0, 2]) if self._batch_first else whole

    def sequence(self, states: Sequence[Any]) -> Any:
        """Y, from the states in the order of the steps."""
        op = self.node.op
        parts = [*reversed(states)] if self._reversed else [*states]
        # In groups, and by few kernels: each element of a concatenation searches the parts for its own,
        # and one kernel of all parts takes minutes to compile.
        size = math.isqrt(len(parts) - 1) + 1
        while len(parts) > 1:
            groups = [parts[i : i + size] for i in range(0, len(parts), size)]
            parts = [self._joined(group) if len(group) > 1 else group[0] for group in groups]
        (whole,) = parts
        if self._directions > 1:
            # By indices, which TVM does not fuse with what reads Y. Slices and a concatenation would
            # become a kernel without vectors.
            steps = np.arange(self.steps)
            index = np.stack([2 * steps, 2 * steps[::-1] + 1], axis=1).reshape(-1)
            whole = op.take(whole, relax.const(index, "int64"), 0, mode="clip")
        extents = [self.steps, self._directions, self._batch, self._hidden]
        whole = op.reshape(whole, extents)
        return op.permute_dims(whole, [2, 0, 1, 3]) if self._batch_first else whole

    def _joined(self, parts: Sequence[Any]) -> Any:
        return self.node.builder.emit_te(
            topi.concatenate, list(parts), 0, primfunc_attrs={"op_pattern": _OPAQUE}
        )

    @property
    def _state(self) -> list[int]:
        directions = [self._directions] if self._directions > 1 else []
        return [*directions, self._batch, self._hidden]

    def _reshaped(self, x: Any, extents: list[int]) -> Any:
        return x if shape(x) == extents else self.node.op.reshape(x, extents)

    def constant(self, array: np.ndarray) -> Any:
        return relax.const(np.ascontiguousarray(array), dtype(self._x))

    def _check_lengths(self) -> None:
        given = self.node.input(4)
        if given is None:
            return
        lengths = constant(given)
        if lengths is None or (lengths != self.steps).any():
            raise ValueError(
                f"its sequence_lens must be constant and all {self.steps}, the number of steps"
            )

    def _activations(self, defaults: Sequence[str]) -> list[Callable[[Any], Any]]:
        given = self.node.attrs.get("activations", [*defaults] * self._directions)
        names = [n.decode() if isinstance(n, bytes) else n for n in given]
        names = [name.capitalize() for name in names]  # ONNX Runtime ignores the case, too
        for name in names:
            if name not in _ACTIVATIONS:
                raise ValueError(f"its activation {name} is not supported")
        own = names[: len(defaults)]
        if names != own * self._directions or len(own) < len(defaults):
            raise ValueError(
                f"its activations {', '.join(names)} are not supported: each direction must have "
                f"the same {len(defaults)}"
            )
        return [_ACTIVATIONS[name] for name in own]


CONVERTERS: dict[str, Converter] = {"GRU": gru, "LSTM": lstm, "RNN": rnn}

_ALL = (
    f"more than {MOST_STEPS} steps; weights that are not constant; sequence_lens other than the number "
    "of steps; clip; activations other than Relu, Sigmoid and Tanh"
)

LIMITS = {"GRU": _ALL, "LSTM": f"{_ALL}; peepholes; input_forget", "RNN": _ALL}
"""What is not supported, by operator."""
