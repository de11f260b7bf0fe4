"""Masks that write the lowest float32 for minus infinity stay masks in half precision."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper

from kernels import run_network, this_machine
from tvmtune.accuracy import relative_error
from tvmtune.arrays import narrowed
from tvmtune.networks.bfloat16 import Bfloat16Network
from tvmtune.networks.float16 import Float16Network
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.passes import pipeline

LOWEST = np.finfo(np.float32).min


def masked_softmax(*, as_node: bool) -> onnx.ModelProto:
    """``softmax(x + (1 - mask) * LOWEST)``; the factor is a weight or the result of a node."""
    factor = numpy_helper.from_array(np.array(LOWEST), "lowest")
    nodes = [
        helper.make_node("Cast", ["mask"], ["kept"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["one", "kept"], ["dropped"]),
        helper.make_node("Mul", ["dropped", "lowest"], ["added"]),
        helper.make_node("Add", ["x", "added"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["y"], axis=-1),
    ]
    if as_node:
        nodes.insert(0, helper.make_node("Constant", [], ["lowest"], value=factor))
    weights = [numpy_helper.from_array(np.float32(1.0), "one"), *([] if as_node else [factor])]
    graph = helper.make_graph(
        nodes,
        "masked",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 16]),
            helper.make_tensor_value_info("mask", TensorProto.INT64, [1, 16]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 16])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("as_node", [False, True])
@pytest.mark.parametrize("kind", [Float16Network, Bfloat16Network])
def test_a_mask_of_the_lowest_float32_drops_what_it_masks(kind, as_node: bool):
    network = kind(OnnxNetwork(masked_softmax(as_node=as_node), name="masked"))
    device = this_machine()
    program = pipeline.legalize(pipeline.prepare(network, device).graph, device)
    inputs = random_inputs(network.inputs)
    found = run_network(tvm.compile(program, tvm.target.Target(device.target)), network, inputs)[0]
    assert np.isfinite(found).all()
    assert (found[:, inputs["mask"][0] == 0] == 0).all()
    np.testing.assert_allclose(found.astype(np.float32).sum(axis=1), 1.0, atol=2e-2)
    assert relative_error(found, network.reference(inputs)[0]) < 2e-2


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)])
def test_narrowed_values_stay_finite_or_infinite(dtype: np.dtype):
    values = np.array([LOWEST, -np.inf, np.inf, np.nan, 1.5], np.float32)
    found = narrowed(values, dtype).astype(np.float32)
    assert found[0] == -float(ml_dtypes.finfo(dtype).max)
    np.testing.assert_array_equal(found[1:], values[1:])
