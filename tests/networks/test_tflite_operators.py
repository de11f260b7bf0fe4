"""TFLite operators that files of others have, and that TVM's importer lacks or gets wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite")
pytest.importorskip("ai_edge_litert.interpreter")

from networks.in_tvm import assert_equal, assert_tvm_agrees, run_in_tvm
from networks.tflite_models import (
    RELU,
    SAME,
    VALID,
    QuantizedBuilder,
    TfliteBuilder,
    weights,
)
from tvmtune.errors import TvmtuneError
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.tflite.network import TfliteNetwork


def network(content: bytes) -> TfliteNetwork:
    return TfliteNetwork(content, name="net", label="net.tflite")


@pytest.mark.parametrize(
    ("shape", "keeps", "result"),
    [
        ((2, 3, 4, 5), False, (2, 7)),  # as micro_speech has it
        ((4, 3, 60), False, (12, 7)),
        ((4, 3, 60), True, (4, 3, 7)),
    ],
)
def test_a_product_flattens_what_has_more_axes(shape, keeps, result):
    g = TfliteBuilder()
    x, matrix, bias = g.input("x", shape), g.constant(weights(0, 7, 60)), g.constant(weights(1, 7))
    y = g.add("FULLY_CONNECTED", [x, matrix, bias], result, keepNumDims=keeps)
    made = network(g.content(y))
    assert [spec.shape for spec in made.outputs] == [result]
    assert_tvm_agrees(made)


def test_places_of_maxima_are_integers_of_the_declared_type():
    """MoveNet divides them by an int32."""
    g = TfliteBuilder()
    x, axis = g.input("x", (3, 96)), g.constant(1, "int32")
    place = g.add("ARG_MAX", [x, axis], (3,), "int32", outputType=2)
    row = g.add("FLOOR_DIV", [place, g.constant(48, "int32")], (3,), "int32")
    made = network(g.content(row, place))
    assert [spec.dtype for spec in made.outputs] == ["int32", "int32"]
    assert_tvm_agrees(made)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_maxima_of_quantized_values_are_found_in_the_integers(dtype):
    g = QuantizedBuilder(dtype)
    x, axis = g.data((1, 5, 5, 21)), g.constant(3, "int32")
    made = network(g.content(g.add("ARG_MAX", [x, axis], (1, 5, 5), "int32", outputType=2)))
    assert "dequantize" not in made.to_relax().script(show_meta=False)
    assert_tvm_agrees(made)


def test_tensors_of_the_same_name_are_told_apart():
    """Names are for readers; some tools leave them out."""
    for name in ("same", ""):
        g = TfliteBuilder()
        x = g.input("x", (2, 3))
        y = g.add("SUB", [g.add("EXP", [x], (2, 3)), g.add("ABS", [x], (2, 3))], (2, 3))
        for tensor in g.graph.tensors[x + 1 :]:
            tensor.name = name
        assert_tvm_agrees(network(g.content(y)))


@pytest.mark.parametrize(
    ("kernel", "outputs", "biased", "options"),
    [
        (3, 8, True, {"padding": SAME, "fusedActivationFunction": RELU}),
        (3, 7, False, {"padding": SAME}),
        (3, 10, True, {"padding": VALID}),  # one more than the pixels give
        (1, 8, True, {"padding": SAME}),
    ],
    ids=["activation", "odd", "larger", "small kernel"],
)
def test_transposed_convolutions_have_the_declared_size(
    kernel: int, outputs: int, biased: bool, options: dict[str, int]
):
    g = TfliteBuilder()
    shape = (1, outputs, outputs, 5)
    given = [g.constant(shape, "int32"), g.constant(weights(0, 5, kernel, kernel, 3))]
    given += [g.input("x", (1, 4, 4, 3)), g.constant(weights(1, 5)) if biased else -1]
    y = g.add("TRANSPOSE_CONV", given, shape, strideW=2, strideH=2, **options)
    assert_tvm_agrees(network(g.content(y)))


@pytest.mark.parametrize(
    ("left", "right", "constant", "options"),
    [
        ((2, 3, 4), (2, 4, 5), True, {}),
        ((1, 4, 3), (2, 5, 4), False, {"adjX": True, "adjY": True}),
        ((3, 4), (2, 4, 5), False, {}),
    ],
    ids=["constant", "transposed", "of another rank"],
)
def test_products_of_batches(left: Any, right: Any, constant: bool, options: dict[str, bool]):
    g = TfliteBuilder()
    x = g.input("x", left)
    other = g.constant(weights(0, *right)) if constant else g.input("y", right)
    assert_tvm_agrees(network(g.content(g.add("BATCH_MATMUL", [x, other], (2, 3, 5), **options))))


@pytest.mark.parametrize(
    ("operator", "condition"), [("SELECT", (3,)), ("SELECT_V2", (3,)), ("SELECT", (3, 3))]
)
def test_a_condition_of_one_axis_selects_rows_or_is_broadcast(operator: str, condition: Any):
    g = TfliteBuilder()
    zeros = g.constant(np.zeros(condition, "float32"))
    is_positive = g.add("GREATER", [g.input("c", condition), zeros], condition, "bool")
    y = g.add(operator, [is_positive, g.input("x", (3, 3)), g.input("y", (3, 3))], (3, 3))
    made = network(g.content(y))
    inputs = random_inputs(made.inputs, 1)
    inputs["c"] = np.resize([1, -1, 1], condition).astype("float32")
    assert_equal(run_in_tvm(made, inputs), made.reference(inputs))


def test_means_of_integers_are_rounded_towards_zero():
    g = TfliteBuilder()
    x = g.input("x", (2, 3, 4), "int32")
    shifted = g.add("SUB", [x, g.constant(4, "int32")], (2, 3, 4), "int32")
    axes = g.constant([1, -1], "int32")
    made = network(
        g.content(
            g.add("MEAN", [x, axes], (2,), "int32"),
            g.add("MEAN", [shifted, axes], (2, 1, 1), "int32", keepDims=True),
        )
    )
    inputs = {"x": np.arange(-3, 21, dtype="int32").reshape(2, 3, 4)}
    assert_equal(run_in_tvm(made, inputs), made.reference(inputs))


@pytest.mark.parametrize("exclusive", [False, True])
def test_running_sums_may_begin_at_the_end(exclusive: bool):
    g = TfliteBuilder()
    given = [g.input("x", (3, 4)), g.constant(1, "int32")]
    y = g.add("CUMSUM", given, (3, 4), reverse=True, exclusive=exclusive)
    assert_tvm_agrees(network(g.content(y)))


@pytest.mark.parametrize("shape", [(2, 3, 3), (3, 5), (2, 5, 3)], ids=str)
def test_diagonals_are_written(shape: Any):
    g = TfliteBuilder()
    extent = min(shape[-2:])
    values = g.input("d", (*shape[:-2], extent))
    made = g.add("MATRIX_DIAG", [values], (*shape[:-2], extent, extent))
    changed = g.add("MATRIX_SET_DIAG", [g.input("x", shape), values], shape)
    assert_tvm_agrees(network(g.content(made, changed)))


@pytest.mark.parametrize("approximate", [True, False])
def test_gelu_is_approximated_where_the_file_says_so(approximate: bool):
    g = TfliteBuilder()
    x = g.input("x", (4, 64))
    made = network(g.content(g.add("GELU", [x], (4, 64), approximate=approximate)))
    assert_tvm_agrees(made)


def detector(*, quantized: bool = False, **options: int) -> bytes:
    """What ends SSD's networks: 12 boxes at 4 places, of 3 classes and the background."""
    boxes, scores = (1, 12, 4), (1, 12, 4)
    rng = np.random.RandomState(1)
    centers = np.repeat(rng.uniform(0.2, 0.8, (4, 2)), 3, axis=0)
    anchors = np.concatenate([centers, np.full((12, 2), 0.2)], axis=1).astype("float32")
    g = QuantizedBuilder("uint8")
    if quantized:
        inputs = [g.data(boxes, 0.02), g.scaled(g.input("scores", scores, "uint8"), 1 / 256, 0)]
        places = g.scaled(g.constant(np.rint(anchors * 200), "uint8"), 1 / 200, 0)
    else:
        inputs, places = [g.input("boxes", boxes), g.input("scores", scores)], g.constant(anchors)
    found = g.custom(
        "TFLite_Detection_PostProcess",
        [*inputs, places],
        [(1, 6, 4), (1, 6), (1, 6), (1,)],
        **{
            "max_detections": 6,
            "max_classes_per_detection": 1,
            "detections_per_class": 6,
            "nms_score_threshold": 0.3,
            "nms_iou_threshold": 0.5,
            "num_classes": 3,
            "y_scale": 10.0,
            "x_scale": 10.0,
            "h_scale": 5.0,
            "w_scale": 5.0,
            **options,
        },
    )
    return g.content(*found)


