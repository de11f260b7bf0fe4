"""The default schedule of every kind of kernel builds, runs and keeps the result."""

from __future__ import annotations

import json
import re

import pytest
import tvm
from tvm import te, topi
from tvm_ffi import structural_equal

from kernels import error, one_conv, prepared, random_args, run_kernel, this_machine
from models import tiny_cnn, tiny_encoder
from tvmtune import api, cpu_features
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.operators import cpu_gemm
from tvmtune.spaces import cpu_rows, rule_space, rules, traces
from tvmtune.spaces.rule_space import RuleSpace, apply_anchor, replay, tune_context
from tvmtune.tasks.extract import extract_tasks
from tvmtune.types import Implementation


def target() -> tvm.target.Target:
    return tvm.target.Target(this_machine().target)


def default(mod: tvm.IRModule):
    return RuleSpace(this_machine().target).default(mod, target())


def assert_default_is_correct(mod: tvm.IRModule, tolerance: float = 1e-5) -> None:
    args = random_args(mod)
    assert error(run_kernel(default(mod).mod, args), run_kernel(mod, args)) <= tolerance


def implementations(model, layout: str = "NHWC") -> list[Implementation]:
    network = prepared(model, layout)
    return [i for t in extract_tasks(network, network.device) for i in t.implementations]


def operator(function, *shapes: tuple[int, ...], dtype: str = "float32") -> tvm.IRModule:
    """The kernel of one operator; the second of two arguments counts as weights."""
    args = [te.placeholder(shape, dtype, name=f"arg{i}") for i, shape in enumerate(shapes)]
    func = te.create_prim_func([*args, function(*args)])
    if len(args) == 2:
        func = func.with_attr("layout_free_buffers", [1])
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def conv(stride: int = 1, padding: int = 1, dilation: int = 1, out: str = "float32"):
    return lambda x, w: topi.nn.conv2d_nhwc(x, w, stride, padding, dilation, out_dtype=out)


def pool(kind: str, size: int, stride: int, padding: int):
    def build(x):
        window, pads = (size, size), (padding,) * 4
        return topi.nn.pool2d(x, window, (stride,) * 2, (1, 1), pads, kind, layout="NHWC")

    return build


@pytest.mark.parametrize(
    ("make", "layout"),
    [(tiny_cnn, "NHWC"), (tiny_cnn, "NCHW"), (tiny_encoder, "NHWC")],
)
@pytest.mark.slow
def test_the_default_schedule_is_correct_for_every_kernel_of_a_network(make, layout):
    for implementation in implementations(make(), layout):
        assert_default_is_correct(implementation.mod)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "kernel",
    [
        (conv(), (1, 14, 14, 32), (3, 3, 32, 64)),
        (conv(), (1, 7, 7, 16), (3, 3, 16, 24)),
        (conv(stride=2), (2, 13, 7, 5), (3, 3, 5, 7)),
        (conv(dilation=2), (1, 13, 13, 3), (3, 3, 3, 1)),
        (conv(padding=0), (1, 1, 1, 64), (1, 1, 64, 10)),
        (conv(padding=0), (1, 1, 1, 1), (1, 1, 1, 1)),
        (conv(padding=3, stride=2), (1, 29, 31, 3), (7, 7, 3, 17)),
        (lambda x, w: topi.nn.depthwise_conv2d_nhwc(x, w, 1, 1, 1), (1, 13, 7, 9), (3, 3, 9, 1)),
        (lambda x, w: topi.nn.conv2d_nchw(x, w, 1, 1, 1), (1, 5, 7, 13), (11, 5, 3, 3)),
        (topi.nn.dense, (1, 64), (10, 64)),
        (topi.nn.dense, (7, 13), (1, 13)),
        (topi.nn.dense, (1, 1001), (1000, 1001)),
        (topi.nn.batch_matmul, (3, 13, 7), (3, 5, 7)),
        (pool("max", 3, 2, 1), (1, 13, 13, 7)),
        (pool("avg", 2, 2, 0), (2, 8, 8, 16)),
        (lambda x: topi.sum(x, axis=(1, 2)), (1, 7, 7, 13)),
        # no numbers that cancel: the result would depend on the order
        (lambda x: topi.sum(topi.abs(x)), (7, 13)),
        (lambda x: topi.nn.softmax(x, axis=-1), (1, 1000)),
        (lambda x: topi.nn.softmax(x, axis=1), (2, 7, 13)),
        (lambda x: topi.argmax(x, axis=1), (13, 7)),
        (lambda x: topi.nn.relu(x), (7, 13, 1)),
        (lambda x: topi.transpose(x, (1, 0)), (7, 13)),
    ],
    ids=lambda kernel: "-".join("x".join(map(str, shape)) for shape in kernel[1:]),
)
def test_the_default_schedule_is_correct_for_odd_extents_and_few_channels(kernel):
    assert_default_is_correct(operator(*kernel))


