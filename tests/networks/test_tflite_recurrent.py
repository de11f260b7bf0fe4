"""LSTMs of TFLite files, in floats and quantized, and messages about unsupported ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite")
pytest.importorskip("ai_edge_litert.interpreter")

from ai_edge_litert import schema_py_generated as schema

from networks.in_tvm import assert_tvm_agrees, run_in_tvm
from networks.tflite_models import QuantizedBuilder, TfliteBuilder
from tvmtune.errors import TvmtuneError
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.tflite.network import TfliteNetwork

TANH, RELU = schema.ActivationFunctionType.TANH, schema.ActivationFunctionType.RELU
HIDDEN, WIDTH = 6, 5
LSTM = "UNIDIRECTIONAL_SEQUENCE_LSTM"


def network(content: bytes) -> TfliteNetwork:
    return TfliteNetwork(content, name="net", label="net.tflite")


def values(seed: int, *shape: int) -> np.ndarray:
    return np.random.RandomState(seed).uniform(-1, 1, shape).astype("float32")


def lstm(
    *,
    time_major: bool = False,
    states: int = HIDDEN,
    given: dict[int, Any] | None = None,
    **options,
) -> bytes:
    """7 steps of a batch of 2. ``given`` replaces inputs of the operator; None leaves one out."""
    g = TfliteBuilder()
    shape = (7, 2) if time_major else (2, 7)
    x = g.input("x", (*shape, WIDTH))
    arrays: dict[int, Any] = {1 + i: values(i, HIDDEN, WIDTH) for i in range(4)}
    arrays |= {5 + i: values(10 + i, HIDDEN, states) for i in range(4)}
    arrays |= {12 + i: values(20 + i, HIDDEN) for i in range(4)}
    if states != HIDDEN:
        arrays[16] = values(30, states, HIDDEN)
    inputs = [x] + [-1] * 23
    for place, array in (arrays | (given or {})).items():
        inputs[place] = -1 if array is None else g.constant(array)
    for place, size in ((18, states), (19, HIDDEN)):
        inputs[place] = g.tensor(f"state{place}", (2, size))
        g.graph.tensors[inputs[place]].isVariable = True
    options = {"timeMajor": time_major, "fusedActivationFunction": TANH, **options}
    return g.content(g.add(LSTM, inputs, (*shape, states), **options))


@pytest.mark.sweep
@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("states", [HIDDEN, 4])
def test_an_lstm_computes_what_litert_computes(time_major, states):
    assert_tvm_agrees(network(lstm(time_major=time_major, states=states)))


def test_the_magnitude_of_a_cell_is_bounded():
    bounded = network(lstm(cellClip=0.1))
    assert_tvm_agrees(bounded)
    inputs = random_inputs(bounded.inputs, 0)
    (free,) = network(lstm()).reference(inputs)
    assert np.abs(free - bounded.reference(inputs)[0]).max() > 0.1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"given": {9: values(0, HIDDEN), 10: values(1, HIDDEN), 11: values(2, HIDDEN)}},
            "peepholes",
        ),
        ({"given": {1: None, 5: None, 12: None}}, "its input gate is coupled to the forget gate"),
        ({"fusedActivationFunction": RELU}, "an activation other than tanh"),
        ({"states": 4, "projClip": 0.5}, "bounds of its projection"),
    ],
)
def test_other_lstms_are_refused(changes, message):
    made = network(lstm(**changes))
    with pytest.raises(TvmtuneError, match=message) as raised:
        made.to_relax()
    assert "operator 0 (UNIDIRECTIONAL_SEQUENCE_LSTM) of net.tflite" in str(raised.value)


def quantized_lstm() -> bytes:
    """As TFLite's converter makes them: states in int8, cells in int16."""
    g = QuantizedBuilder()
    x = g.data((1, 7, WIDTH), 1 / 64)
    inputs = [x] + [-1] * 23
    for i in range(4):
        for place, width in ((1 + i, WIDTH), (5 + i, HIDDEN)):
            steps = np.rint(values(place, HIDDEN, width) * 127).astype("int8")
            inputs[place] = g.scaled(g.constant(steps), 1 / 127)
        steps = np.rint(values(20 + i, HIDDEN) * 64 * 127).astype("int32")
        inputs[12 + i] = g.scaled(g.constant(steps), 1 / (64 * 127))
    for place, size, dtype, scale in ((18, HIDDEN, "int8", 1 / 128), (19, HIDDEN, "int16", 2**-12)):
        inputs[place] = g.scaled(g.tensor(f"state{place}", (1, size), dtype), scale)
        g.graph.tensors[inputs[place]].isVariable = True
    made = g.add(LSTM, inputs, (1, 7, HIDDEN), "int8", fusedActivationFunction=TANH, cellClip=10.0)
    node = g.graph.operators[-1]
    node.intermediates = [
        g.scaled(g.tensor(f"gate{i}", (1,), "int16"), 2**-12) for i in range(4)
    ] + [g.scaled(g.tensor("hidden", (1,), "int8"), 1 / 128)]
    return g.content(g.scaled(made, 1 / 128))


@pytest.mark.slow
def test_a_quantized_lstm_is_computed_in_floats():
    made = network(quantized_lstm())
    for seed in range(3):
        inputs = random_inputs(made.inputs, seed)
        (got,), (wanted,) = run_in_tvm(made, inputs), made.reference(inputs)
        assert got.dtype == wanted.dtype == np.int8
        assert np.ptp(wanted.astype(int)) > 100
        assert np.abs(got.astype(int) - wanted.astype(int)).max() <= 3


def test_integer_weights_of_a_float_lstm_become_floats():
    """As dynamic range quantization leaves them."""
    g = QuantizedBuilder()
    x = g.input("x", (1, 7, WIDTH))
    inputs = [x] + [-1] * 23
    for i in range(4):
        for place, width in ((1 + i, WIDTH), (5 + i, HIDDEN)):
            steps = np.rint(values(place, HIDDEN, width) * 127).astype("int8")
            inputs[place] = g.scaled(g.constant(steps), 1 / 127)
        inputs[12 + i] = g.constant(values(20 + i, HIDDEN))
    for place in (18, 19):
        inputs[place] = g.tensor(f"state{place}", (1, HIDDEN))
        g.graph.tensors[inputs[place]].isVariable = True
    made = network(g.content(g.add(LSTM, inputs, (1, 7, HIDDEN), fusedActivationFunction=TANH)))
    assert_tvm_agrees(made)


def test_a_float_lstm_may_follow_quantized_layers():
    g = QuantizedBuilder()
    y = g.apply("TANH", [g.data((1, 7, WIDTH), 1 / 64)], (1, 7, WIDTH), 1 / 128)
    inputs = [g.add("DEQUANTIZE", [y], (1, 7, WIDTH))] + [-1] * 23
    for i in range(4):
        inputs[1 + i] = g.constant(values(i, HIDDEN, WIDTH))
        inputs[5 + i] = g.constant(values(10 + i, HIDDEN, HIDDEN))
        inputs[12 + i] = g.constant(values(20 + i, HIDDEN))
    for place in (18, 19):
        inputs[place] = g.tensor(f"state{place}", (1, HIDDEN))
        g.graph.tensors[inputs[place]].isVariable = True
    made = network(g.content(g.add(LSTM, inputs, (1, 7, HIDDEN), fusedActivationFunction=TANH)))
    assert_tvm_agrees(made, tolerance=0.01)
