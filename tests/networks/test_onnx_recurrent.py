"""LSTM, GRU and RNN, unrolled, compared with ONNX Runtime or, where it lacks them, with onnx."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from networks.in_tvm import assert_equal, run_in_tvm
from networks.onnx_operators import assert_matches_onnxruntime, floats, operator, quick_first
from tvmtune.errors import TvmtuneError
from tvmtune.networks.onnx.converters.recurrent import MOST_STEPS
from tvmtune.networks.onnx.network import OnnxNetwork

pytest.importorskip("onnxruntime")

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, FEATURES, HIDDEN = 5, 3, 4
WEIGHTS = ("w", "r", "b")


def inputs_of(
    name: str, directions: int = 1, batch: int = 1, *, states: bool = True, layout: int = 0
) -> dict[str, Any]:
    """Inputs of an operator; ``states``: with initial states."""
    gates = GATES[name]
    state = (batch, directions, HIDDEN) if layout else (directions, batch, HIDDEN)
    inputs: dict[str, Any] = {
        "x": floats(*((batch, STEPS) if layout else (STEPS, batch)), FEATURES),
        "w": floats(directions, gates * HIDDEN, FEATURES, seed=1),
        "r": floats(directions, gates * HIDDEN, HIDDEN, seed=2),
        "b": floats(directions, 2 * gates * HIDDEN, seed=3),
        "lengths": None,
    }
    if states:
        inputs["h"] = floats(*state, seed=4)
        if name == "LSTM":
            inputs["c"] = floats(*state, seed=5)
    return inputs


def outputs_of(name: str) -> tuple[str, ...]:
    return ("y", "y_h", "y_c") if name == "LSTM" else ("y", "y_h")


def attributes_of(direction: str, **others: Any) -> dict[str, Any]:
    return {"hidden_size": HIDDEN, "direction": direction, **others}


DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
CASES = [
    (name, direction, batch, states)
    for name in GATES
    for direction in DIRECTIONS
    for batch, states in ((3, True), (1, False))
]
QUICK = [
    ("LSTM", "bidirectional", 3, True),
    ("GRU", "reverse", 1, False),
    ("RNN", "bidirectional", 1, True),
]


@pytest.mark.parametrize(
    ("name", "direction", "batch", "states"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES if case not in QUICK)],
)
def test_directions_batches_and_initial_states(name: str, direction: str, batch: int, states: bool):
    assert_matches_onnxruntime(
        name,
        inputs_of(name, DIRECTIONS[direction], batch, states=states),
        constant=WEIGHTS,
        outputs=outputs_of(name),
        **attributes_of(direction),
    )


@pytest.mark.parametrize("direction", quick_first(["bidirectional", "forward"]))
def test_a_reset_gate_after_the_product(direction: str):
    assert_matches_onnxruntime(
        "GRU",
        inputs_of("GRU", DIRECTIONS[direction], 3),
        constant=WEIGHTS,
        outputs=("y", "y_h"),
        **attributes_of(direction, linear_before_reset=1),
    )


@pytest.mark.parametrize("linear", quick_first([1, 0]))
def test_no_bias(linear: int):
    inputs = inputs_of("GRU") | {"b": None}
    options = attributes_of("forward", linear_before_reset=linear)
    assert_matches_onnxruntime("GRU", inputs, constant=("w", "r"), **options)


@pytest.mark.parametrize(
    ("name", "outputs"),
    quick_first(
        [
            ("LSTM", ("", "", "y_c")),
            ("LSTM", ("", "y_h", "")),
            ("LSTM", ("y",)),
            ("GRU", ("", "y_h")),
            ("RNN", ("", "y_h")),
        ]
    ),
)
def test_some_of_the_outputs(name: str, outputs: tuple[str, ...]):
    options = attributes_of("forward")
    assert_matches_onnxruntime(name, inputs_of(name), constant=WEIGHTS, outputs=outputs, **options)


@pytest.mark.parametrize("steps", [1, 2])
def test_few_steps(steps: int):
    inputs = inputs_of("RNN", 2)
    inputs["x"] = inputs["x"][:steps]
    options = attributes_of("bidirectional")
    assert_matches_onnxruntime("RNN", inputs, constant=WEIGHTS, outputs=("y", "y_h"), **options)


def test_lengths_that_are_those_of_the_sequence():
    inputs = inputs_of("RNN", batch=3) | {"lengths": np.full(3, STEPS, "int32")}
    options = attributes_of("forward")
    assert_matches_onnxruntime("RNN", inputs, constant=(*WEIGHTS, "lengths"), **options)


@pytest.mark.parametrize(
    ("name", "activations"),
    quick_first(
        [
            ("LSTM", ["sigmoid", "Relu", "Tanh"]),
            ("GRU", ["Sigmoid", "Tanh"]),
            ("RNN", ["Relu"]),
        ]
    ),
)
def test_activations(name: str, activations: list[str]):
    options = attributes_of("bidirectional", activations=activations * 2)
    assert_matches_onnxruntime(name, inputs_of(name, 2), constant=WEIGHTS, **options)


@pytest.mark.parametrize("direction", ["bidirectional", "reverse"])
@pytest.mark.parametrize("name", quick_first(["LSTM", "GRU", "RNN"]))
def test_the_batch_as_the_first_axis(name: str, direction: str):
    """ONNX Runtime has no kernels for it: expected are the results of the other layout, transposed."""
    directions, outputs = DIRECTIONS[direction], outputs_of(name)
    first = inputs_of(name, directions, 3, layout=1)
    second = dict(first)
    for key in ("x", "h", "c"):
        if key in first:
            second[key] = np.ascontiguousarray(first[key].swapaxes(0, 1))
    options: dict[str, Any] = {"constant": WEIGHTS, "outputs": outputs}
    network = typed(
        operator(name, first, **options, **attributes_of(direction, layout=1)),
        [(3, STEPS, directions, HIDDEN), *[(3, directions, HIDDEN)] * (len(outputs) - 1)],
    )
    other = typed(
        operator(name, second, **options, **attributes_of(direction)),
        [(STEPS, directions, 3, HIDDEN), *[(directions, 3, HIDDEN)] * (len(outputs) - 1)],
    )
    y, *states = other.reference({spec.name: second[spec.name] for spec in other.inputs})
    expected = [y.transpose(2, 0, 1, 3), *(state.swapaxes(0, 1) for state in states)]
    assert_equal(run_in_tvm(network, first), expected)


def typed(model: onnx.ModelProto, shapes: list[tuple[int, ...]]) -> OnnxNetwork:
    """The network of a model whose outputs get these shapes."""
    for info, shape in zip(model.graph.output, shapes, strict=True):
        info.CopyFrom(helper.make_tensor_value_info(info.name, onnx.TensorProto.FLOAT, shape))
    return OnnxNetwork(model, name="net")


def test_weights_that_the_file_computes_are_constants():
    """As PyTorch's exporter writes them: gates in another order, in slices of large weights."""
    hidden = 64
    inputs: dict[str, Any] = {
        "x": floats(2, 1, FEATURES),
        "w": floats(hidden, FEATURES, seed=1) / 8,
        "r": floats(hidden, hidden + 8, seed=2) / 8,
    }
    weights = [numpy_helper.from_array(inputs[name], name) for name in ("w", "r")]
    numbers = {"zero": [0], "half": [hidden // 2], "end": [hidden], "one": [1]}
    weights += [numpy_helper.from_array(np.array(n), name) for name, n in numbers.items()]
    nodes = [
        helper.make_node("Slice", ["r", "zero", "end", "one"], ["square"]),
        helper.make_node("Slice", ["square", "zero", "half", "zero"], ["upper"]),
        helper.make_node("Slice", ["square", "half", "end", "zero"], ["lower"]),
        helper.make_node("Concat", ["lower", "upper"], ["ordered"], axis=0),
        helper.make_node("Unsqueeze", ["ordered", "zero"], ["r3"]),
        helper.make_node("Unsqueeze", ["w", "zero"], ["w3"]),
        helper.make_node("RNN", ["x", "w3", "r3"], ["y"], hidden_size=hidden),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2, 1, FEATURES))
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (2, 1, 1, hidden))
    graph = helper.make_graph(nodes, "ordered", [x], [y], weights)
    opsets = [helper.make_opsetid("", 20)]
    network = OnnxNetwork(helper.make_model(graph, opset_imports=opsets, ir_version=10), name="net")
    assert "relax.strided_slice" not in str(network.to_relax()["main"].script())
    given = {"x": inputs["x"]}
    assert_equal(run_in_tvm(network, given), network.reference(given))


