"""Operators of ONNX Runtime's optimizer: normalizations, activations, fused products."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from models import tiny_cnn, tiny_encoder
from networks.in_tvm import assert_equal, assert_tvm_agrees, run_in_tvm
from networks.onnx_operators import (
    assert_matches_onnxruntime,
    floats,
    operator,
    operator_network,
    quick_first,
)
from tvmtune.errors import TvmtuneError
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx.network import OnnxNetwork

onnxruntime = pytest.importorskip("onnxruntime")

X = floats(2, 5, 16)
VECTOR = {name: floats(16, seed=seed) for seed, name in enumerate(("scale", "shift", "bias"), 1)}
NAMES = [["scale", "shift", "bias"], ["scale"], ["scale", "shift"]]
IDS = np.array([[3, 1, 0, 2, 5], [4, 4, 1, 0, 9]], "int32")


@pytest.mark.parametrize("operator_name", ["Gelu", "FastGelu", "QuickGelu"])
def test_activations(operator_name: str):
    options = {"alpha": 1.3} if operator_name == "QuickGelu" else {}
    assert_matches_onnxruntime(f"ms.{operator_name}", {"x": X * 3}, **options)


@pytest.mark.parametrize("operator_name", ["BiasGelu", "FastGelu"])
def test_activations_with_a_bias(operator_name: str):
    inputs = {"x": X, "bias": VECTOR["bias"]}
    assert_matches_onnxruntime(f"ms.{operator_name}", inputs, constant=["bias"])


@pytest.mark.parametrize("skip", [X[::-1], X[:1], X[0]], ids=["whole", "one batch", "matrix"])
@pytest.mark.parametrize("names", quick_first(NAMES), ids=len)
def test_skip_layer_normalization(skip: np.ndarray, names: list[str]):
    inputs = {"x": X, "skip": skip.copy()} | {name: VECTOR[name] for name in names}
    outputs = ("y", "", "", "sum")
    assert_matches_onnxruntime(
        "ms.SkipLayerNormalization", inputs, outputs=outputs, constant=names, epsilon=1e-3
    )


def test_skip_simplified_layer_normalization():
    inputs = {"x": X, "skip": X[::-1].copy(), "scale": VECTOR["scale"], "bias": VECTOR["bias"]}
    assert_matches_onnxruntime(
        "ms.SkipSimplifiedLayerNormalization", inputs, outputs=("y", "", "", "sum")
    )


def test_simplified_layer_normalization():
    inputs = {"x": X, "scale": VECTOR["scale"]}
    assert_matches_onnxruntime("SimplifiedLayerNormalization", inputs, axis=-1, epsilon=1e-3)
    assert_matches_onnxruntime("RMSNormalization", inputs, opset=23, axis=-1, epsilon=1e-3)


@pytest.mark.parametrize("full", [True, False], ids=["all inputs", "without optional inputs"])
def test_embed_layer_normalization(full: bool):
    inputs: dict[str, Any] = {
        "ids": IDS,
        "segments": IDS % 2 if full else None,
        "words": floats(12, 16, seed=4),
        "places": floats(8, 16, seed=5),
        "kinds": floats(2, 16, seed=6) if full else None,
        "scale": VECTOR["scale"],
        "shift": VECTOR["shift"],
        "mask": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], "int32") if full else None,
        "positions": np.array([[0, 1, 2, 3, 4]], "int32") + 1 if full else None,
    }
    tables = [name for name in ("words", "places", "kinds") if inputs[name] is not None]
    outputs = ("y", "mask_index", "sum") if full else ("y", "", "sum")
    assert_matches_onnxruntime(
        "ms.EmbedLayerNormalization", inputs, outputs=outputs, constant=tables
    )


def test_random_ids_are_drawn_from_the_tables_of_an_embedding():
    tables = {"words": floats(12, 16), "places": floats(8, 16), "kinds": floats(2, 16)}
    inputs = {"ids": IDS, "segments": IDS % 2} | tables
    inputs |= {"scale": VECTOR["scale"], "shift": VECTOR["shift"]}
    network, _ = operator_network(
        "ms.EmbedLayerNormalization", inputs, constant=[*tables], outputs=("y", "")
    )
    random = random_inputs(network.inputs, seed=0, ranges=network.ranges)
    assert 1 < random["ids"].max() < 12
    assert random["segments"].max() <= 1


IMAGE, KERNEL = floats(1, 4, 6, 6), floats(8, 4, 3, 3, seed=1) / 4


@pytest.mark.parametrize(
    ("activation", "parameters"),
    quick_first(
        [
            ("LeakyRelu", [0.2]),
            ("Relu", []),
            ("Tanh", []),
            ("Sigmoid", []),
            ("Clip", [-0.5, 0.7]),
            ("HardSigmoid", [0.3, 0.4]),
        ]
    ),
)
def test_fused_conv(activation: str, parameters: list[float]):
    inputs = {"x": IMAGE, "w": KERNEL, "b": floats(8, seed=2)}
    options = {"activation_params": parameters} if parameters else {}
    assert_matches_onnxruntime(
        "ms.FusedConv",
        inputs,
        constant=["w", "b"],
        activation=activation,
        pads=[1, 1, 1, 1],
        **options,
    )


def test_fused_conv_adds_its_fourth_input():
    inputs = {"x": IMAGE, "w": KERNEL, "b": floats(8, seed=2), "z": floats(1, 8, 4, 4, seed=3)}
    assert_matches_onnxruntime("ms.FusedConv", inputs, constant=["w", "b"], activation="Relu")


@pytest.mark.parametrize(
    ("left", "right", "options"),
    [
        ((2, 3, 4), (2, 4, 5), {"alpha": 0.3}),
        ((2, 4, 3), (2, 5, 4), {"transA": 1, "transB": 1}),
        ((3, 2, 4, 6), (3, 2, 5, 6), {"transB": 1}),
        ((4, 2, 3), (2, 3, 5), {"transBatchA": 1}),
        ((3, 2, 4), (2, 3, 5), {"transBatchA": 1, "transA": 1}),
        ((4, 6), (2, 6, 5), {}),
    ],
    ids=str,
)
def test_fused_matmul(left: tuple[int, ...], right: tuple[int, ...], options: dict[str, Any]):
    if options.get("transBatchA"):
        left = (left[1], left[0], left[2]) if not options.get("transA") else left
        right = (left[1], *right[1:])
    inputs = {"a": floats(*left), "b": floats(*right, seed=1)}
    assert_matches_onnxruntime("ms.FusedMatMul", inputs, **options)


def test_fused_gemm():
    inputs = {"a": floats(4, 3), "b": floats(5, 4, seed=1), "c": floats(5, seed=2)}
    options = {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}
    assert_matches_onnxruntime("ms.FusedGemm", inputs, activation="Relu", **options)
    assert_matches_onnxruntime(
        "ms.FusedGemm", inputs, activation="LeakyRelu", activation_alpha=0.3, **options
    )


X2 = floats(4, 3)
LINES = {
    "alpha": (lambda y: 0.6 * y + 0.5, {"activation_alpha": 0.6}),
    "beta": (lambda y: 0.2 * y + 0.9, {"activation_beta": 0.9}),
    "neither": (lambda y: 0.2 * y + 0.5, {}),
}


def typed(model: onnx.ModelProto, *shape: int) -> OnnxNetwork:
    """A network whose result has a shape that ONNX Runtime need not find."""
    info = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)
    model.graph.output[0].CopyFrom(info)
    return OnnxNetwork(model, name="net")


@pytest.mark.parametrize("given", LINES)
def test_parameters_of_an_activation_have_their_own_defaults(given: str):
    line, parameters = LINES[given]
    inputs = {"a": X2, "b": floats(3, 5, seed=1)}
    model = operator("ms.FusedGemm", inputs, activation="HardSigmoid", **parameters)
    found = run_in_tvm(typed(model, 4, 5), inputs)
    assert_equal(found, [np.clip(line(X2 @ inputs["b"]), 0, 1).astype("float32")])


def test_an_activation_of_integers_is_refused_with_the_dtype():
    model = operator("ms.Gelu", {"x": IDS})
    with pytest.raises(TvmtuneError, match="its input of int32 is not supported"):
        typed(model, *IDS.shape).to_relax()


@pytest.mark.parametrize(
    ("bits", "block", "columns", "zeros"),
    [(4, 16, 40, kind) for kind in ("default", "packed", "floating")]
    + [(8, 32, 64, kind) for kind in ("default", "packed")],
)
def test_matmul_of_quantized_weights(bits: int, block: int, columns: int, zeros: str):
    rows, blocks = 6, -(-columns // block)
    random = np.random.default_rng(0)
    inputs: dict[str, Any] = {
        "x": floats(3, columns),
        "w": random.integers(0, 256, (rows, blocks, block * bits // 8)).astype("uint8"),
        "scales": random.random((rows, blocks), "float32"),
        "zeros": None,
    }
    if zeros == "packed":
        packed = -(-blocks * bits // 8)
        inputs["zeros"] = random.integers(0, 256, (rows, packed)).astype("uint8")
    elif zeros == "floating":
        inputs["zeros"] = random.random((rows, blocks), "float32") * 8
    weights = [name for name in ("w", "scales", "zeros") if inputs[name] is not None]
    options = {"bits": bits, "block_size": block, "N": rows, "K": columns}
    assert_matches_onnxruntime("ms.MatMulNBits", inputs, constant=weights, **options)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_a_quantized_table(bits: int, zeros: bool):
    random = np.random.default_rng(0)
    inputs: dict[str, Any] = {
        "table": random.integers(0, 256, (20, 64 * bits // 8)).astype("uint8"),
        "ids": random.integers(0, 20, (2, 3)),
        "scales": random.random((20, 2), "float32"),
        "zeros": None,
    }
    if zeros:
        inputs["zeros"] = random.integers(0, 256, (20, 2 * bits // 8)).astype("uint8")
    weights = [name for name in ("table", "scales", "zeros") if inputs[name] is not None]
    options = {"bits": bits, "block_size": 32, "gather_axis": 0, "quantize_axis": 1}
    assert_matches_onnxruntime("ms.GatherBlockQuantized", inputs, constant=weights, **options)


def test_activations_of_quantized_weights_stay_floating_point():
    random = np.random.default_rng(0)
    inputs = {
        "x": floats(3, 128),
        "w": random.integers(0, 256, (32, 4, 16)).astype("uint8"),
        "scales": random.random((32, 4), "float32"),
    }
    options = {"bits": 4, "block_size": 32, "N": 32, "K": 128, "accuracy_level": 4}
    assert_matches_onnxruntime("ms.MatMulNBits", inputs, constant=["w", "scales"], **options)


def optimized(model: onnx.ModelProto, level: str, path: Path) -> onnx.ModelProto:
    """The model as ONNX Runtime writes it at an optimization level."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    return onnx.load(path)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("make", "fused"), [(tiny_cnn, "FusedConv"), (tiny_encoder, "FusedMatMul")]
)
def test_a_model_that_onnxruntime_optimized(make: Any, fused: str, tmp_path: Path):
    model = optimized(make(), "ORT_ENABLE_EXTENDED", tmp_path / "model.onnx")
    assert fused in {node.op_type for node in model.graph.node}
    assert_tvm_agrees(OnnxNetwork(model, name="net"))