@pytest.mark.parametrize(
    "kernel",
    [
        (conv(out="int32"), (1, 7, 7, 16), (3, 3, 16, 16), "int8"),
        (conv(out="int32"), (1, 13, 9, 3), (3, 3, 3, 5), "uint8"),
        (lambda x, w: topi.nn.dense(x, w, out_dtype="int32"), (3, 64), (7, 64), "int8"),
        (lambda x: topi.sum(x, axis=1), (13, 7), "int64"),
        (lambda x, y: topi.add(x, y), (13, 7), (7,), "int64"),
        (lambda x, y: topi.take(x, y, axis=0, mode="clip"), (5, 3), (7,), "int64"),
    ],
    ids=["conv-int8", "conv-uint8", "dense-int8", "sum-int64", "add-int64", "take-int64"],
)
def test_the_default_schedule_is_correct_for_integers(kernel):
    *kernel, dtype = kernel
    assert_default_is_correct(operator(*kernel, dtype=dtype), tolerance=0)


def test_the_default_schedule_of_a_bfloat16_pooling_layer_compiles():
    assert_default_is_correct(
        operator(pool("max", 3, 2, 1), (1, 16, 16, 8), dtype="bfloat16"), tolerance=0
    )


def test_the_default_schedule_is_deterministic():
    mod = operator(conv(), (1, 14, 14, 16), (3, 3, 16, 32))
    assert structural_equal(default(mod).mod, default(mod).mod)


def test_the_default_schedule_of_a_convolution_packs_weights_vectorizes_and_parallelizes():
    script = default(operator(conv(), (1, 14, 14, 32), (3, 3, 32, 64))).mod.script()
    assert "meta_schedule.layout_rewrite_preproc" in script
    assert "T.vectorized" in script
    assert "T.parallel" in script


@pytest.mark.parametrize("shape", [(1, 12, 197, 197), (1, 12, 128, 128), (2, 50, 100)])
def test_the_default_schedule_of_a_kernel_without_products_is_by_rows(shape):
    """TVM's rules also have designs for these kernels, which split the sums alone."""
    mod = operator(topi.nn.softmax, shape)
    machine = this_machine().target
    cores = int(machine["num-cores"])
    by_rows = cpu_rows.schedule(mod, cpu_features.vector_unit(machine), cores)
    assert by_rows is not None
    assert structural_equal(default(mod).mod, by_rows.mod)


def test_a_rule_that_fails_leaves_its_kernel_to_the_general_rules():
    """A kernel without a schedule would be a hundred times slower, and nothing would say why."""

    def failing(sch, block):
        sch.split(sch.get_loops(block)[0], [None, 1])
        raise IndexError("list index out of range")

    name = "tvmtune.test_rule"
    tvm.register_global_func(
        f"s_tir.meta_schedule.cpu.{name}", rules.or_general(name, failing), override=True
    )
    x, w = (te.placeholder((64, 64), name=n) for n in "xw")
    k = te.reduce_axis((0, 64), "k")
    y = te.compute(
        (64, 64), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), attrs={"schedule_rule": name}
    )
    mod = tvm.IRModule({"main": te.create_prim_func([x, w, y]).with_attr("global_symbol", "main")})
    with pytest.warns(UserWarning, match=rf"rule {name} failed \(list index out of range\)"):
        schedule = RuleSpace(this_machine().target).choose(mod, target())
    script = schedule.mod.script()
    assert "T.parallel" in script and "T.vectorized" in script
    args = random_args(mod)
    assert error(run_kernel(schedule.mod, args), run_kernel(mod, args)) <= 1e-5


def test_the_general_rules_keep_vectors_whole_where_the_rule_for_vectors_fails():
    def failing(sch, block):
        raise IndexError("list index out of range")

    key = f"s_tir.meta_schedule.cpu.{cpu_gemm.BY_VECTORS}"
    plan = api.plan(OnnxNetwork(one_conv(out=24), name="conv"), attrs={"mcpu": "haswell"})
    (task,) = [t for t in plan.tasks if t.untuned.name == "implicit-gemm"]
    before = tvm.get_global_func(key)
    tvm.register_global_func(key, rules.or_general(cpu_gemm.BY_VECTORS, failing), override=True)
    try:
        with pytest.warns(UserWarning, match="general rules"):
            schedule = RuleSpace(plan.device.target).choose(
                task.untuned.mod, tvm.target.Target(plan.device.target)
            )
    finally:
        tvm.register_global_func(key, before, override=True)
    script = schedule.mod.script()
    assert "SSRSRS" in script
    (extent,) = re.findall(
        r'T.vectorized\(T.int64\((\d+)\)\):\n +with T.sblock\("product_update"\)', script
    )
    assert int(extent) % 8 == 0


