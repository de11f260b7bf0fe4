"""TFLite operators that select or write elements by their indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite")
pytest.importorskip("ai_edge_litert.interpreter")

from networks.in_tvm import assert_equal, assert_tvm_agrees, run_in_tvm
from networks.tflite_models import QuantizedBuilder, TfliteBuilder
from tvmtune.networks.tflite.network import TfliteNetwork


def network(content: bytes) -> TfliteNetwork:
    return TfliteNetwork(content, name="net", label="net.tflite")


def indices(count: int, *shape: int) -> np.ndarray:
    return np.random.RandomState(0).randint(0, count, shape).astype("int32")


@pytest.mark.parametrize(
    ("shape", "entries", "options", "result"),
    [
        ((6, 5, 3), (2, 4), {"axis": 1}, (6, 2, 4, 3)),
        ((2, 5, 3), (2, 4), {"axis": 1, "batchDims": 1}, (2, 4, 3)),
        ((2, 3, 6, 5), (2, 4), {"axis": -2, "batchDims": 1}, (2, 3, 4, 5)),
        ((2, 3, 6), (2, 3, 4, 2), {"axis": 2, "batchDims": -2}, (2, 3, 4, 2)),
        ((2, 6), (2,), {"axis": 1, "batchDims": 1}, (2,)),
    ],
    ids=["of all", "of each", "of inner rows", "of two batch axes", "one of each"],
)
def test_values_are_gathered_along_an_axis(
    shape: Any, entries: Any, options: dict[str, int], result: Any
):
    g = TfliteBuilder()
    places = g.constant(indices(shape[options["axis"]], *entries))
    y = g.add("GATHER", [g.input("x", shape), places], result, **options)
    assert_tvm_agrees(network(g.content(y)))


def test_quantized_values_are_gathered_from_their_batch():
    g = QuantizedBuilder()
    given = [g.data((2, 5, 3)), g.constant(indices(5, 2, 4))]
    options = {"axis": 1, "batchDims": 1}
    assert_tvm_agrees(network(g.content(g.apply("GATHER", given, (2, 4, 3), 0.05, **options))))


def test_indices_out_of_range_count_from_the_end():
    """LiteRT refuses them. A kernel must not leave the tensor."""
    g = TfliteBuilder()
    x, i = g.input("x", (2, 5)), g.input("i", (2, 3), "int32")
    rows = g.add("GATHER", [x, i], (2, 2, 3), axis=1)
    each = g.add("GATHER", [x, i], (2, 3), axis=1, batchDims=1)
    reshaped = g.add("RESHAPE", [i, g.constant([3, 2], "int32")], (3, 2), "int32")
    pairs = g.add("GATHER_ND", [x, reshaped], (3,))
    made = network(g.content(rows, each, pairs))
    values = np.arange(10, dtype="float32").reshape(2, 5)
    places = np.array([[-1, 9, 4], [1000, -5, 2]], "int32")
    within = places % 5
    row, column = (places.reshape(3, 2) % (2, 5)).T
    wanted = [values[:, within], np.take_along_axis(values, within, 1), values[row, column]]
    assert_equal(run_in_tvm(made, {"x": values, "i": places}), wanted)


@pytest.mark.parametrize(
    ("places", "updates"),
    [([[0], [3], [0]], (3, 5, 2)), ([[0, 1], [3, 0], [0, 1]], (3, 2))],
    ids=["rows", "columns"],
)
def test_updates_of_the_same_element_are_added(places: Any, updates: Any):
    g = TfliteBuilder()
    given = [g.constant(places, "int32"), g.input("x", updates), g.constant([4, 5, 2], "int32")]
    assert_tvm_agrees(network(g.content(g.add("SCATTER_ND", given, (4, 5, 2)))))


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_values_are_gathered_by_several_indices(axes):
    places = np.random.RandomState(0).randint(0, 4, (2, 5, axes)).astype("int32")
    shape = (2, 5, *(4, 4, 4)[axes:], 6)
    g = TfliteBuilder()
    values = g.input("x", (4, 4, 4, 6))
    assert_tvm_agrees(network(g.content(g.add("GATHER_ND", [values, g.constant(places)], shape))))
    q = QuantizedBuilder()
    y = q.apply("GATHER_ND", [q.data((4, 4, 4, 6)), q.constant(places)], shape, 0.05)
    assert_tvm_agrees(network(q.content(y)))


def test_rows_are_looked_up_in_a_table():
    g = TfliteBuilder()
    table = g.constant(np.arange(15, dtype="float32").reshape(5, 3))
    made = network(
        g.content(g.add("EMBEDDING_LOOKUP", [g.input("i", (4,), "int32"), table], (4, 3)))
    )
    inputs = {"i": np.array([4, 0, 2, 2], "int32")}
    assert_equal(run_in_tvm(made, inputs), made.reference(inputs))


@pytest.mark.parametrize(
    ("places", "shape", "values"),
    [
        ([[0, 1], [2, 0]], (3, 4), (2,)),
        ([0, 3], (5,), (2,)),
        ([[0, 1], [2, 3]], (3, 4), ()),
        (2, (4,), ()),
    ],
    ids=["pairs", "along one axis", "one value", "one place"],
)
def test_values_at_some_places_become_a_dense_tensor(places: Any, shape: Any, values: Any):
    g = TfliteBuilder()
    given = [g.constant(places, "int32"), g.constant(shape, "int32"), g.input("x", values)]
    y = g.add("SPARSE_TO_DENSE", [*given, g.constant(np.float32(7))], shape)
    assert_tvm_agrees(network(g.content(y)))
