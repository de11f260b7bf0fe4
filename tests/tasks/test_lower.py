"""Records become schedules: each kernel gets its own, its anchor's, or the default one."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax
from tvm.s_tir import Schedule

from kernels import error, one_conv, run_network, this_machine
from models import tiny_cnn, tiny_encoder
from tvmtune import api
from tvmtune.compiling.compile import compile_library
from tvmtune.library.export import build
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.operators.implementations import WINOGRAD
from tvmtune.passes.call_sites import call_sites
from tvmtune.passes.pipeline import legalize
from tvmtune.records.log import read_log
from tvmtune.runtime.library import Library
from tvmtune.spaces import rule_space, traces
from tvmtune.tasks.extract import extract_tasks
from tvmtune.tasks.lower import RECORD, is_plain
from tvmtune.tuning.budget import Budget
from tvmtune.types import Task, Trial

if TYPE_CHECKING:
    from collections.abc import Mapping


def plan_of(model: onnx.ModelProto, layout: str = "NHWC") -> api.Plan:
    return api.plan(OnnxNetwork(model, name="test"), layout=layout)


def shortcut_block() -> onnx.ModelProto:
    """The sum of a convolution, which comes first in the graph, and of two others in a row."""
    rng = np.random.default_rng(0)
    shapes = {"shortcut": (32, 16), "first": (16, 16), "second": (32, 16)}
    weights = [
        numpy_helper.from_array(rng.standard_normal((*shape, 3, 3), "float32"), f"{name}.w")
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", [x, f"{name}.w"], [name], pads=[1, 1, 1, 1])
        for name, x in (("shortcut", "x"), ("first", "x"), ("second", "activated"))
    ]
    nodes.insert(2, helper.make_node("Relu", ["first"], ["activated"]))
    nodes.append(helper.make_node("Add", ["shortcut", "second"], ["y"]))
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", (1, 16, 14, 14)), ("y", (1, 32, 14, 14)))
    )
    graph = helper.make_graph(nodes, "block", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@cache
def cnn() -> api.Plan:
    return plan_of(tiny_cnn())


@cache
def plain_cnn() -> tvm.IRModule:
    """The network with default schedules only."""
    return lower(cnn())


def record(plan: api.Plan, task: Task, implementation: str = "direct") -> Trial:
    """A record of a sampled schedule that differs from the default one."""
    from tvm.s_tir.meta_schedule.search_strategy import ReplayTrace

    from tvmtune.spaces.rule_space import tune_context

    chosen = task.implementation(implementation)
    context = tune_context(
        chosen.mod,
        tvm.target.Target(plan.device.target),
        chosen.space.generator(),
        seed=7,
        strategy=ReplayTrace(),
    )
    context.pre_tuning(1, 1, context.generate_design_space())
    (candidate,) = context.generate_measure_candidates()
    return Trial(
        task=task.key,
        implementation=implementation,
        workload=chosen.workload_key,
        candidate="made by hand",
        trace=json.loads(json.dumps(traces.to_json(candidate.sch))),
        seconds=[1e-3],
        device=plan.device.identity(),
    )


def kinds(lowered: tvm.IRModule) -> dict[str, str]:
    return json.loads(lowered.attrs[RECORD])


def lower(plan: api.Plan, chosen: Mapping[str, Trial] | None = None) -> tvm.IRModule:
    """Lower without warnings; every kernel must have a schedule."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return plan.backend.lower(plan.prepared, dict(chosen or {}), plan.device)


def deviation(plan: api.Plan, lowered: tvm.IRModule) -> float:
    """The largest error over all outputs compared with ONNX Runtime."""
    inputs = random_inputs(plan.network.inputs, seed=3)
    computed = run_network(build(lowered, plan.device), plan.network, inputs)
    expected = plan.network.reference(inputs)
    return max(error(y, ref) for y, ref in zip(computed, expected, strict=True))


def programs(mod: tvm.IRModule) -> list[str]:
    """The kernels in the order of their calls, without their names."""
    return [s.func.with_attr("global_symbol", "main").script() for s in call_sites(mod)]


def named(plan: api.Plan, part: str) -> Task:
    return next(t for t in plan.tasks if part in t.name)


def for_winograd(plan: api.Plan) -> list[Task]:
    return [t for t in plan.tasks if any(i.name == "winograd-4x4" for i in t.implementations)]


