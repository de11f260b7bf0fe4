"""Products and convolutions in bfloat16: right for every shape, and all in dot-product instructions."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper

import tvmtune
from kernels import error, one_conv
from remote import emulated
from tvmtune import api
from tvmtune.errors import TvmtuneError
from tvmtune.machine import cpu_features
from tvmtune.networks.bfloat16 import Bfloat16Network
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.operators import cpu_pipeline

MACHINE = {"mcpu": "znver4"}
"""It has AVX512-BF16; this machine need not."""
CONVOLUTIONS = [
    {"shape": (1, 3, 23, 23), "out": 24, "stride": 2},
    {"shape": (2, 16, 7, 7)},
    {"shape": (1, 7, 17, 17), "out": 33},
    {"shape": (1, 32, 20, 20), "out": 48, "kernel": 1, "pads": (0, 0, 0, 0)},
    {"shape": (1, 8, 19, 19), "out": 144, "dilation": 2},
]
WITH_TILES = {"mcpu": "sapphirerapids"}
"""It has AMX."""
BATCHED = [
    ((2, 3, 20, 16), (2, 3, 16, 80)),
    ((4, 37, 64), (4, 64, 37)),
    ((1, 2, 48, 37), (1, 2, 37, 24)),
    ((1, 6, 37, 32), (1, 1, 32, 37)),
]
PRODUCTS = [
    ((1, 64), (64, 1000)),
    ((1, 197, 64), (64, 48)),
    ((31, 33), (33, 7)),
    ((2, 3, 20, 16), (16, 80)),
]


def convolution(**case: Any) -> Bfloat16Network:
    return Bfloat16Network(OnnxNetwork(one_conv(**case), name="one"))


def product(left: tuple[int, ...], right: tuple[int, ...], *, constant: bool) -> Bfloat16Network:
    rng = np.random.RandomState(0)
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, left)]
    weights = [numpy_helper.from_array(rng.standard_normal(right[-1:]).astype("float32"), "b")]
    if constant:
        weights.append(numpy_helper.from_array(rng.standard_normal(right).astype("float32"), "w"))
    else:
        given.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, right))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "one", given, [output], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return Bfloat16Network(OnnxNetwork(onnx.shape_inference.infer_shapes(model), name="one"))


def assembly_of(implementation: Any, target: dict[str, Any]) -> str:
    """Of its default schedule."""
    machine = tvm.target.Target(target)
    schedule = implementation.space.default(implementation.mod, machine)
    pipeline = cpu_pipeline.pipeline_for(target)
    library = tvm.compile(schedule.mod, machine, tir_pipeline=pipeline)
    return str(library.mod.inspect_source("asm"))


def networks() -> list[Any]:
    found = [pytest.param(convolution(**case), id=f"{case}") for case in CONVOLUTIONS]
    return [*found, *(pytest.param(product(*c, constant=True), id=f"{c}") for c in PRODUCTS)]


@pytest.mark.sweep
@pytest.mark.parametrize("one", networks())
def test_outputs_are_those_of_float32_rounded(one, tmp_path):
    api.compile(api.plan(one), tmp_path / "one.so")
    inputs = random_inputs(one.inputs)
    (got,) = tvmtune.Library.open(tmp_path / "one.so").run(inputs)
    (want,) = one.reference(inputs)
    assert error(got, want) < 1e-2


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("backend", "attrs", "instruction", "float_instruction"),
    [
        ("cpu", MACHINE, "vdpbf16ps", r"vfmadd\d+ps|vgather"),
        ("arm", {"mcpu": "neoverse-v1"}, r"bfdot\tv", r"fmla\tv"),
    ],
    ids=["znver4", "neoverse-v1"],
)
@pytest.mark.parametrize("one", networks())
def test_all_products_are_in_the_instruction(one, backend, attrs, instruction, float_instruction):
    plan = api.plan(one, backend, attrs=attrs)
    chosen = [task.untuned for task in plan.tasks if task.untuned.name.startswith("bfloat16-")]
    assert len(chosen) == 1
    assembly = assembly_of(chosen[0], plan.device.target)
    assert re.search(instruction, assembly)
    assert not re.search(float_instruction, assembly)


@pytest.mark.sweep
@pytest.mark.parametrize(("left", "right"), BATCHED, ids=str)
def test_batched_products_are_in_tiles_where_there_are_any(left, right, tmp_path):
    one = product(left, right, constant=False)
    plan = api.plan(one, attrs=WITH_TILES)
    (task,) = [task for task in plan.tasks if "matmul" in task.name]
    assert task.untuned.name == "bfloat16-batched"
    assembly = assembly_of(task.untuned, plan.device.target)
    assert "tdpbf16ps" in assembly
    assert not re.search(r"vdpbf16ps|vfmadd\d+ps", assembly)
    if cpu_features.can_run(plan.device.target, "", ["bfloat16"]):
        api.compile(plan, tmp_path / "one.so")
        inputs = random_inputs(one.inputs)
        (got,) = tvmtune.Library.open(tmp_path / "one.so").run(inputs)
        (want,) = one.reference(inputs)
        assert error(got, want) < 1e-2


@pytest.mark.parametrize(
    ("left", "right", "constant"),
    [
        ((4, 15, 32), (4, 32, 20), False),
        ((4, 20, 32), (4, 32, 15), False),
        ((1, 20, 32), (2, 32, 20), False),
        ((2, 20, 32), (2, 32, 20), True),
    ],
    ids=str,
)
def test_small_products_and_others_than_of_two_activations_are_not_packed(left, right, constant):
    plan = api.plan(product(left, right, constant=constant), attrs=WITH_TILES)
    names = {each.name for task in plan.tasks for each in task.implementations}
    assert "direct" in names
    assert "bfloat16-batched" not in names


def networks_on_board() -> list[Any]:
    """All networks; in CI one or two of each kind, because every shape is computed here as well."""
    ci = (CONVOLUTIONS[0], CONVOLUTIONS[2], PRODUCTS[0], PRODUCTS[2])
    names = {str(case) for case in ci}
    return [
        pytest.param(*each.values, id=each.id, marks=() if each.id in names else pytest.mark.soak)
        for each in networks()
    ]


@pytest.mark.slow
@emulated.needed
@pytest.mark.parametrize("one", networks_on_board())
def test_outputs_on_an_arm_board_are_those_of_float32_rounded(one, tmp_path):
    plan = api.plan(one, "arm", attrs={"mcpu": "neoverse-v1"})
    library = api.compile(plan, tmp_path / "one.so")
    inputs = random_inputs(one.inputs)
    (got,) = emulated.outputs(library.path, inputs, "max")
    (want,) = one.reference(inputs)
    assert error(got, want) < 1e-2


def test_other_networks_and_machines_keep_the_direct_algorithm():
    variable = product((4, 32, 16), (16, 32), constant=False)
    for one, attrs in [
        (variable, MACHINE),
        (OnnxNetwork(one_conv(), name="one"), MACHINE),
        (convolution(), {"mcpu": "skylake-avx512"}),
    ]:
        tasks = api.plan(one, attrs=attrs).tasks
        names = {each.name for task in tasks for each in task.implementations}
        assert "direct" in names
        assert not any(name.startswith("bfloat16") for name in names)


@pytest.mark.slow
def test_a_library_for_another_cpu_is_compiled_unchecked_and_lists_what_it_needs(
    tmp_path, monkeypatch
):
    here = [name for name in cpu_features.available() if "bf16" not in name]
    monkeypatch.setattr(cpu_features, "available", lambda *_: here)
    compiled = api.compile(api.plan(convolution(), attrs=MACHINE), tmp_path / "one.so")
    assert "avx512_bf16" in compiled.metadata["cpu_features"]
    with pytest.raises(TvmtuneError, match="avx512_bf16"):
        tvmtune.Library.open(compiled.path)