def test_a_trace_round_trips_through_json():
    for implementation in implementations(one_conv()):
        schedule = default(implementation.mod)
        text = json.dumps(traces.to_json(schedule))
        replayed = traces.apply(implementation.mod, json.loads(text))
        assert structural_equal(replayed.mod, schedule.mod)
        assert json.dumps(traces.to_json(replayed)) == text


def test_traces_of_the_search_round_trip_through_json():
    from tvm.s_tir.meta_schedule.search_strategy import ReplayTrace

    mod = operator(conv(), (1, 13, 7, 16), (3, 3, 16, 24))
    generator = RuleSpace(this_machine().target).generator()
    context = tune_context(mod, target(), generator, seed=3, strategy=ReplayTrace())
    designs = context.generate_design_space()
    context.pre_tuning(6, 6, designs)
    candidates = context.generate_measure_candidates()
    assert len(candidates) == 6
    for candidate in candidates:
        text = json.dumps(traces.to_json(candidate.sch))
        assert structural_equal(traces.apply(mod, json.loads(text)).mod, candidate.sch.mod)


def test_a_trace_of_another_workload_is_rejected():
    trace = traces.to_json(default(operator(conv(), (1, 14, 14, 16), (3, 3, 16, 16))))
    with pytest.raises(Exception, match="."):
        traces.apply(operator(pool("max", 3, 2, 1), (1, 14, 14, 16)), trace)


def test_a_stored_workload_is_restored():
    for implementation in implementations(one_conv()):
        text = traces.store_module(implementation.mod)
        assert structural_equal(traces.load_module(text), implementation.mod)


@pytest.fixture
def by_decisions(monkeypatch):
    """Lists the schedules that got the decisions of a trace instead of the trace."""
    made: list[object] = []
    usual = rule_space._with_decisions

    def note(*args: object) -> object:
        made.append(usual(*args))
        return made[-1]

    monkeypatch.setattr(rule_space, "_with_decisions", note)
    return made


@pytest.mark.slow
def test_a_schedule_applies_to_another_epilogue():
    def kernel(*tail: str) -> tvm.IRModule:
        return next(
            i.mod
            for i in implementations(one_conv(tail=tail))
            if i.name == "direct" and "conv2d" in i.mod.script()
        )

    donor, other = kernel("bias", "relu"), kernel("bias", "relu", "sum")
    assert not structural_equal(donor, other)
    schedule = apply_anchor(
        other,
        donor,
        traces.to_json(default(donor)),
        target(),
        RuleSpace(this_machine().target),
    )
    args = random_args(other)
    assert error(run_kernel(schedule.mod, args), run_kernel(other, args)) < 1e-5


def sum_of(*order: str, relu: bool = False) -> tvm.IRModule:
    """A 1x1 convolution with a bias ("b"), to which a residual is added ("r"), in this order."""
    shapes = {"x": (1, 14, 14, 16), "w": (1, 1, 16, 24), "b": (1, 1, 1, 24), "r": (1, 14, 14, 24)}
    x, w, b, r = (te.placeholder(shape, name=name) for name, shape in shapes.items())
    operands = {"b": topi.add(topi.nn.conv2d_nhwc(x, w, 1, 0, 1), b), "r": r}
    y = topi.add(*(operands[name] for name in order))
    func = te.create_prim_func([x, w, b, r, topi.nn.relu(y) if relu else y])
    func = func.with_attrs({"layout_free_buffers": [1, 2], "global_symbol": "main"})
    return tvm.IRModule({"main": func})


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("donor", "other", "fits"),
    [
        (sum_of("b", "r"), sum_of("r", "b"), False),
        (sum_of("r", "b"), sum_of("b", "r"), False),
        (sum_of("b", "r"), sum_of("b", "r", relu=True), True),
    ],
    ids=["bias-first", "residual-first", "same-order"],
)
def test_a_trace_that_reorders_a_bias_does_not_reorder_a_residual(donor, other, fits, by_decisions):
    """In place of the bias, the other kernel may read the sum's other operand."""
    space = RuleSpace(this_machine().target)
    context = tune_context(donor, target(), space.generator(), seed=1)
    design = context.generate_design_space()[-1]
    recorded = replay(donor, design.trace, list(context.space_generator.postprocs))
    assert any(inst.kind.name == "TransformLayout" for inst in recorded.trace.insts)
    schedule = apply_anchor(other, donor, traces.to_json(recorded), target(), space)
    assert by_decisions == ([] if fits else [schedule])
    args = random_args(other)
    assert error(run_kernel(schedule.mod, args), run_kernel(other, args)) < 1e-5
