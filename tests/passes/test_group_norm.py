"""Normalizations of groups of channels: accurate for large means and images, in any layout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper

from tvmtune import api
from tvmtune.accuracy import relative_error
from tvmtune.networks.bfloat16 import Bfloat16Network
from tvmtune.networks.float16 import Float16Network
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.passes.bindings import bindings, operator_of
from tvmtune.runtime.library import Library

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def the_same_data_in_any_order_of_tests(monkeypatch):
    monkeypatch.setitem(globals(), "RNG", np.random.default_rng(0))


def model(
    nodes: list[onnx.NodeProto],
    extents: tuple[int, ...],
    kind: int = TensorProto.FLOAT,
    opset: int = 21,
    tensors: Sequence[onnx.TensorProto] = (),
    **weights: np.ndarray,
) -> OnnxNetwork:
    graph = helper.make_graph(
        nodes,
        "norm",
        [helper.make_tensor_value_info("x", kind, extents)],
        [helper.make_tensor_value_info("y", kind, None)],
        [*tensors, *(numpy_helper.from_array(array, name) for name, array in weights.items())],
    )
    opsets = [helper.make_opsetid("", opset)]
    return OnnxNetwork(helper.make_model(graph, opset_imports=opsets, ir_version=9), name="norm")


def instance_norm(shape: tuple[int, ...], kind: int = TensorProto.FLOAT) -> OnnxNetwork:
    node = helper.make_node("InstanceNormalization", ["x", "one", "zero"], ["y"])
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    one, zero = np.ones(shape[1], dtype), np.zeros(shape[1], dtype)
    return model([node], shape, kind, one=one, zero=zero)


def group_norm(shape: tuple[int, ...], groups: int) -> OnnxNetwork:
    node = helper.make_node("GroupNormalization", ["x", "scale", "shift"], ["y"], num_groups=groups)
    scale, shift = RNG.standard_normal((2, shape[1])).astype("float32")
    return model([node], shape, scale=scale, shift=shift)


def as_pytorch_exports(shape: tuple[int, ...], groups: int) -> OnnxNetwork:
    """A convolution, the group norm, and a convolution."""
    channels = shape[1]
    ones = [1] * (len(shape) - 2)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Reshape", ["a", "split"], ["b"]),
        helper.make_node("InstanceNormalization", ["b", "one", "zero"], ["c"]),
        helper.make_node("Reshape", ["c", "shape"], ["d"]),
        helper.make_node("Mul", ["d", "scale"], ["e"]),
        helper.make_node("Add", ["e", "shift"], ["f"]),
        helper.make_node("Conv", ["f", "w"], ["y"]),
    ]
    weight = RNG.standard_normal((channels, channels, *ones)).astype("float32")
    return model(
        nodes,
        shape,
        w=weight / np.float32(np.sqrt(channels)),
        split=np.array([0, groups, -1]),
        one=RNG.standard_normal(groups).astype("float32"),
        zero=RNG.standard_normal(groups).astype("float32"),
        shape=np.array(shape),
        scale=RNG.standard_normal((channels, *ones)).astype("float32"),
        shift=RNG.standard_normal((channels, *ones)).astype("float32"),
    )


def normalized(x: np.ndarray, groups: int) -> np.ndarray:
    """By the definition, in float64."""
    wide = x.astype("float64").reshape(len(x), groups, -1)
    deviation = np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    return ((wide - wide.mean(-1, keepdims=True)) / deviation).reshape(x.shape)


def operators(mod: tvm.IRModule) -> list[str]:
    return [operator_of(binding.value) for binding in bindings(mod)]


@pytest.mark.sweep
@pytest.mark.parametrize("mean", [0, 30, 1000])
@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((1, 24, 12, 12), 1),
        ((2, 64, 16, 16), 32),
        ((1, 10, 5, 7), 5),
        ((2, 6, 37), 3),
        ((1, 4, 3, 5, 7), 2),
        ((1, 8, 256, 256), 2),
    ],
    ids=[
        "one group",
        "two images",
        "odd extents",
        "one dimension",
        "three dimensions",
        "a large image",
    ],
)
def test_the_error_does_not_grow_with_the_square_of_the_mean(shape, groups, mean, tmp_path: Path):
    network = group_norm(shape, groups)
    library = Library.open(api.compile(api.plan(network), tmp_path / "norm.so").path)
    x = (mean + RNG.standard_normal(shape)).astype("float32")
    (y,) = library.run({"x": x})
    onnx_model = onnx.load_from_string(network.to_onnx())
    weights = {w.name: numpy_helper.to_array(w) for w in onnx_model.graph.initializer}
    scale, shift = (weights[n].reshape(-1, *[1] * (len(shape) - 2)) for n in ("scale", "shift"))
    want = normalized(x, groups) * scale + shift
    # A rounded mean is off by 6e-8 of itself.
    assert relative_error(y, want) < 1e-6 + 1e-7 * mean


@pytest.mark.sweep
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize(("shape", "groups"), [((1, 16, 6, 6), 4), ((2, 12, 5, 5), 1)])
def test_group_norms_exported_by_pytorch_move_no_channels(shape, groups, layout, tmp_path: Path):
    network = as_pytorch_exports(shape, groups)
    plan = api.plan(network, layout=layout)
    called = operators(plan.prepared.graph)
    assert called.count("nn.group_norm") == 1
    assert "reshape" not in called
    assert called.count("permute_dims") == (2 if layout == "NHWC" else 0), "input and output"
    inputs = {"x": RNG.standard_normal(shape).astype("float32")}
    (y,) = Library.open(api.compile(plan, tmp_path / "norm.so").path).run(inputs)
    (want,) = network.reference(inputs)
    assert relative_error(y, want) < 1e-5


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("half", "kind", "tolerance"),
    [(Float16Network, "float16", 2e-3), (Bfloat16Network, "float32", 2e-2)],
)
def test_half_precision_is_summed_in_float32(half, kind, tolerance, tmp_path: Path):
    network = instance_norm((1, 4, 48, 48))
    plan = api.plan(half(network))
    x = (8 + RNG.standard_normal((1, 4, 48, 48))).astype("float16")
    (y,) = Library.open(api.compile(plan, tmp_path / "norm.so").path).run({"x": x.astype(kind)})
    assert relative_error(y.astype("float32"), normalized(x, 4)) < tolerance


@pytest.mark.slow
def test_float64_is_summed_in_float64(tmp_path: Path):
    network = instance_norm((1, 6, 9, 9), TensorProto.DOUBLE)
    library = Library.open(api.compile(api.plan(network), tmp_path / "norm.so").path)
    x = 1000 + RNG.standard_normal((1, 6, 9, 9))
    (y,) = library.run({"x": x})
    assert relative_error(y, normalized(x, 6)) < 1e-12


@pytest.mark.slow
def test_bfloat16_in_a_file_is_accepted(tmp_path: Path):
    weights = [
        helper.make_tensor(n, TensorProto.BFLOAT16, [4], [v] * 4) for n, v in (("s", 1), ("t", 0))
    ]
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.BFLOAT16),
        helper.make_node("InstanceNormalization", ["a", "s", "t"], ["b"]),
        helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ]
    network = model(nodes, (1, 4, 9, 9), opset=22, tensors=weights)
    library = Library.open(
        api.compile(api.plan(network), tmp_path / "norm.so", check_seed=None).path
    )
    x = RNG.standard_normal((1, 4, 9, 9)).astype("float32")
    (y,) = library.run({"x": x})
    assert relative_error(y, normalized(x, 4)) < 2e-2


@pytest.mark.slow
def test_the_scale_may_be_an_input_and_what_was_reshaped_an_output(tmp_path: Path):
    shape, groups = (2, 8, 5, 5), 2
    nodes = [
        helper.make_node("Reshape", ["x", "split"], ["a"]),
        helper.make_node("Relu", ["gate"], ["scale"]),
        helper.make_node("InstanceNormalization", ["a", "scale", "zero"], ["b"]),
        helper.make_node("InstanceNormalization", ["a", "one", "zero"], ["c"]),
        helper.make_node("Reshape", ["c", "shape"], ["d"]),
        helper.make_node("Add", ["d", "x"], ["y"]),
    ]
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, extents)
        for name, extents in (("x", shape), ("gate", [groups]))
    ]
    outputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "a", "b", "c")
    ]
    weights = {
        "split": np.array([0, groups, -1]),
        "shape": np.array(shape),
        "one": np.ones(groups, "float32"),
        "zero": np.zeros(groups, "float32"),
    }
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "norm", infos, outputs, tensors)
    opsets = [helper.make_opsetid("", 21)]
    network = OnnxNetwork(helper.make_model(graph, opset_imports=opsets, ir_version=9), name="norm")
    library = Library.open(api.compile(api.plan(network), tmp_path / "norm.so").path)
    inputs = {
        "x": RNG.standard_normal(shape).astype("float32"),
        "gate": np.array([0.5, 2], "float32"),
    }
    for y, want in zip(library.run(inputs), network.reference(inputs), strict=True):
        assert relative_error(y, want) < 1e-5
