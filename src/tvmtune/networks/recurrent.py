"""Layers of LSTMs, GRUs and plain recurrent networks in Relax, unrolled, for every importer.

Shapes are for T steps, a batch of B, I features, D directions, G gates, H hidden values and S values of
a state, which are H unless an LSTM projects its states.

All that does not depend on a state is computed first: one matrix product for all steps, gates and
directions. Then each step is the product of the state and its weights, and a kernel for the rest, which
finds its part of the first product by an index. The index is a constant, where slices would make a
kernel for each step. As operators of Relax, the parts of a step would take most of the time to compile,
and the two results of an LSTM's step would be kernels of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi

from tvmtune.networks.relax_operators import Operators, dtype, shape

MOST_STEPS = 2000
"""Of a sequence: each step becomes kernel calls, and the time to compile grows with their number."""

_OPAQUE = 8
"""``OpPatternKind`` of TVM's fusion: kernels of the last step stay the same as those of others."""


def _relu(x: Any) -> Any:
    return tirx.max(x, tirx.const(0, x.ty.dtype))


ACTIVATIONS = {"Relu": _relu, "Sigmoid": tirx.sigmoid, "Tanh": tirx.tanh}
"""By ONNX's names."""


@dataclass(frozen=True)
class Weights:
    """Of one layer. Gates are in ONNX's order: input, output, forget, cell; update, reset, hidden."""

    inputs: np.ndarray
    """(D, G*H, I)"""
    states: np.ndarray
    """(D, G*H, S)"""
    bias: np.ndarray
    """(D, 2, G, H): of the input, then of the state."""
    projection: np.ndarray | None = None
    """(D, S, H): an LSTM's states are multiplied with it."""


@dataclass(frozen=True)
class Results:
    """What a layer returns."""

    sequence: Any
    """The state after each step, (T, D, B, S); (B, T, D, S) if the batch comes first."""
    state: Any
    """The last state, (D, B, S)."""
    cell: Any = None
    """An LSTM's last cell, (D, B, H)."""


def lstm(layer: Layer, state: Any = None, cell: Any = None, *, cell_bound: float = 0.0) -> Results:
    """The equations of https://onnx.ai/onnx/operators/onnx__LSTM.html, without peepholes, and those of
    PyTorch's ``LSTM`` with ``proj_size``. With a ``cell_bound``, no cell's magnitude exceeds that."""
    f, g, h = layer.activations
    size = layer.hidden

    def lstm_step(projected: Any, index: Any, product: Any, cell: Any) -> list[Any]:
        def gate(number: int, at: tuple[Any, ...]) -> Any:
            return _sum(projected, index, product, number, at)

        def next_cell(*at: Any) -> Any:
            value = f(gate(2, at)) * cell(*at) + f(gate(0, at)) * g(gate(3, at))
            if not cell_bound:
                return value
            most = tirx.const(cell_bound, value.ty.dtype)
            return tirx.max(tirx.min(value, most), -most)

        # It computes the cell again: as a stage that reads the other, it could not be inlined.
        def next_state(*at: Any) -> Any:
            return f(gate(1, at)) * h(next_cell(*at))

        return [_computed(cell, next_state, "state"), _computed(cell, next_cell, "cell")]

    projected, weight = layer.projected(layer.weights.bias.sum(1)), layer.state_weight(0, 4)
    projection = layer.projection
    state, cell = layer.initial(state, layer.size), layer.initial(cell, size)
    states = []
    for step in range(layer.steps):
        product = layer.op.matmul(state, weight)
        state, cell = layer.kernel(lstm_step, projected, step, product, cell)
        if projection is not None:
            state = layer.op.matmul(state, projection)
        states.append(state)
    return Results(layer.sequence(states), layer.final(state, layer.size), layer.final(cell, size))


def gru(layer: Layer, state: Any = None, *, linear_before_reset: bool) -> Results:
    """The equations of https://onnx.ai/onnx/operators/onnx__GRU.html; PyTorch's and Keras's reset gate
    scales the state's product (``linear_before_reset``)."""
    step_of = _linear_gru(layer) if linear_before_reset else _plain_gru(layer)
    return _unrolled(layer, state, step_of)


