"""Large weights come out of a file without protobuf, and are the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models import tiny_cnn
from tvmtune.errors import TvmtuneError
from tvmtune.networks import load
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx import weights, wire


def product(large: np.ndarray, *, listed: bool = False) -> onnx.ModelProto:
    """``x`` times a large weight plus a small one."""
    inner, outer = large.shape
    small = np.linspace(-1, 1, outer).astype(large.dtype)
    kind = helper.np_dtype_to_tensor_dtype(large.dtype)
    inputs = [helper.make_tensor_value_info("x", kind, [2, inner])]
    if listed:  # as files of 2018 do it
        inputs.append(helper.make_tensor_value_info("large", kind, large.shape))
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "large"], ["h"]),
            helper.make_node("Add", ["h", "small"], ["y"]),
        ],
        "product",
        inputs,
        [helper.make_tensor_value_info("y", kind, [2, outer])],
        [numpy_helper.from_array(large, "large"), numpy_helper.from_array(small, "small")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_weights_survive_a_round_trip(tmp_path, dtype):
    large = np.random.RandomState(0).randn(300, 200).astype(dtype)
    onnx.save(product(large), tmp_path / "net.onnx")
    light, found = wire.read(tmp_path / "net.onnx")
    assert list(found) == ["large"]
    np.testing.assert_array_equal(found["large"], large)
    assert found["large"].ctypes.data % 64 == 0
    assert light.ByteSize() < 10_000
    whole = weights.attach(light, found)
    assert whole.graph == product(large).graph


def test_values_not_stored_as_raw_bytes_stay_in_the_model(tmp_path):
    model = product(np.ones((300, 200), "float32"))
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.float_data.extend([2.0] * 60000)
    onnx.save(model, tmp_path / "net.onnx")
    light, found = wire.read(tmp_path / "net.onnx")
    assert found == {}
    assert numpy_helper.to_array(light.graph.initializer[0]).min() == 2.0


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("listed", [False, True])
def test_a_network_computes_with_external_weights(tmp_path, external, listed):
    large = np.random.RandomState(1).randn(300, 200).astype("float32")
    onnx.save(product(large, listed=listed), tmp_path / "net.onnx", save_as_external_data=external)
    network = load(str(tmp_path / "net.onnx"))
    assert [spec.name for spec in network.inputs] == ["x"]
    inputs = random_inputs(network.inputs)
    want = inputs["x"] @ large + np.linspace(-1, 1, 200).astype("float32")
    np.testing.assert_allclose(network.reference(inputs)[0], want, rtol=1e-4, atol=1e-3)
    content = network.to_onnx()
    assert content is not None
    again = onnx.load_model_from_string(content)
    np.testing.assert_array_equal(numpy_helper.to_array(again.graph.initializer[0]), large)


def test_a_file_with_and_without_large_weights_has_the_same_hashes_as_the_model(tmp_path):
    from tvmtune.networks.onnx.network import OnnxNetwork

    for number, model in enumerate((tiny_cnn(), product(np.ones((300, 200), "float32")))):
        path = tmp_path / f"{number}.onnx"
        onnx.save(model, path)
        read, built = load(str(path)), OnnxNetwork(model, name="built")
        assert (read.structure_hash, read.weights_hash) == (
            built.structure_hash,
            built.weights_hash,
        )


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(tmp_path, kept):
    content = product(np.ones((300, 200), "float32")).SerializeToString()
    (tmp_path / "net.onnx").write_bytes(content[: int(kept * len(content))])
    with pytest.raises(TvmtuneError, match="is damaged or not an ONNX file"):
        load(str(tmp_path / "net.onnx"))


def test_a_weight_with_too_few_bytes_for_its_shape_is_refused(tmp_path):
    model = product(np.ones((300, 200), "float32"))
    model.graph.initializer[0].dims[0] = 301
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(TvmtuneError, match=r"net\.onnx"):
        load(str(tmp_path / "net.onnx"))


def test_empty_tensors_stay_in_the_model(tmp_path):
    model = product(np.ones((300, 200), "float32"))
    model.graph.initializer.append(
        helper.make_tensor("nothing", TensorProto.FLOAT, [0, 4], b"", raw=True)
    )
    onnx.save(model, tmp_path / "net.onnx")
    _, found = wire.read(tmp_path / "net.onnx")
    assert list(found) == ["large"]


@pytest.mark.parametrize(
    "content",
    [b"\xff" * 4_000_000, b"\x08\x01" * 1_500_000, b"\x80" * 100_000 + b"\x01"],
    ids=["no number ends", "millions of fields", "a long number"],
)
def test_what_would_take_long_to_step_over_is_refused(tmp_path, content):
    path = tmp_path / "x.onnx"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not in the format|too many fields"):
        wire.read(path)


def test_a_weight_with_thousands_of_dimensions_is_refused(tmp_path):
    model = tiny_cnn(size=8)
    model.graph.initializer[0].dims.extend([1 << 62] * 100_000)
    model.graph.initializer[0].raw_data = b""
    path = tmp_path / "x.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match="dimensions"):
        wire.read(path)


@pytest.mark.parametrize("where", [b"pointwise", b"Relu", b"data"])
def test_a_name_that_is_no_text_is_named_as_the_damage(tmp_path, where):
    path = tmp_path / "x.onnx"
    content = tiny_cnn(size=8).SerializeToString()
    assert where in content
    path.write_bytes(content.replace(where, b"\xff" * len(where)))
    with pytest.raises(TvmtuneError, match="x.onnx is damaged: a name in it is not UTF-8 text"):
        load(str(path))


def test_a_weight_with_fewer_values_than_its_shape_is_refused(tmp_path):
    path = tmp_path / "x.onnx"
    model = tiny_cnn(size=8)
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-4]
    path.write_bytes(model.SerializeToString())
    with pytest.raises(TvmtuneError, match="x.onnx is not a valid ONNX model"):
        load(str(path))
