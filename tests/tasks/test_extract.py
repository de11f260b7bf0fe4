"""The tasks of a network, and the implementations of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from kernels import one_conv, prepared
from models import tiny_cnn, tiny_encoder
from tvmtune import cpu_features, host, networks
from tvmtune.passes import pipeline
from tvmtune.passes.call_sites import call_sites
from tvmtune.tasks.extract import extract_tasks
from tvmtune.types import Algorithm, Task

RESNET_18 = {
    # (batch, height, width, in, out, kernel h, w, pad h, w, stride h, w) of the convolutions after
    # the first, as every tutorial on tuning this network lists them
    (1, 56, 56, 64, 64, 3, 3, 1, 1, 1, 1),
    (1, 56, 56, 64, 128, 3, 3, 1, 1, 2, 2),
    (1, 56, 56, 64, 128, 1, 1, 0, 0, 2, 2),
    (1, 28, 28, 128, 128, 3, 3, 1, 1, 1, 1),
    (1, 28, 28, 128, 256, 3, 3, 1, 1, 2, 2),
    (1, 28, 28, 128, 256, 1, 1, 0, 0, 2, 2),
    (1, 14, 14, 256, 256, 3, 3, 1, 1, 1, 1),
    (1, 14, 14, 256, 512, 3, 3, 1, 1, 2, 2),
    (1, 14, 14, 256, 512, 1, 1, 0, 0, 2, 2),
    (1, 7, 7, 512, 512, 3, 3, 1, 1, 1, 1),
}


def tasks_of(model, layout: str = "NHWC") -> list[Task]:
    program = prepared(model, layout)
    return extract_tasks(program, program.device)


def the_conv(tasks: list[Task]) -> Task:
    (task,) = [t for t in tasks if "conv2d" in t.name]
    return task


def names(task: Task) -> list[str]:
    return [i.name for i in task.implementations]


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("make", [tiny_cnn, tiny_encoder])
def test_every_kernel_call_belongs_to_one_task(make, layout):
    program = prepared(make(), layout)
    tasks = extract_tasks(program, program.device)
    calls = call_sites(pipeline.legalize(program.graph, program.device))
    assert sum(t.weight for t in tasks) == len(calls)
    assert sorted(i for t in tasks for i in t.sites) == [s.index for s in calls]
    assert all(len(t.sites) == t.weight for t in tasks)
    assert [t.index for t in tasks] == list(range(len(tasks)))


def test_tasks_describe_their_computation():
    tasks = tasks_of(tiny_cnn())
    stem = next(t for t in tasks if "conv2d" in t.name)
    assert stem.name.startswith("fused_conv2d_add_relu")
    assert [(a.shape, a.dtype) for a in stem.args] == [
        ((1, 32, 32, 3), "float32"),
        ((3, 3, 3, 8), "float32"),
        ((1, 1, 1, 8), "float32"),
        ((1, 16, 16, 8), "float32"),
    ]
    # two per multiply-add, plus bias and ReLU
    assert stem.flop == 2 * 16 * 16 * 8 * 27 + 2 * 16 * 16 * 8


def test_task_names_and_keys_are_unique():
    tasks = tasks_of(tiny_encoder())
    assert len({t.key for t in tasks}) == len({t.name for t in tasks}) == len(tasks)
    for task in tasks:
        assert task.implementations[0].workload_key == task.key


def keys(tasks: list[Task]) -> list[list[str]]:
    return [[t.key, t.anchor_key, *(i.workload_key for i in t.implementations)] for t in tasks]


def test_keys_depend_on_structure_and_not_on_weights():
    first, again = keys(tasks_of(tiny_cnn())), keys(tasks_of(tiny_cnn(seed=5)))
    assert first == again
    other = keys(tasks_of(one_conv((2, 16, 14, 14))))
    assert other != keys(tasks_of(one_conv((1, 16, 14, 14))))


@pytest.mark.slow
def test_keys_are_equal_in_another_process():
    code = (
        "import json; from tasks.test_extract import keys, tasks_of; "
        "from models import tiny_cnn; print(json.dumps(keys(tasks_of(tiny_cnn()))))"
    )
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "PYTHONPATH": str(root / "tests"), "PYTHONHASHSEED": "12345"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == keys(tasks_of(tiny_cnn()))


def test_another_epilogue_changes_the_key_and_keeps_the_anchor():
    plain = the_conv(tasks_of(one_conv(tail=("bias",))))
    rectified = the_conv(tasks_of(one_conv(tail=("bias", "relu"))))
    assert plain.key != rectified.key
    assert plain.anchor_key == rectified.anchor_key


@pytest.mark.parametrize(
    "other",
    [
        {"shape": (2, 16, 14, 14)},
        {"shape": (1, 16, 15, 14)},
        {"out": 32},
        {"kernel": 5, "pads": (2, 2, 2, 2)},
        {"stride": 2},
        {"groups": 2},
        {"dilation": 2, "pads": (2, 2, 2, 2)},
    ],
)
def test_different_convolutions_have_different_anchors(other):
    assert (
        the_conv(tasks_of(one_conv(**other))).anchor_key
        != the_conv(tasks_of(one_conv())).anchor_key
    )


def test_layouts_never_share_an_anchor():
    model = one_conv((1, 16, 16, 16))
    assert the_conv(tasks_of(model)).anchor_key != the_conv(tasks_of(model, "NCHW")).anchor_key


def test_a_3x3_convolution_of_stride_1_has_two_implementations():
    direct, winograd = the_conv(tasks_of(one_conv())).implementations
    assert (direct.name, direct.exact) == ("direct", True)
    assert (winograd.name, winograd.exact) == ("winograd", False)
    assert direct.workload_key != winograd.workload_key


def test_on_a_cpu_it_has_those_by_winograd_and_none_that_is_superseded():
    made = prepared(one_conv())
    offered = host.backend("cpu").implementations(made.device)
    found = the_conv(extract_tasks(made, made.device, implementations=offered)).implementations
    few_registers = cpu_features.vector_unit(made.device.target).has_few_registers
    assert [(i.name, i.exact) for i in found] == [
        ("direct", True),
        ("winograd-4x4-fused", False),
        ("winograd-4x4", False),
        ("winograd-2x2-rows", True),
        ("winograd-2x2", True),
        *([("implicit-gemm", True)] if few_registers else []),
    ]
    assert len({i.workload_key for i in found}) == len(found)


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2},
        {"groups": 16},
        {"groups": 2},
        {"kernel": 1, "pads": (0, 0, 0, 0)},
        {"kernel": 5, "pads": (2, 2, 2, 2)},
        {"dilation": 7, "pads": (7, 7, 7, 7)},
        {"out": 24},
        {"constant": False},
    ],
)
def test_other_convolutions_are_computed_directly(options):
    assert names(the_conv(tasks_of(one_conv(**options)))) == ["direct"]


def test_winograd_is_for_nhwc_only():
    assert names(the_conv(tasks_of(one_conv(), "NCHW"))) == ["direct"]


def test_only_convolutions_that_fit_have_a_second_implementation():
    tasks = tasks_of(tiny_cnn())
    assert [names(t) for t in tasks if len(t.implementations) > 1] == [["direct", "winograd"]]
    (task,) = [t for t in tasks if len(t.implementations) > 1]
    assert [a.shape for a in task.args][1] == (3, 3, 16, 16)


def test_an_encoder_has_a_task_for_every_kernel():
    tasks = tasks_of(tiny_encoder())
    kinds = " ".join(t.name for t in tasks)
    for operator in ("matmul", "softmax", "layer_norm", "take", "transpose", "erf", "tanh"):
        assert operator in kinds
    # query, key and value have equal projections
    assert max(t.weight for t in tasks if "matmul" in t.name) == 3
    assert {a.dtype for t in tasks for a in t.args} == {"float32", "int64"}


@pytest.mark.slow
def test_resnet_18_has_the_known_convolutions():
    from tvm import relax

    program = pipeline.prepare(networks.load("resnet-18"), prepared(one_conv()).device, "NHWC")
    calls = []

    def visit(node):
        if isinstance(node, relax.Call) and getattr(node.op, "name", "") == "relax.nn.conv2d":
            n, h, w, ci = (int(d) for d in node.args[0].ty.shape)
            kh, kw, _, co = (int(d) for d in node.args[1].ty.shape)
            top, left, *_ = (int(p) for p in node.attrs.padding)
            calls.append((n, h, w, ci, co, kh, kw, top, left, *map(int, node.attrs.strides)))

    relax.analysis.post_order_visit(program.graph["main"], visit)
    assert calls[0] == (1, 224, 224, 3, 64, 7, 7, 3, 3, 2, 2)
    assert len(calls) == 20
    assert set(calls[1:]) == RESNET_18
    tasks = [t for t in extract_tasks(program, program.device) if "conv2d" in t.name]
    assert sum(t.weight for t in tasks) == 20
    assert len({t.anchor_key for t in tasks}) == len(RESNET_18) + 1
    winograd = {t.anchor_key for t in tasks if "winograd" in names(t)}
    assert len(winograd) == sum(1 for c in RESNET_18 if c[5] == 3 and c[9] == 1)


def test_an_algorithm_that_moves_operations_between_kernels_is_not_offered():
    """Its convolution is opaque to fusion, so the activation joins the next kernel: as many kernels as
    before, but another one changed, too."""
    import tvm

    def replace(builder, call, values):
        direct = tvm.ir.Op.get("relax.nn.conv2d").get_attr("FLegalize")(builder, call)
        variable = direct.args[0]
        builder.update_func(variable, builder.get()[variable].with_attr("op_pattern", 8))
        return direct

    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["y"], ["r"]),
        helper.make_node("Transpose", ["r"], ["z"], perm=[0, 2, 1, 3]),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 16, 8, 8]), ("z", [1, 8, 16, 8]))
    ]
    weight = numpy_helper.from_array(np.ones((16, 16, 3, 3), np.float32), "w")
    graph = helper.make_graph(nodes, "moved", values[:1], values[1:], [weight])
    opaque = Algorithm("opaque", "relax.nn.conv2d", lambda call: True, replace)
    plan = prepared(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )
    tasks = extract_tasks(plan, plan.device, implementations=[opaque])
    assert [i.name for task in tasks for i in task.implementations] == ["direct"] * len(tasks)
