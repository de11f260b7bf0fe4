"""Random ids of tokens are valid for every table that they are looked up in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvmtune import api, networks
from tvmtune.bench.verify import make_check, run_check
from tvmtune.networks.inputs import inputs_of
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.runtime.library import Library


def looked_up(rows: int, *further: int) -> OnnxNetwork:
    """Rows of tables by ``ids``, through a reshape; and ``mask``, which indexes nothing."""
    tables = [np.arange(2 * n, dtype=np.float32).reshape(n, 2) for n in (rows, *further)]
    weights = [numpy_helper.from_array(t, f"table{i}") for i, t in enumerate(tables)]
    weights.append(numpy_helper.from_array(np.array([8]), "flat"))
    nodes = [
        helper.make_node("Reshape", ["ids", "flat"], ["row"]),
        helper.make_node("Cast", ["mask"], ["kept"], to=TensorProto.FLOAT),
        *(
            helper.make_node("Gather", [f"table{i}", "row"], [f"found{i}"])
            for i in range(len(tables))
        ),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [2, 4])
    mask = helper.make_tensor_value_info("mask", TensorProto.INT64, [4])
    names = ["kept", *(f"found{i}" for i in range(len(tables)))]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
    graph = helper.make_graph(nodes, "lookup", [ids, mask], outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return OnnxNetwork(model, name="lookup")


def test_ids_take_the_range_of_their_table_and_masks_stay_zeros_and_ones():
    network = looked_up(1000)
    assert network.ranges == {"ids": (0, 999)}
    inputs = inputs_of(network, 0)
    assert 500 < inputs["ids"].max() < 1000
    assert set(inputs["mask"].tolist()) == {0, 1}


def test_ids_of_several_tables_are_valid_for_the_shortest():
    assert looked_up(1000, 7, 50).ranges == {"ids": (0, 6)}


def test_edges_of_a_graph_are_between_all_of_its_nodes():
    text = """<ir_version: 8, opset_import: ["" : 18]>
    net (float[30,4] x, int64[2,50] edges, int64[3,1] rows) => (float[30,4] y, float[3,4] z)
    <int64 zero = {0}, int64 one = {1}, int64[1] last = {-1}, int64[2] wide = {50, 4}>
    {
      sources = Gather (edges, zero)
      targets = Gather (edges, one)
      places = Unsqueeze (sources, last)
      messages = GatherND (x, places)
      column = Unsqueeze (targets, last)
      all = Expand (column, wide)
      y = ScatterElements <axis = 0, reduction = "add"> (x, all, messages)
      z = GatherND (x, rows)
    }"""
    network = OnnxNetwork(onnx.parser.parse_model(text), name="graph")
    assert network.ranges == {"edges": (0, 29), "rows": (0, 29)}


@pytest.mark.parametrize("opset", [18, 10])
def test_joined_indices_are_within_what_they_index(opset: int):
    operator = "ScatterElements" if opset > 10 else "Scatter"
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]>
    net (float[30,4] x, int64[2,4] a, int64[1,4] b, float[3,4] new) => (float[30,4] y)
    {{
      rows = Concat <axis = 0> (a, b)
      y = {operator} <axis = 0> (x, rows, new)
    }}"""
    network = OnnxNetwork(onnx.parser.parse_model(text), name="rows")
    assert network.ranges == {"a": (0, 29), "b": (0, 29)}


def test_a_library_is_checked_with_ids_of_the_whole_table():
    assert make_check(looked_up(1000))["ranges"] == {"ids": (0, 999)}


TOKENS, LENGTH, BATCH = 20, 6, 2


def decoder(*, masked: bool) -> onnx.ModelProto:
    """Attention of a table's rows; its lengths are the sums of a mask, or inputs."""
    nodes = [helper.make_node("Gather", ["table", "ids"], ["x"])]
    names = {"ids": (TensorProto.INT64, [BATCH, LENGTH])}
    if masked:
        names["mask"] = (TensorProto.INT64, [BATCH, LENGTH])
        nodes += [
            helper.make_node("ReduceSum", ["mask", "one"], ["sums"], keepdims=0),
            helper.make_node("Sub", ["sums", "one"], ["wide_last"]),
            helper.make_node("Cast", ["wide_last"], ["last"], to=TensorProto.INT32),
            helper.make_node("Shape", ["mask"], ["extents"]),
            helper.make_node("Gather", ["extents", "one"], ["wide_total"]),
            helper.make_node("Cast", ["wide_total"], ["total"], to=TensorProto.INT32),
        ]
    else:
        names |= {"last": (TensorProto.INT32, [BATCH]), "total": (TensorProto.INT32, [1])}
    inputs = ["x", "", "", "", "", "last", "total"]
    options = {"domain": "com.microsoft", "num_heads": 2, "kv_num_heads": 1}
    nodes.append(
        helper.make_node("GroupQueryAttention", inputs, ["y", "keys", "values"], **options)
    )
    table = np.random.default_rng(0).standard_normal((TOKENS, 64)).astype("float32")
    graph = helper.make_graph(
        nodes,
        "decoder",
        [helper.make_tensor_value_info(name, *kind) for name, kind in names.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [BATCH, LENGTH, 32])],
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.array([1]), "one")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.slow
def test_sequences_are_whole_where_results_beyond_them_are_undefined(tmp_path: Path):
    pytest.importorskip("onnxruntime")
    path = tmp_path / "decoder.onnx"
    onnx.save(decoder(masked=True), path)
    plan = api.plan(api.load(str(path)))
    assert plan.network.ranges == {"ids": (0, TOKENS - 1), "mask": (1, 1)}
    library = Library.open(api.compile(plan, tmp_path / "lib.so").path)
    assert run_check(library, library.metadata["check"]).passed


def test_lengths_are_those_of_whole_sequences():
    pytest.importorskip("onnxruntime")
    lengths = {"last": (LENGTH - 1, LENGTH - 1), "total": (LENGTH, LENGTH)}
    network = OnnxNetwork(decoder(masked=False), name="decoder")
    assert network.ranges == {"ids": (0, TOKENS - 1)} | lengths


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_every_dtype_keeps_the_ranges(dtype: str):
    network = networks.load("bert-base", shapes={"input_ids": (1, 4)}, dtype=dtype)
    assert inputs_of(network, 0)["input_ids"].max() > 1000
