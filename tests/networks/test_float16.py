"""--dtype float16: a float32 network in half precision."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper, parser

from models import one_node, tiny_cnn, tiny_encoder
from networks.in_tvm import assert_tvm_agrees
from networks.onnx_loops import COUNTED, HEADER
from tvmtune import networks
from tvmtune.accuracy import relative_error
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.float16 import Float16Network
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx.network import OnnxNetwork

SMALL = {"data": (1, 3, 32, 32)}


def test_inputs_outputs_and_weights_are_float16():
    network = networks.load("mobilenet", shapes=SMALL, dtype="float16")
    assert {spec.dtype for spec in (*network.inputs, *network.outputs)} == {"float16"}
    content = network.to_onnx()
    assert content is not None
    weights = onnx.load_model_from_string(content).graph.initializer
    assert {w.data_type for w in weights} == {TensorProto.FLOAT16}


def test_the_reference_differs_from_float32_only_by_rounding():
    full = OnnxNetwork(tiny_cnn(), name="tiny")
    half = Float16Network(OnnxNetwork(tiny_cnn(), name="tiny"))
    inputs = random_inputs(half.inputs)
    (got,) = half.reference(inputs)
    (want,) = full.reference({"data": inputs["data"].astype(np.float32)})
    assert got.dtype == np.float16
    assert 0 < relative_error(got, want) < 5e-3


@pytest.mark.slow
def test_float16_has_its_own_hashes_and_can_be_reloaded():
    full, half = (networks.load("mobilenet", shapes=SMALL, dtype=t) for t in ("float32", "float16"))
    assert full.structure_hash != half.structure_hash
    again = networks.reload(half.source)
    assert (again.structure_hash, again.weights_hash) == (half.structure_hash, half.weights_hash)


def test_a_weight_out_of_range_is_named():
    model = tiny_cnn()
    bias = next(w for w in model.graph.initializer if w.name == "classifier.bias")
    large = numpy_helper.to_array(bias).copy()
    large[3] = 7e4
    bias.CopyFrom(numpy_helper.from_array(large, bias.name))
    with pytest.raises(TvmtuneError, match="'classifier.bias' of tiny reaches 70000, .* 65504"):
        Float16Network(OnnxNetwork(model, name="tiny"))


def test_integers_keep_their_dtype():
    half = Float16Network(OnnxNetwork(tiny_encoder(), name="encoder"))
    full = OnnxNetwork(tiny_encoder(), name="encoder")
    kinds = [(a.dtype, b.dtype) for a, b in zip(full.inputs, half.inputs, strict=True)]
    assert ("int64", "int64") in kinds
    assert all(b == ("float16" if a == "float32" else a) for a, b in kinds)


@pytest.mark.parametrize("dtype", ["float8", "half", "int4"])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(UsageError, match=f"dtype '{dtype}' is not known"):
        networks.load("mobilenet", dtype=dtype)


def test_an_operator_has_the_dtype_that_its_file_declares(tmp_path):
    path = tmp_path / "op.py"
    path.write_text(
        "import tvmtune\nfrom tvm import te\n@tvmtune.operator\ndef copy():\n"
        "    x = te.placeholder((4,), name='x')\n"
        "    return [x, te.compute((4,), lambda i: x[i], name='y')]\n"
        "@copy.reference\ndef same(x): return x\n"
    )
    with pytest.raises(UsageError, match="is for the zoo and ONNX files"):
        networks.load(str(path), dtype="float16")


def test_a_mask_cast_to_float_becomes_float16(tmp_path):
    from onnx import helper

    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["mask"], ["m"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["x", "m"], ["y"]),
        ],
        "masked",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3]),
            helper.make_tensor_value_info("mask", TensorProto.INT64, [2, 3]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    half = Float16Network(OnnxNetwork(model, name="masked"))
    half.to_relax()
    inputs = random_inputs(half.inputs)
    np.testing.assert_array_equal(half.reference(inputs)[0], inputs["x"] * inputs["mask"])


def test_casts_in_a_loop_become_float16():
    half = Float16Network(OnnxNetwork(parser.parse_model(HEADER + COUNTED), name="loop"))
    assert_tvm_agrees(half, tolerance=2e-3)


BRANCH = """
main (float[1,2,4,4] x) => (float[1,2,4,4] y)
<bool yes = {1}, float[2,1,1] factor = {2.0, -3.0}, float[2] scale = {0.5, 1.5},
 float[2] shift = {1.0, -1.0}, float[2] mean = {0.25, -0.5}, float[2] var = {1.5, 0.5}>
{
  n = BatchNormalization (x, scale, shift, mean, var)
  y = If (yes) <
    then_branch = scaled () => (float[1,2,4,4] s) { s = Mul (n, factor) },
    else_branch = same () => (float[1,2,4,4] t) { t = Identity (n) }
  >
}
"""


def test_weights_that_only_a_branch_reads_stay():
    half = Float16Network(OnnxNetwork(parser.parse_model(HEADER + BRANCH), name="branch"))
    assert_tvm_agrees(half, tolerance=2e-3)


@pytest.mark.parametrize(
    ("operator", "options"), [("Elu", {}), ("LRN", {"size": 3}), ("MeanVarianceNormalization", {})]
)
def test_operators_with_constants_of_their_own(operator, options):
    model = one_node(operator, shape=(2, 4, 3, 3), **options)
    assert_tvm_agrees(Float16Network(OnnxNetwork(model, name="net")), tolerance=2e-3)