def is_winograd_4x4(program: str) -> bool:
    return "winograd_product = T.sblock_alloc_buffer((T.int64(6), T.int64(6)" in program


def two_convs() -> onnx.ModelProto:
    """Two convolutions that Winograd could compute, with different epilogues."""
    first, second = (
        onnx.shape_inference.infer_shapes(one_conv(tail=tail))
        for tail in (("bias",), ("bias", "relu"))
    )
    renamed = onnx.compose.add_prefix(second, "b.")
    return onnx.compose.merge_models(first, renamed, io_map=[("bias0", "b.x")])


@pytest.mark.parametrize("layout", ["NHWC", pytest.param("NCHW", marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [tiny_encoder, pytest.param(tiny_cnn, marks=pytest.mark.slow)])
def test_without_records_every_kernel_has_its_default_schedule(make, layout):
    plan = plan_of(make(), layout)
    lowered = lower(plan)
    assert kinds(lowered) == {t.key: "default" for t in plan.tasks}
    assert deviation(plan, lowered) < 1e-4
    for site in call_sites(lowered):
        assert site.func.attrs["tirx.is_scheduled"]


@pytest.mark.slow
def test_an_exact_record_is_used_only_for_its_task():
    plan = cnn()
    task = named(plan, "conv2d_add_relu")
    plain, lowered = plain_cnn(), lower(plan, {task.key: record(plan, task)})
    assert kinds(lowered) == {t.key: "exact" if t is task else "default" for t in plan.tasks}
    changed = [a != b for a, b in zip(programs(plain), programs(lowered), strict=True)]
    assert changed == [index in task.sites for index in range(len(changed))]
    assert deviation(plan, lowered) < 1e-4


@pytest.mark.slow
def test_records_for_every_implementation_of_every_kind_of_kernel():
    plan = plan_of(tiny_encoder())
    lowered = lower(plan, {t.key: record(plan, t) for t in plan.tasks})
    assert set(kinds(lowered).values()) == {"exact"}
    assert deviation(plan, lowered) < 1e-4


@pytest.mark.slow
def test_a_winograd_record_changes_only_its_own_kernel():
    plan = cnn()
    (task,) = for_winograd(plan)
    lowered = lower(plan, {task.key: record(plan, task, "winograd-4x4")})
    assert kinds(lowered)[task.key] == "exact"
    plain = programs(plain_cnn())
    changed = [i for i, (a, b) in enumerate(zip(plain, programs(lowered), strict=True)) if a != b]
    assert changed == list(task.sites)
    assert is_winograd_4x4(programs(lowered)[task.sites[0]])
    assert deviation(plan, lowered) < 1e-4


@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)])
@pytest.mark.slow
def test_winograd_is_used_exactly_where_records_select_it(which):
    plan = plan_of(two_convs())
    tasks = for_winograd(plan)
    assert len(tasks) == 2
    chosen = {tasks[i].key: record(plan, tasks[i], "winograd-4x4") for i in which}
    lowered = lower(plan, chosen)
    computed = programs(lowered)
    for index, task in enumerate(tasks):
        assert is_winograd_4x4(computed[task.sites[0]]) == (index in which)
    assert deviation(plan, lowered) < 1e-4


@pytest.mark.slow
def test_a_record_decides_for_its_own_kernel_if_fusion_moves_kernels():
    """The shortcut is computed last, with the sum."""
    plan = plan_of(shortcut_block())
    tasks = for_winograd(plan)
    assert len(tasks) == 3
    for task in tasks:
        lowered = lower(plan, {task.key: record(plan, task, "winograd-4x4")})
        assert kinds(lowered)[task.key] == "exact"
        computed = programs(lowered)
        assert [each.key for each in tasks if is_winograd_4x4(computed[each.sites[0]])] == [
            task.key
        ]
        assert deviation(plan, lowered) < 1e-4


@pytest.mark.slow
def test_a_record_of_a_superseded_algorithm_still_applies():
    """Logs from before winograd-4x4 hold records of winograd."""
    plan = cnn()
    (task,) = for_winograd(plan)
    (before,) = [
        t
        for t in extract_tasks(plan.prepared, plan.device, implementations=[WINOGRAD])
        if t.key == task.key
    ]
    lowered = lower(plan, {task.key: record(plan, before, "winograd")})
    assert kinds(lowered)[task.key] == "exact"
    assert is_winograd_4x4(programs(lowered)[task.sites[0]])
    assert deviation(plan, lowered) < 1e-4