def test_a_layout_for_one_machine_is_refused_with_the_level_to_save_at(tmp_path: Path):
    model = optimized(tiny_cnn(), "ORT_ENABLE_ALL", tmp_path / "model.onnx")
    if all(node.domain != "com.microsoft.nchwc" for node in model.graph.node):
        pytest.skip("ONNX Runtime has no such layout for this machine")
    assert "ORT_ENABLE_EXTENDED" in refusal(model)


def test_shapes_are_known_behind_operators_that_shape_inference_does_not_know():
    model = operator("ms.QuickGelu", {"x": X})
    model.graph.node[0].output[0] = "activated"
    model.graph.node.extend(
        [
            helper.make_node("Shape", ["activated"], ["shape"]),
            helper.make_node("Split", ["shape"], ["batch", "length", "width"], num_outputs=3),
            helper.make_node("Mul", ["length", "width"], ["joint"]),
            helper.make_node("Concat", ["batch", "joint"], ["target"], axis=0),
            helper.make_node("Reshape", ["activated", "target"], ["y"]),
        ]
    )
    network = OnnxNetwork(model, name="net")
    assert network.outputs[0].shape == (2, 80)
    assert_tvm_agrees(network)


def refusal(model: onnx.ModelProto) -> str:
    with pytest.raises(TvmtuneError) as raised:
        OnnxNetwork(model, name="net").to_relax()
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_an_unsupported_activation_is_refused_with_the_node():
    inputs = {"a": floats(4, 3), "b": floats(3, 4)}
    network, _ = operator_network(
        "ms.FusedGemm", inputs, activation="Elu", alpha=1.0, activation_alpha=1.0
    )
    with pytest.raises(TvmtuneError) as raised:
        network.to_relax()
    assert "node 'the_node' (com.microsoft.FusedGemm, opset 1) of net" in str(raised.value)
    assert "its activation Elu is not supported" in str(raised.value)


def test_operators_of_a_machine_s_layout_are_refused_with_the_level_to_save_at():
    text = refusal(operator("com.microsoft.nchwc.Conv", {"x": IMAGE, "w": KERNEL}))
    assert "node 'the_node' (com.microsoft.nchwc.Conv, opset 1) of net" in text
    assert "ORT_ENABLE_EXTENDED" in text


def test_onnxruntime_is_needed_for_its_own_operators(monkeypatch: pytest.MonkeyPatch):
    model = operator("ms.QuickGelu", {"x": X})
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "QuickGelu, opset 1) of net needs ONNX Runtime" in refusal(model)


def test_a_quantized_operator_is_refused_with_a_remedy():
    inputs = {"a": floats(4, 3), "b": np.ones((3, 4), "int8"), "scale": np.float32([0.1])}
    network, _ = operator_network("ms.DynamicQuantizeMatMul", inputs)
    with pytest.raises(TvmtuneError, match="give the network in float32"):
        network.to_relax()
