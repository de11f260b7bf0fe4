"""Random ids of tokens are valid for every table that they are looked up in."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvmtune import networks
from tvmtune.bench.verify import make_check
from tvmtune.networks.inputs import inputs_of
from tvmtune.networks.onnx.network import OnnxNetwork


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


def test_a_library_is_checked_with_ids_of_the_whole_table():
    assert make_check(looked_up(1000))["ranges"] == {"ids": (0, 999)}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_every_dtype_keeps_the_ranges(dtype: str):
    network = networks.load("bert-base", shapes={"input_ids": (1, 4)}, dtype=dtype)
    assert inputs_of(network, 0)["input_ids"].max() > 1000
