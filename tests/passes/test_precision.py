"""float16 networks accumulate in float32."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper

from kernels import this_machine
from models import tiny_cnn
from tvmtune import api, host
from tvmtune.accuracy import HALF_KERNEL, relative_error
from tvmtune.networks.float16 import Float16Network
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.passes import pipeline
from tvmtune.passes.bindings import is_constant
from tvmtune.passes.constants import constant_value
from tvmtune.passes.precision import sum_in_float32
from tvmtune.runtime.library import Library


def half(model: onnx.ModelProto) -> Float16Network:
    return Float16Network(OnnxNetwork(model, name="half"))


def long_product(depth: int = 4096) -> onnx.ModelProto:
    """``x`` (4, depth) times weights of one sign: a sum in float16 would stop growing."""
    weight = np.random.RandomState(0).rand(depth, 8).astype("float32")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, depth))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (4, 8))],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_convolutions_and_products_accumulate_in_float32():
    script = sum_in_float32(half(tiny_cnn()).to_relax()).script()
    sums = [line for line in script.splitlines() if "conv2d(" in line or "matmul(" in line]
    assert len(sums) == 5
    assert all('out_dtype="float32"' in line for line in sums)


def test_a_kernel_rounds_once():
    """Bias and ReLU are fused in float32, without a cast to float16 in between."""
    network = half(tiny_cnn())
    prepared = pipeline.prepare(network, this_machine())
    tasks = host.backend("cpu").extract_tasks(prepared, this_machine())
    conv = next(t for t in tasks if "conv2d" in t.name and "relu" in t.name)
    script = conv.implementations[0].mod.script()
    casts = [line for line in script.splitlines() if 'T.Cast("float16"' in line]
    assert len(casts) == 1


def gelu_network(*, output: str = "", read: str = "") -> onnx.ModelProto:
    """A product and a GELU, which reads its operand twice. The value named ``output`` is an output,
    too; that named ``read`` is an operand of another product."""
    weight = np.random.RandomState(0).rand(16, 16).astype("float32")
    values = {"root": 2.0**0.5, "one": 1.0, "half": 0.5}
    nodes = [
        ("MatMul", ["x", "w"], "p"),
        ("Div", ["p", "root"], "d"),
        ("Erf", ["d"], "e"),
        ("Add", ["e", "one"], "s"),
        ("Mul", ["p", "s"], "m"),
        ("Mul", ["m", "half"], "y"),
    ]
    outputs = ["y"]
    if output:
        outputs.append(output)
    if read:
        nodes.append(("MatMul", [read, "w"], "z"))
        outputs.append("z")
    graph = helper.make_graph(
        [helper.make_node(op, ins, [out], name=out) for op, ins, out in nodes],
        "gelu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 16))],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, (4, 16)) for name in outputs],
        [
            numpy_helper.from_array(weight, "w"),
            *(numpy_helper.from_array(np.float32(v), k) for k, v in values.items()),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("elsewhere", "is_rounded"),
    [
        ({}, False),
        ({"output": "p"}, True),
        ({"read": "p"}, True),
        ({"output": "d"}, True),
        ({"read": "y"}, False),
    ],
    ids=str,
)
def test_a_value_that_one_kernel_reads_twice_is_not_rounded(elsewhere, is_rounded):
    """Unless something else needs it, or what becomes of it before it is read again: then it is in
    memory as float16."""
    script = sum_in_float32(half(gelu_network(**elsewhere)).to_relax()).script()
    root = next(line for line in script.splitlines() if re.search(r"R\.(divide|multiply)\(", line))
    assert ('dtype="float32"' in root) != is_rounded


def constants_of(mod: tvm.IRModule) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    tvm.relax.analysis.post_order_visit(
        mod["main"], lambda each: found.append(constant_value(each)) if is_constant(each) else None
    )
    return found


@pytest.mark.parametrize(("divisor", "divides"), [(3.0, False), (0.0, True), (2.0**15, False)])
def test_divisions_by_constants_are_multiplications_by_their_reciprocals(divisor, divides):
    model = gelu_network()
    (root,) = [each for each in model.graph.initializer if each.name == "root"]
    root.CopyFrom(numpy_helper.from_array(np.float32(divisor), "root"))
    mod = sum_in_float32(half(model).to_relax())
    assert ("R.divide(" in mod.script()) == divides
    if not divides:
        factors = [each for each in constants_of(mod) if each.dtype == np.float32]
        assert any(np.allclose(each, 1 / divisor, rtol=1e-6, atol=0) for each in factors)


def test_a_float32_network_is_unchanged():
    import tvm_ffi

    mod = OnnxNetwork(tiny_cnn(), name="full").to_relax()
    assert tvm_ffi.structural_equal(sum_in_float32(mod), mod)


@pytest.mark.parametrize("model", [long_product, tiny_cnn])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.slow
def test_the_result_differs_from_float32_by_one_rounding_per_layer(model, layout, tmp_path):
    network = half(model())
    plan = api.plan(network, layout=layout)
    api.compile(plan, tmp_path / "half.so")
    inputs = random_inputs(network.inputs, 5)
    (got,) = Library.open(tmp_path / "half.so").run(inputs)
    assert got.dtype == np.float16
    assert relative_error(got, network.reference(inputs)[0]) < 2 * HALF_KERNEL