@pytest.mark.slow
@pytest.mark.parametrize("quantized", [False, True])
def test_detections_are_those_of_litert(quantized):
    made = network(detector(quantized=quantized))
    for seed in range(3):
        rng = np.random.RandomState(seed)
        # All scores differ, so that there is one right order.
        steps = rng.permutation(48).reshape(1, 12, 4) * 5 + 1
        boxes = rng.randint(96, 160, (1, 12, 4))
        if quantized:
            given = [boxes.astype("uint8"), steps.astype("uint8")]
        else:
            given = [((boxes - 128) * 0.02).astype("float32"), (steps / 256).astype("float32")]
        inputs = {spec.name: value for spec, value in zip(made.inputs, given, strict=True)}
        wanted = made.reference(inputs)
        assert 2 <= wanted[3][0] < 6
        found = int(wanted[3][0])
        got = run_in_tvm(made, inputs)
        assert got[3] == wanted[3]
        assert_equal(got, wanted)
        assert not any(each[:, found:].any() for each in wanted[:3]), (
            "LiteRT leaves them as they were"
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_regular_nms": 1}, "suppresses boxes of each class alone"),
        ({"max_classes_per_detection": 2}, "returns 2 classes of a box"),
    ],
)
def test_other_detections_are_refused(options, message):
    with pytest.raises(TvmtuneError, match=message) as raised:
        network(detector(**options))
    assert "operator 0 (TFLite_Detection_PostProcess) of net.tflite" in str(raised.value)
    assert "convert the network with" in str(raised.value)