@pytest.mark.slow
def test_weights_are_packed_when_the_network_is_compiled():
    plan = plan_of(one_conv(out=128))
    task = named(plan, "conv2d")
    for chosen in ({}, {task.key: record(plan, task, "winograd-4x4")}):
        lowered = lower(plan, chosen)
        called = [s.name for s in call_sites(lowered)]
        assert len(called) == len(call_sites(legalize(plan.prepared.graph, plan.device)))
        assert not [name for name in called if name.endswith("weight_prepack")]
        assert "layout_rewrite_preproc" not in "".join(programs(lowered))
        assert deviation(plan, lowered) < 1e-4
    kernel = call_sites(lower(plan))[task.sites[0]].func
    plain, packed = task.args[1].shape, [int(d) for d in kernel.params[1].shape]
    assert plain == (3, 3, 16, 128)
    assert math.prod(packed) == math.prod(plain)
    assert len(packed) > len(plain), "channels are split into blocks"


@pytest.mark.slow
def test_the_lowered_network_takes_the_plain_input():
    function = plain_cnn()["main"]
    assert isinstance(function, relax.Function)
    (data,) = function.params
    assert [int(d) for d in data.ty.shape] == [1, 3, 32, 32]


def test_kernels_that_no_schedule_rule_fits_are_named(monkeypatch):
    plan = plan_of(one_conv(shape=(1, 32, 14, 14), out=32))
    monkeypatch.setattr(rule_space, "_chosen", {})
    monkeypatch.setattr(rule_space.RuleSpace, "choose", lambda self, mod, _: Schedule(mod))
    with pytest.warns(UserWarning, match=r"no schedule rule fits 1 of \d kernels \(\w*conv2d"):
        plan.backend.lower(plan.prepared, {}, plan.device)


