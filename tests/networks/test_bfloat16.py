"""--dtype bfloat16: a float32 network that is bfloat16 between its inputs and its outputs."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper

from cli.commands import complaint, tvmtune
from kernels import error, run_network, this_machine
from models import tiny_cnn, tiny_encoder
from tvmtune.accuracy import tolerance
from tvmtune.bench.verify import allowed_error, make_check
from tvmtune.errors import UsageError
from tvmtune.networks.bfloat16 import Bfloat16Network
from tvmtune.networks.inputs import random_inputs, read_inputs
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.passes import pipeline
from tvmtune.types import TensorSpec


@pytest.fixture
def network() -> Bfloat16Network:
    return Bfloat16Network(OnnxNetwork(tiny_cnn(), name="tiny"))


def computed(network: Bfloat16Network) -> list[tuple[np.ndarray, np.ndarray]]:
    """Each output, and what it should be."""
    device = this_machine()
    program = pipeline.legalize(pipeline.prepare(network, device).graph, device)
    executable = tvm.compile(program, tvm.target.Target(device.target))
    inputs = random_inputs(network.inputs)
    found = run_network(executable, network, inputs)
    return [*zip(found, network.reference(inputs), strict=True)]


def test_inputs_and_outputs_stay_float32(network):
    assert {spec.dtype for spec in (*network.inputs, *network.outputs)} == {"float32"}
    program = network.to_relax()["main"]
    assert {str(param.ty.dtype) for param in program.params} == {"float32"}


@pytest.mark.parametrize("make", [tiny_cnn, tiny_encoder])
def test_everything_between_is_bfloat16(make):
    found = Bfloat16Network(OnnxNetwork(make(), name="tiny"))
    lines = [line.strip() for line in found.to_relax().script(show_meta=False).splitlines()]
    inside = [line for line in lines if "R.Tensor" in line and "def main" not in line]
    wide = [line for line in inside if '"float32"' in line]
    assert wide
    assert all("R.astype" in line or line.startswith("gv") for line in wide)  # what goes out


@pytest.mark.sweep
@pytest.mark.parametrize("make", [tiny_cnn, tiny_encoder])
def test_outputs_are_close_to_float32_but_rounded(make):
    found = Bfloat16Network(OnnxNetwork(make(), name="tiny"))
    for got, want in computed(found):
        assert got.dtype == want.dtype == np.float32
        assert 1e-4 < error(got, want) < 0.1


@pytest.mark.parametrize("operator", ["Pad", "Tile"])
def test_the_importers_own_kernels_are_supported(operator):
    """TVM has no Relax operator for these; the importer emits loops for float32."""
    data = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 2, 4, 4))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    how = {"Pad": [0, 0, 1, 1, 0, 0, 1, 1], "Tile": [1, 2, 1, 1]}[operator]
    given = numpy_helper.from_array(np.array(how, "int64"), "how")
    nodes = [
        helper.make_node(operator, ["x", "how"], ["moved"]),
        helper.make_node("Relu", ["moved"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "moves", [data], [output], [given])
    opset = [helper.make_opsetid("", 17)]
    model = onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=opset, ir_version=8)
    )
    found = Bfloat16Network(OnnxNetwork(model, name="moves"))
    ((got, want),) = computed(found)
    assert error(got, want) < 1e-2


def test_integer_outputs_must_be_exact(network):
    assert allowed_error(network, "int64") == tolerance("int64")
    assert allowed_error(network, "float32") == tolerance("bfloat16", network=True)


def test_sums_and_fused_operations_are_float32(network):
    graph = pipeline.prepare(network, this_machine()).graph
    text = pipeline.legalize(graph, this_machine()).script(show_meta=False)
    rectified = [line for line in text.splitlines() if "T.max(T_add" in line]
    assert rectified
    assert all("T.float32(0.0)" in line for line in rectified)


def test_weights_are_rounded_to_bfloat16(network):
    content = onnx.load_model_from_string(network.rounded.to_onnx())
    arrays = [onnx.numpy_helper.to_array(tensor) for tensor in content.graph.initializer]
    weights = [array for array in arrays if array.dtype == np.float32]
    assert weights
    for array in weights:
        assert (array.astype(ml_dtypes.bfloat16).astype(np.float32) == array).all()


def test_bfloat16_has_its_own_tolerance(network):
    assert tolerance("bfloat16") == 8 * tolerance("float16")
    (output,) = make_check(network)["outputs"]
    assert output["dtype"] == "float32"
    assert output["tolerance"] == tolerance("bfloat16", network=True)
    # Not to what is right of another network: here, of other inputs.
    one, other = (network.reference(random_inputs(network.inputs, seed))[0] for seed in (0, 1))
    assert error(other, one) > tolerance("bfloat16", network=True)


def test_bfloat16_changes_the_structure_hash(network):
    assert network.structure_hash != OnnxNetwork(tiny_cnn(), name="tiny").structure_hash
    assert network.source["dtype"] == "bfloat16"


def test_only_networks_in_onnx_form_are_converted(tmp_path):
    with pytest.raises(UsageError, match="--dtype bfloat16 is for the zoo and ONNX files"):
        Bfloat16Network(type("Other", (), {"name": "other"})())


def test_bfloat16_inputs_are_read_from_raw_bytes(tmp_path):
    """Of a network that its author gave such inputs."""
    values = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    np.savez(tmp_path / "x.npz", x=values)
    (found,) = read_inputs(tmp_path / "x.npz", [TensorSpec("x", (2, 3), "bfloat16")]).values()
    assert found.dtype == ml_dtypes.bfloat16
    assert (found == values).all()
    with pytest.raises(UsageError, match="float32"):
        read_inputs(tmp_path / "x.npz", [TensorSpec("x", (2, 3), "float32")])


@pytest.mark.slow
def test_a_bfloat16_network_is_tuned_and_its_kernels_are_checked(tmp_path):
    onnx.save(tiny_cnn(), tmp_path / "tiny.onnx")
    words = ["--network", "tiny.onnx", "--dtype", "bfloat16", "--trials", 10, "--log", "log.json"]
    words += ["--repeat", 3]
    done = tvmtune("tune", *words, "-o", "lib.so", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "could not be checked" not in done.stderr
    lines = [json.loads(line) for line in (tmp_path / "log.json").read_text().splitlines()]
    assert any(line.get("verified") for line in lines)
    assert not any(line.get("error") for line in lines)
    words = ["bench", "lib.so", "--check", "--vs", "torch", "--repeat", 3, "--json", "b.json"]
    done = tvmtune(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ours, theirs = json.loads((tmp_path / "b.json").read_text())["runs"]
    assert theirs["runtime"] == "torch"
    assert ours["check"]["passed"]


@pytest.mark.slow
def test_opencl_refuses_bfloat16(tmp_path):
    onnx.save(tiny_cnn(), tmp_path / "tiny.onnx")
    words = ["tiny.onnx", "--target", "mali", "--target-attr", "board=rk3399"]
    done = tvmtune("tasks", *words, "--dtype", "bfloat16", cwd=tmp_path)
    assert done.returncode == 1
    assert "cannot compute in bfloat16 (OpenCL has no such type)" in complaint(done.stderr)