def error_of(name: str, changed: dict[str, Any], **options: Any) -> str:
    """The message about an operator, some of whose inputs are ``changed``."""
    inputs = inputs_of(name) | changed
    options = {"constant": WEIGHTS, "hidden_size": HIDDEN, **options}
    model = operator(name, inputs, **options)
    steps = inputs["x"].shape[0]
    with pytest.raises(TvmtuneError) as caught:
        typed(model, [(steps, 1, 1, HIDDEN)]).to_relax()
    message = str(caught.value)
    assert f"node 'the_node' ({name}, opset 20) of net cannot be imported" in message
    return message


def test_peepholes_are_refused():
    peepholes = {"p": floats(1, 3 * HIDDEN)}
    message = error_of("LSTM", peepholes, constant=(*WEIGHTS, "p"))
    assert "its peepholes, the input P, are not supported" in message


@pytest.mark.parametrize(
    ("attributes", "cause"),
    [
        ({"clip": 3.0}, "its attribute clip=3.0 is not supported"),
        ({"input_forget": 1}, "its attribute input_forget=1 is not supported"),
        (
            {"activations": ["Sigmoid", "Softsign", "Tanh"]},
            "its activation Softsign is not supported",
        ),
        ({"direction": "sideways"}, "its direction 'sideways' is not known"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_attributes_that_are_refused(attributes: dict[str, Any], cause: str):
    assert cause in error_of("LSTM", {}, **attributes)


def test_different_activations_of_the_directions_are_refused():
    inputs = inputs_of("RNN", 2)
    message = error_of("RNN", inputs, direction="bidirectional", activations=["Tanh", "Relu"])
    assert "its activations Tanh, Relu are not supported" in message


def test_other_lengths_are_refused():
    cause = f"its sequence_lens must be constant and all {STEPS}"
    lengths = {"lengths": np.array([STEPS - 1], "int32")}
    assert cause in error_of("GRU", lengths, constant=(*WEIGHTS, "lengths"))
    assert cause in error_of("GRU", lengths)


def test_weights_that_are_not_constant_are_refused():
    assert "its weights R must be constant" in error_of("RNN", {}, constant=("w", "b"))


def test_too_many_steps_are_refused():
    x = {"x": floats(MOST_STEPS + 1, 1, FEATURES)}
    assert f"its sequence has {MOST_STEPS + 1} steps" in error_of("RNN", x)