def test_kernels_that_are_written_by_hand_are_not():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((400, 300), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(relax.op.cumsum(x, axis=1))
        builder.emit_func_output(output)
    program = legalize(builder.get(), this_machine())
    (site,) = call_sites(program)
    assert not is_plain(site.func, site.func)


@pytest.mark.slow
def test_a_record_that_no_longer_applies_is_replaced_by_the_default_with_a_warning():
    plan = cnn()
    task, other = named(plan, "conv2d_add_relu"), named(plan, "matmul")
    stale = replace(record(plan, task), trace=record(plan, other).trace)
    with pytest.warns(UserWarning, match="no longer applies.*default schedule"):
        lowered = plan.backend.lower(plan.prepared, {task.key: stale}, plan.device)
    assert kinds(lowered)[task.key] == "default"
    assert programs(lowered) == programs(plain_cnn())


@pytest.mark.sweep
@pytest.mark.parametrize("trace", [None, [], "nonsense", [[["NoSuchStep", [], [], []]], []]])
def test_a_record_with_a_damaged_trace_is_replaced_by_the_default(trace):
    plan = plan_of(one_conv())
    task = named(plan, "conv2d")
    damaged = replace(record(plan, task), trace=trace)
    with pytest.warns(UserWarning, match="no longer applies"):
        lowered = plan.backend.lower(plan.prepared, {task.key: damaged}, plan.device)
    assert kinds(lowered)[task.key] == "default"


def test_a_record_of_an_unknown_workload_is_replaced_by_the_default():
    plan = plan_of(one_conv())
    task = named(plan, "conv2d")
    unknown = replace(record(plan, task), workload="0123456789abcdef")
    with pytest.warns(UserWarning, match="similar task, or of another dtype, does not fit"):
        lowered = plan.backend.lower(plan.prepared, {task.key: unknown}, plan.device)
    assert kinds(lowered)[task.key] == "default"


@pytest.mark.slow
def test_metadata_counts_the_records_and_names_the_algorithms(tmp_path):
    plan = cnn()
    (task,) = for_winograd(plan)
    stem = named(plan, "conv2d_add_relu")
    chosen = {task.key: record(plan, task, "winograd-4x4"), stem.key: record(plan, stem)}
    compiled = compile_library(plan, chosen, tmp_path / "lib.so")
    assert compiled.counts == {
        "exact": 2,
        "anchor": 0,
        "shipped": 0,
        "default": len(plan.tasks) - 2,
    }
    rows = {row["name"]: row for row in compiled.metadata["tasks"]["list"]}
    assert rows[task.name]["implementation"] == "winograd-4x4"
    assert rows[stem.name]["implementation"] == "direct"
    assert rows[stem.name]["latency"] == 1e-3
    # Profiles show the kernels' names, and another algorithm's is not the task's.
    library = Library.open(compiled.path)
    profile = library.profile(library.random_inputs())
    assert rows[task.name]["kernel"] != task.name
    by_task = {kernel.task: kernel for kernel in profile[:-1]}
    assert set(by_task) <= set(rows)  # no kernel reshapes
    assert by_task[task.name].name.removesuffix("_prepacked") == rows[task.name]["kernel"]
    assert by_task[task.name].implementation == "winograd-4x4"
    expected_rate = task.flop * by_task[task.name].calls / by_task[task.name].ms / 1e6
    assert by_task[task.name].gflops == pytest.approx(expected_rate)
    assert profile[-1].task is profile[-1].gflops is None
    args = [math.prod(spec.shape) for spec in stem.args]
    assert rows[stem.name]["bytes"] == 4 * sum(args)


@pytest.mark.sweep
@pytest.mark.parametrize("implementation", ["direct", "winograd-4x4"])
def test_a_record_of_the_same_anchor_is_adapted(implementation):
    source, plan = (plan_of(one_conv(tail=tail)) for tail in (("bias",), ("bias", "relu")))
    donor, task = named(source, "conv2d"), named(plan, "conv2d")
    assert donor.key != task.key
    assert donor.anchor_key == task.anchor_key
    trial = record(source, donor, implementation)
    module = traces.store_module(donor.implementation(implementation).mod)
    trial = trial.evolve(source_module=module)
    lowered = lower(plan, {task.key: trial})
    assert kinds(lowered)[task.key] == "anchor"
    script = programs(lowered)[task.sites[0]]
    assert is_winograd_4x4(script) == (implementation == "winograd-4x4")
    assert deviation(plan, lowered) < 1e-4


@pytest.mark.parametrize(
    ("tuned", "other"),
    [
        pytest.param(("bias", "relu"), ("bias", "relu", "sum"), marks=pytest.mark.slow),
        pytest.param(("bias",), ("bias", "relu"), marks=pytest.mark.soak),
        pytest.param(("bias", "sum", "relu"), ("bias",), marks=pytest.mark.slow),
    ],
)
def test_a_log_of_the_same_convolution_in_another_fusion_is_used(tmp_path, tuned, other):
    source, plan = plan_of(one_conv(tail=tuned)), plan_of(one_conv(tail=other))
    log = tmp_path / "log.json"
    api.tune(source, log, budget=Budget(trials=6))
    assert any(t.ok for t in read_log(log).trials)
    compiled = api.compile(plan, tmp_path / "lib.so", [log])
    how = {row["name"]: row["record"] for row in compiled.metadata["tasks"]["list"]}
    assert how[named(plan, "conv2d").name] == "anchor"
    assert compiled.counts["anchor"] == 1
    inputs = random_inputs(plan.network.inputs, seed=3)
    computed: Any = Library.open(compiled.path).run(inputs)
    for y, ref in zip(computed, plan.network.reference(inputs), strict=True):
        assert error(y, ref) < 1e-4


def test_every_kernel_is_called():
    """Those that re-ordered the weights have run, and need not be compiled."""
    mod = plain_cnn()
    kernels = {v.name_hint for v, f in mod.functions_items() if isinstance(f, tvm.tirx.PrimFunc)}
    assert kernels == {site.name for site in call_sites(mod)}


@pytest.mark.sweep
@pytest.mark.parametrize("cores", [1, 3])
def test_lowering_depends_neither_on_extraction_nor_on_the_number_of_cores(monkeypatch, cores):
    plan = plan_of(tiny_cnn())
    (task,) = for_winograd(plan)
    records = {task.key: record(plan, task, "winograd-4x4")}
    expected = plan.backend.lower(plan.prepared, records, plan.device)
    again = plan.backend.prepare(plan.network, plan.device, "NHWC", None)
    assert not again.keys
    monkeypatch.setattr("tvmtune.machine.parallel.cores", lambda: cores)
    tvm.ir.assert_structural_equal(plan.backend.lower(again, records, plan.device), expected)
