"""Weights of fewer than 8 bits and weights that are quantized in blocks: read, and dequantized."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from networks.in_tvm import assert_equal, run_in_tvm
from networks.onnx_operators import floats
from tvmtune.errors import TvmtuneError
from tvmtune.networks import load
from tvmtune.networks.onnx import weights, wire
from tvmtune.networks.onnx.network import OnnxNetwork

INT4, UINT4 = ml_dtypes.int4, ml_dtypes.uint4


def values(dtype: type, *shape: int) -> np.ndarray:
    """Random numbers of the whole range."""
    numbers = np.asarray(np.random.default_rng(0).integers(0, 16, shape))
    return (numbers if dtype is UINT4 else numbers - 8).astype(dtype)


def product(
    weight: np.ndarray,
    scale: np.ndarray,
    zero: np.ndarray | None = None,
    *,
    opset: int = 21,
    **attributes: int,
) -> onnx.ModelProto:
    """``x`` (2, K) times a dequantized weight (K, N)."""
    inner, outer = weight.shape
    given = {"weight": weight, "scale": scale, **({} if zero is None else {"zero": zero})}
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", [*given], ["wide"], name="wide", **attributes),
            helper.make_node("MatMul", ["x", "wide"], ["y"]),
        ],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, inner])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, outer])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in given.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["int4", "uint4", "float4_e2m1fn", "int2", "uint2"])
def test_large_weights_survive_a_round_trip(tmp_path: Path, name: str):
    """Their number is odd: the last byte is not full."""
    numbers = np.random.default_rng(0).integers(0, 2, (3, 100_001))
    model = product(numbers.astype(getattr(ml_dtypes, name)), np.float32(2))
    onnx.save(model, tmp_path / "net.onnx")
    light, found = wire.read(tmp_path / "net.onnx")
    assert list(found) == ["weight"]
    np.testing.assert_array_equal(found["weight"].astype("float32"), numbers)
    assert weights.attach(light, found).graph == model.graph


def test_a_large_weight_with_too_few_bytes_is_refused(tmp_path: Path):
    model = product(values(INT4, 400, 400), np.float32(2))
    model.graph.initializer[0].dims[0] += 1
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(TvmtuneError, match=r"net\.onnx is damaged"):
        load(str(tmp_path / "net.onnx"))


def test_a_network_with_a_large_weight(tmp_path: Path):
    weight = values(INT4, 512, 300)
    onnx.save(product(weight, np.float32(0.1), INT4(3)), tmp_path / "net.onnx")
    network = load(str(tmp_path / "net.onnx"))
    x = floats(2, 512)
    expected = x @ ((weight.astype("float32") - 3) * np.float32(0.1))
    assert_equal(run_in_tvm(network, {"x": x}), [expected])
    assert_equal(network.reference({"x": x}), [expected])


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [INT4, UINT4])
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((), {}),
        ((6,), {}),
        ((10,), {"axis": 0}),
        ((3, 6), {"axis": 0, "block_size": 4}),
        ((10, 2), {"axis": -1, "block_size": 3}),
    ],
    ids=["tensor", "columns", "rows", "blocks of rows", "blocks of columns"],
)
@pytest.mark.parametrize("has_zeros", [True, False])
def test_scales_and_zero_points(has_zeros, shape, options, dtype):
    scale = np.asarray(np.abs(floats(*shape, seed=1)) + 0.1, "float32")
    zero = values(dtype, *shape) if has_zeros else None
    network = OnnxNetwork(product(values(dtype, 10, 6), scale, zero, **options), name="net")
    inputs = {"x": floats(2, 10)}
    assert_equal(run_in_tvm(network, inputs), network.reference(inputs))


def test_bytes_in_blocks():
    weight = np.arange(60, dtype="int8").reshape(10, 6)
    scale = np.abs(floats(3, 6)) + np.float32(0.1)
    network = OnnxNetwork(product(weight, scale, axis=0, block_size=4), name="net")
    inputs = {"x": floats(2, 10)}
    assert_equal(run_in_tvm(network, inputs), network.reference(inputs))


def test_floats_of_4_bits():
    weight = floats(10, 6).astype(ml_dtypes.float4_e2m1fn)
    network = OnnxNetwork(product(weight, np.float32(0.5), opset=23), name="net")
    inputs = {"x": floats(2, 10)}
    expected = inputs["x"] @ (weight.astype("float32") * np.float32(0.5))
    assert_equal(run_in_tvm(network, inputs), [expected])


def refusal(model: onnx.ModelProto) -> str:
    with pytest.raises(TvmtuneError) as caught:
        OnnxNetwork(model, name="net").to_relax()
    return str(caught.value)


def test_blocks_of_activations_are_refused():
    model = product(np.zeros((10, 6), "int8"), np.ones((3, 6), "float32"), axis=0, block_size=4)
    del model.graph.initializer[0]
    model.graph.input.append(helper.make_tensor_value_info("weight", TensorProto.INT8, [10, 6]))
    assert "node 'wide' (DequantizeLinear, opset 21) of net" in (text := refusal(model))
    assert "its first input must be constant" in text


@pytest.mark.parametrize("operator", ["Transpose", "QuantizeLinear"])
def test_others_that_read_4_bits_are_refused(operator: str):
    model = product(values(INT4, 10, 6), np.float32(2), INT4(0))
    read = {"Transpose": ["weight"], "QuantizeLinear": ["y", "scale", "zero"]}[operator]
    model.graph.node.extend(
        [
            helper.make_node(operator, read, ["small"], name="other"),
            helper.make_node("DequantizeLinear", ["small", "scale", "zero"], ["z"]),
        ]
    )
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    text = refusal(model)
    assert f"node 'other' ({operator}, opset 21) of net" in text
    assert "is a weight of INT4, which only DequantizeLinear may read" in text