def rnn(layer: Layer, state: Any = None) -> Results:
    """The equation of https://onnx.ai/onnx/operators/onnx__RNN.html."""
    (f,) = layer.activations
    projected, weight = layer.projected(layer.weights.bias.sum(1)), layer.state_weight(0, 1)

    def rnn_step(projected: Any, index: Any, product: Any) -> Any:
        return _computed(product, lambda *at: f(_sum(projected, index, product, 0, at)), "state")

    def step_of(step: int, state: Any) -> Any:
        product = layer.op.matmul(state, weight)
        return layer.kernel(rnn_step, projected, step, product)[0]

    return _unrolled(layer, state, step_of)


def _unrolled(layer: Layer, state: Any, step_of: Callable[[int, Any], Any]) -> Results:
    """``step_of`` returns the next state."""
    state, states = layer.initial(state, layer.size), []
    for step in range(layer.steps):
        state = step_of(step, state)
        states.append(state)
    return Results(layer.sequence(states), layer.final(state, layer.size))


def _plain_gru(layer: Layer) -> Callable[[int, Any], Any]:
    """Steps in which the reset gate scales the state."""
    f, g = layer.activations
    projected = layer.projected(layer.weights.bias.sum(1))
    weights = layer.state_weight(0, 2), layer.state_weight(2, 3)

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
        product = layer.op.matmul(state, weights[0])
        (part,) = layer.kernel(gru_reset, projected, step, product, state)
        last = layer.op.matmul(part, weights[1])
        return layer.kernel(gru_update, projected, step, product, last, state)[0]

    return step_of


def _linear_gru(layer: Layer) -> Callable[[int, Any], Any]:
    """Steps in which the reset gate scales the state's product, with its bias."""
    f, g = layer.activations
    bias = layer.weights.bias.sum(1)
    bias[:, 2] = layer.weights.bias[:, 0, 2]
    projected, weight = layer.projected(bias), layer.state_weight(0, 3)
    inner = layer.constant(layer.weights.bias[:, 1, 2])

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
        product = layer.op.matmul(state, weight)
        return layer.kernel(gru_step, projected, step, product, inner, state)[0]

    return step_of


def _of_gate(projected: Any, index: Any, gate: int, at: tuple[Any, ...]) -> Any:
    """What a gate reads of :meth:`Layer.projected` for this element of a state."""
    return projected(index(*at[:-1]), gate, at[-1])


def _columns(projected: Any, product: Any, gate: int, at: tuple[Any, ...]) -> Any:
    """What a gate reads of a state's product with its weights, in which the gates are one after
    another."""
    return product(*at[:-1], gate * projected.shape[2] + at[-1])


def _sum(projected: Any, index: Any, product: Any, gate: int, at: tuple[Any, ...]) -> Any:
    return _of_gate(projected, index, gate, at) + _columns(projected, product, gate, at)


def _computed(like: Any, element: Callable[..., Any], name: str) -> Any:
    return te.compute(like.shape, element, name=name)


def _mixed(update: Any, candidate: Any, state: Any) -> Any:
    """``(1 - update) * candidate + update * state``"""
    return candidate + update * (state - candidate)


