"""``--dtype int8`` on CPUs without integer instructions: kernels equal the reference to the bit."""

from __future__ import annotations

import platform

import numpy as np
import pytest
import tvm

from cli.commands import complaint, tvmtune
from quantize import cnn
from tvmtune import api
from tvmtune.errors import UsageError
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.int8 import Int8Network
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.networks.zoo.graph_builder import GraphBuilder
from tvmtune.operators import cpu_pipeline
from tvmtune.quantize.graph import operator_calls, operator_names
from tvmtune.records.log import read_log
from tvmtune.runtime.library import Library
from tvmtune.spaces.rule_space import tune_context
from tvmtune.tuning.budget import Budget
from tvmtune.types import Timing

pytestmark = pytest.mark.filterwarnings("ignore:.*is calibrated with.*")

WITHOUT: dict[str, str] = {"mcpu": "ivybridge"} if platform.machine() == "x86_64" else {}
"""A CPU that this machine can run the code of, and that has no integer instructions."""


class OtherFormat:
    """A network of another format, without an ONNX form."""

    def __init__(self, network: OnnxNetwork) -> None:
        self._network = network

    def __getattr__(self, name: str):
        return getattr(self._network, name)

    def to_onnx(self) -> None:
        return None


def assert_exact(plan: api.Plan, library: Library) -> None:
    for seed in (1, 2):
        inputs = random_inputs(plan.network.inputs, seed)
        (got,), (wanted,) = library.run(inputs), plan.network.reference(inputs)
        assert np.array_equal(got, wanted)
        assert np.ptp(wanted) > 0


@pytest.mark.parametrize(
    "network",
    [
        pytest.param(cnn.residual(), marks=pytest.mark.slow),
        pytest.param(cnn.mixed(), marks=pytest.mark.slow),
        pytest.param(cnn.decoder(), marks=pytest.mark.slow),
        pytest.param(cnn.residual(20), marks=pytest.mark.slow),
    ],
    ids=["residual", "depthwise, grouped, dilated", "transposed", "partial channel block"],
)
def test_a_library_equals_the_reference_to_the_bit(network, tmp_path):
    plan = api.plan(Int8Network(network), "cpu", attrs=WITHOUT)
    compiled = api.compile(plan, tmp_path / "lib.so")
    assert_exact(plan, Library.open(compiled.path))


@pytest.mark.slow
def test_only_integer_kernels_are_tuned():
    plan = api.plan(Int8Network(cnn.mixed()), "cpu", attrs=WITHOUT)
    assert plan.tasks
    for task in plan.tasks:
        assert {arg.dtype for arg in task.args} <= {"uint8", "int8", "int32"}
    assert any("depthwise" in task.name for task in plan.tasks)


@pytest.mark.slow
def test_everything_after_the_first_convolution_is_quantized():
    """Also layers before the pooling at which VTA's region begins."""
    g = GraphBuilder("early")
    x = g.relu(g.conv_bn(g.input("data", (1, 3, 16, 16)), "stem", 16, 3, pad=1))
    x = g.max_pool(g.relu(g.conv_bn(x, "early", 16, 3, pad=1)), "pool", 2, stride=2)
    x = g.relu(g.conv_bn(x, "late", 32, 3, pad=1))
    network = OnnxNetwork(g.model(g.global_average_pool(x, "average")), name="early")
    plan = api.plan(Int8Network(network), "cpu", attrs=WITHOUT)
    assert len(plan.tasks) == 2


@pytest.mark.slow
def test_float_operators_before_the_first_integer_kernel_leave_channels_last():
    """Transposing a whole feature map takes as long as pooling it."""
    g = GraphBuilder("stem")
    x = g.relu(g.conv_bn(g.input("data", (1, 3, 16, 16)), "stem", 16, 3, pad=1))
    x = g.max_pool(x, "pool", 2, stride=2)
    x = g.relu(g.conv_bn(x, "late", 32, 3, pad=1))
    network = OnnxNetwork(g.model(g.global_average_pool(x, "average")), name="stem")
    graph = api.plan(Int8Network(network), "cpu", attrs=WITHOUT).prepared.graph
    operators = [operator for _, operator in operator_calls(graph)]
    assert operators[0] == "permute_dims"  # of the image
    assert operators.count("permute_dims") == 1
    (pool,) = [
        binding.value
        for block in graph["main"].body.blocks
        for binding in block.bindings
        if "max_pool2d" in operator_names(binding.value)
    ]
    assert pool.attrs.layout == "NHWC"