class Layer:
    """What the equations have in common.

    Inside, a state is of the shape (D, B, S), or (B, S) for one direction. A step of both directions
    reads the sequence forward in one and backward in the other.
    """

    def __init__(
        self,
        builder: Any,
        x: Any,
        weights: Weights,
        activations: Sequence[Callable[[Any], Any]],
        *,
        batch_first: bool = False,
        backward: bool = False,
    ) -> None:
        """``x`` is (T, B, I), or (B, T, I) if ``batch_first``; ``backward``: a single direction reads
        it from its end. Raises ValueError for more than :data:`MOST_STEPS` steps."""
        self.op, self.weights, self.activations = Operators(builder), weights, activations
        self._builder, self._x = builder, x
        self._batch_first, self._backward = batch_first, backward
        self._directions, _, self.size = weights.states.shape
        self._gates, self.hidden = weights.bias.shape[2:]
        first, second, _ = shape(x)
        self.steps, self._batch = (second, first) if batch_first else (first, second)
        if not 0 < self.steps <= MOST_STEPS:
            raise ValueError(
                f"its sequence has {self.steps} steps, each of which becomes a part of the program; "
                f"1 to {MOST_STEPS} are supported"
            )

    def projected(self, bias: np.ndarray) -> Any:
        """The products of the inputs and their weights, plus a bias (D, G, H), in the shape
        (T*B*D, G, H)."""
        weight = self.weights.inputs
        matrix = weight.reshape(-1, weight.shape[-1]).T
        x = self.op.reshape(self._x, [self.steps * self._batch, len(matrix)])
        product = self.op.matmul(x, self.constant(matrix))
        if bias.any():
            product = self.op.add(product, self.constant(bias.reshape(-1)))
        places = self.steps * self._batch * self._directions
        return self.op.reshape(product, [places, self._gates, self.hidden])

    def kernel(
        self, equations: Callable[..., Any], projected: Any, step: int, *tensors: Any
    ) -> list[Any]:
        """The results of a kernel that a TE program defines, which also gets an index: the rows of
        ``projected`` that each direction and each element of the batch reads in this step."""
        times = [self.steps - 1 - step if self._backward else step, self.steps - 1 - step]
        time = np.array(times[: self._directions])[:, None]
        batch = np.arange(self._batch)
        place = batch * self.steps + time if self._batch_first else time * self._batch + batch
        index = place * self._directions + np.arange(self._directions)[:, None]
        result = self._builder.emit_te(
            equations,
            projected,
            relax.const(index.reshape(self._state(self.size)[:-1]), "int64"),
            *tensors,
            primfunc_name_hint=equations.__name__,
            primfunc_attrs={"op_pattern": _OPAQUE},
        )
        if not isinstance(result.ty, relax.TupleType):
            return [result]
        fields = range(len(result.ty.fields))
        return [self._builder.emit(relax.TupleGetItem(result, n)) for n in fields]

    def state_weight(self, first: int, end: int) -> Any:
        """The weights of the gates from ``first`` up to ``end``, as a state is multiplied with them."""
        return self._factor(self.weights.states[:, first * self.hidden : end * self.hidden])

    @property
    def projection(self) -> Any | None:
        """As a state is multiplied with it."""
        matrix = self.weights.projection
        return None if matrix is None else self._factor(matrix)

    def initial(self, given: Any, size: int) -> Any:
        """What is given for a state or a cell, (D, B, ``size``), or zeros."""
        if given is None:
            return self.constant(np.zeros(self._state(size), self.weights.states.dtype))
        return self._reshaped(given, self._state(size))

    def final(self, state: Any, size: int) -> Any:
        return self._reshaped(state, [self._directions, self._batch, size])

    def sequence(self, states: Sequence[Any]) -> Any:
        """From the states in the order of the steps, as in :class:`Results`."""
        op = self.op
        parts = [*reversed(states)] if self._backward else [*states]
        # In groups, and by few kernels: each element of a concatenation searches the parts for its own,
        # and one kernel of all parts takes minutes to compile.
        size = math.isqrt(len(parts) - 1) + 1
        while len(parts) > 1:
            groups = [parts[i : i + size] for i in range(0, len(parts), size)]
            parts = [self._joined(group) if len(group) > 1 else group[0] for group in groups]
        (whole,) = parts
        if self._directions > 1:
            # By indices, which TVM does not fuse with what reads the sequence. Slices and a
            # concatenation would become a kernel without vectors.
            steps = np.arange(self.steps)
            index = np.stack([2 * steps, 2 * steps[::-1] + 1], axis=1).reshape(-1)
            whole = op.take(whole, relax.const(index, "int64"), 0, mode="clip")
        extents = [self.steps, self._directions, self._batch, self.size]
        whole = op.reshape(whole, extents)
        return op.permute_dims(whole, [2, 0, 1, 3]) if self._batch_first else whole

    def constant(self, array: np.ndarray) -> Any:
        return relax.const(np.ascontiguousarray(array), dtype(self._x))

    def _factor(self, matrices: np.ndarray) -> Any:
        """Of a product with a state, from (D, columns, rows)."""
        factors = matrices.transpose(0, 2, 1)
        return self.constant(factors if self._directions > 1 else factors[0])

    def _joined(self, parts: Sequence[Any]) -> Any:
        return self._builder.emit_te(
            topi.concatenate, list(parts), 0, primfunc_attrs={"op_pattern": _OPAQUE}
        )

    def _state(self, size: int) -> list[int]:
        directions = [self._directions] if self._directions > 1 else []
        return [*directions, self._batch, size]

    def _reshaped(self, x: Any, extents: list[int]) -> Any:
        return x if shape(x) == extents else self.op.reshape(x, extents)