@pytest.mark.slow
def test_a_tuned_library_computes_the_same_bits(tmp_path):
    plan = api.plan(Int8Network(cnn.residual()), "cpu", attrs=WITHOUT)
    timing = Timing(repeat=3)
    api.tune(plan, tmp_path / "log.json", budget=Budget(trials=24), timing=timing)
    assert sum(t.error is not None for t in read_log(tmp_path / "log.json").trials) <= 2
    compiled = api.compile(plan, tmp_path / "lib.so", [tmp_path / "log.json"])
    assert compiled.counts["exact"] == len(plan.tasks)
    assert_exact(plan, Library.open(compiled.path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processor", "has"),
    [("cascadelake", True), ("skylake-avx512", False), ("alderlake", True), ("haswell", False)],
)
def test_dot_product_instructions_are_used_where_available(processor, has):
    """In networks without an ONNX form. Read from the generated code, so that this machine need not
    have them."""
    network = Int8Network(OtherFormat(cnn.residual(32)))
    plan = api.plan(network, "cpu", attrs={"mcpu": processor})
    task = max(plan.tasks, key=lambda task: task.flop)
    (direct,) = task.implementations
    target = tvm.target.Target(plan.device.target)
    context = tune_context(direct.mod, target, direct.space.generator(), seed=1)
    designs = [str(design.trace) for design in context.generate_design_space()]
    assert any("_vnni" in design for design in designs) == has
    pipeline = cpu_pipeline.pipeline_for(plan.device.target)
    sch = direct.space.default(direct.mod, target)
    compiled = tvm.compile(sch.mod, target, tir_pipeline=pipeline)
    assert ("vpdpbusd" in compiled.mod.inspect_source("asm")) == has


@pytest.mark.slow
def test_kernels_compile_for_an_arm_board(tmp_path):
    plan = api.plan(Int8Network(cnn.residual()), "arm", attrs={"board": "rk3399"})
    assert api.compile(plan, tmp_path / "lib.so").path.stat().st_size > 0


@pytest.mark.slow
def test_tune_and_bench_from_the_command_line(tmp_path):
    (tmp_path / "cnn.onnx").write_bytes(cnn.residual().to_onnx())
    samples = np.random.default_rng(0).standard_normal((4, 3, 16, 16)).astype("float32")
    np.savez(tmp_path / "samples.npz", data=samples)
    words = ["cnn.onnx", "--dtype", "int8", "--calibration", "samples.npz"]
    words += [f"--target-attr={name}={value}" for name, value in WITHOUT.items()]
    done = tvmtune("tune", *words, "--trials", 6, "--repeat", 3, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the output is right" in done.stdout
    assert (tmp_path / "cnn-int8-NCHW-B1-cpu.json").exists()
    done = tvmtune("bench", "cnn-int8.so", "--check", "--repeat", 3, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        (cnn.residual(), {"calibration": {}}, "--calibration is for --dtype int8"),
        (Int8Network(cnn.residual()), {"layout": "NHWC"}, "packed from NCHW"),
        (Int8Network(cnn.residual()), {"calibration": {}}, "has no array 'data'"),
    ],
)
def test_unsuitable_options_are_refused(network, options, message):
    with pytest.raises(UsageError, match=message):
        api.plan(network, "cpu", attrs=WITHOUT, **options)


@pytest.mark.slow
def test_a_backend_without_int8_says_so(tmp_path):
    words = ["compile", "resnet-18", "--dtype", "int8", "-o", "lib.so"]
    words += ["--target", "mali", "--target-attr", "board=rk3399"]
    done = tvmtune(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert "backend 'mali' does not support int8" in complaint(done.stderr)
