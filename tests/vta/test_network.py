"""Whole networks: which layers are packed, and that results are bit-exact."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cli.commands import complaint, tvmtune
from quantize import cnn
from tvmtune import api, networks
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.inputs import random_inputs
from tvmtune.quantize import integers
from tvmtune.quantize.layers import SumLayer
from tvmtune.runtime.library import Library
from tvmtune.tuning.budget import Budget
from tvmtune_vta.codegen import addition
from tvmtune_vta.codegen.addition import Addition
from tvmtune_vta.device import packed_functions
from tvmtune_vta.hardware import rules
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.simulator import reference
from tvmtune_vta.timing import time_model

pytestmark = pytest.mark.filterwarnings("ignore:.*is calibrated with.*")


def programs() -> list:
    return packed_functions.cache.programs()


@pytest.fixture(autouse=True)
def forget():
    packed_functions.cache.clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "count", "attrs"),
    [
        (cnn.residual(), 1, {}),
        (cnn.mixed(), 3, {}),
        (cnn.decoder(), 2, {}),
        (cnn.residual(20), 1, {}),
        (cnn.residual(32), 1, {"config": "wide"}),
        (cnn.residual(), 1, {"config": "batch"}),
    ],
    ids=["residual", "mixed", "decoder", "channels of no whole block", "block of 32", "batch of 2"],
)
def test_a_library_is_bit_exact_with_the_int8_reference(network, count, attrs, tmp_path):
    if attrs:
        keys = {"wide": {"LOG_BLOCK": 5, "LOG_WGT_BUFF_SIZE": 20}, "batch": {"LOG_BATCH": 1}}
        changed = Config().as_dict() | keys[attrs["config"]]
        path = tmp_path / "vta_config.json"
        path.write_text(json.dumps(changed))
        attrs = {"config": str(path)}
    plan = api.plan(network, "vta", attrs=attrs)
    compiled = api.compile(plan, tmp_path / "lib.so")
    library = Library.open(compiled.path)
    for seed in (1, 2):
        inputs = random_inputs(network.inputs, seed)
        (got,), (wanted,) = library.run(inputs), plan.network.reference(inputs)
        assert np.array_equal(got, wanted)
    assert len(programs()) == count


@pytest.mark.slow
def test_a_library_approximates_the_float_network():
    for network in (cnn.residual(), cnn.mixed(), cnn.forked(), cnn.decoder()):
        attrs = {"start-op": "relu"} if network.name == "forked" else {}
        plan = api.plan(network, "vta", attrs=attrs)
        inputs = random_inputs(network.inputs, 3)
        for got, wanted in zip(
            plan.network.reference(inputs), network.reference(inputs), strict=True
        ):
            assert np.sum((got - wanted) ** 2) < 0.01 * np.sum(wanted**2)


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "log_batch"), [(1, 0), (2, 1), (3, 1)])
def test_all_kinds_of_inputs_outputs_and_sums(batch, log_batch, tmp_path):
    path = tmp_path / "vta_config.json"
    path.write_text(json.dumps(Config().as_dict() | {"LOG_BATCH": log_batch}))
    network = cnn.forked(batch)
    plan = api.plan(network, "vta", attrs={"config": str(path), "start-op": "relu"})
    split = plan.prepared.extra["partition"]
    if not log_batch:
        (why,) = split.refused.values()
        assert "an accumulator would be written twice within 2 steps" in why
    assert [layer.kind for layer in split.layers].count("sum") == 2
    library = Library.open(api.compile(plan, tmp_path / "lib.so").path)
    inputs = random_inputs(network.inputs, 1)
    for got, wanted in zip(library.run(inputs), plan.network.reference(inputs), strict=True):
        assert np.array_equal(got, wanted)


@pytest.mark.slow
def test_a_library_too_large_to_be_loaded_whole_is_checked(tmp_path, monkeypatch):
    monkeypatch.setattr("tvmtune.library.embedded_weights.KEPT", 0)
    compiled = api.compile(api.plan(cnn.residual(), "vta"), tmp_path / "lib.so")
    assert compiled.metadata["modelled"]


def test_a_damaged_program_is_rejected():
    program = addition.generate(Addition((1, 1, 2, 2, 1, 16)), Config())
    data = np.frombuffer(packed_functions.blob(program), np.uint8).copy()
    data[-1] ^= 1
    with pytest.raises(TvmtuneError, match="program is damaged: compile it again"):
        packed_functions.run(data)


@pytest.mark.slow
def test_a_program_is_independent_of_the_engines_speed(tmp_path):
    network = cnn.residual()
    plan = api.plan(network, "vta")
    Library.open(api.compile(plan, tmp_path / "lib.so").path).run(random_inputs(network.inputs, 0))
    (program,) = programs()
    shape = program.buffers[0].shape
    given = np.random.default_rng(0).integers(-127, 128, shape).astype(np.int8)
    reference.run_all_orders(program, {0: given})


@pytest.mark.slow
def test_tasks_are_named_as_in_the_tutorial():
    plan = api.plan(networks.load("resnet-18"), "vta")
    assert [(task.name, task.weight) for task in plan.tasks] == [
        (f"conv2d_packed({numbers})", weight)
        for numbers, weight in [
            ("1,56,56,64,64,3,3,1,1,1,1", 4),
            ("1,56,56,64,128,3,3,1,1,2,2", 1),
            ("1,56,56,64,128,1,1,0,0,2,2", 1),
            ("1,28,28,128,128,3,3,1,1,1,1", 3),
            ("1,28,28,128,256,3,3,1,1,2,2", 1),
            ("1,28,28,128,256,1,1,0,0,2,2", 1),
            ("1,14,14,256,256,3,3,1,1,1,1", 3),
            ("1,14,14,256,512,3,3,1,1,2,2", 1),
            ("1,14,14,256,512,1,1,0,0,2,2", 1),
            ("1,7,7,512,512,3,3,1,1,1,1", 3),
        ]
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "tuner",
    ["xgb", *(pytest.param(n, marks=pytest.mark.slow) for n in ("random", "evolutionary", "grid"))],
)
def test_tuning_searches_knobs_with_modeled_times(tuner, tmp_path):
    plan = api.plan(cnn.residual(), "vta")
    budget = Budget(trials=30)
    api.tune(plan, tmp_path / "log.json", tuner=tuner, budget=budget)
    lines = [json.loads(line) for line in (tmp_path / "log.json").read_text().splitlines()]
    trials = [line for line in lines if "seconds" in line]
    assert len(trials) >= 30
    assert {trial["kind"] for trial in trials} == {"modelled"}
    assert all(trial["seconds"] for trial in trials), "what does not fit is never tried"
    device = next(line["device"] for line in lines if "device" in line)
    assert device["attrs"]["constants"]["mhz"] == 100


@pytest.mark.slow
def test_records_determine_the_knobs_of_a_library(tmp_path):
    network, log = cnn.residual(), tmp_path / "log.json"
    plan = api.plan(network, "vta")
    api.tune(plan, log, budget=Budget(trials=30))
    compiled = api.compile(plan, tmp_path / "tuned.so", [log])
    assert compiled.metadata["tasks"]["exact"] == len(plan.tasks)
    inputs = random_inputs(network.inputs, 1)
    library = Library.open(compiled.path)
    assert np.array_equal(library.run(inputs)[0], plan.network.reference(inputs)[0])
    (tuned,) = programs()
    packed_functions.cache.clear()
    untuned = api.compile(plan, tmp_path / "untuned.so")
    Library.open(untuned.path).run(inputs)
    (default,) = programs()
    assert time_model.program_timeline(tuned).cycles <= time_model.program_timeline(default).cycles


@pytest.mark.parametrize(
    ("left", "right", "shift"), [(0, 0, 0), (3, 0, 2), (0, 6, 5), (None, 0, 0), (2, None, 1)]
)
def test_a_sum_on_the_accelerator(left, right, shift):
    config = Config()
    shape = (1, 3, 9, 7, 1, 16)
    rng = np.random.default_rng(0)
    one, other = (rng.integers(-128, 128, shape).astype(np.int8) for _ in range(2))
    wanted = Addition(shape, left, right, shift, low=-100)
    program = addition.generate(wanted, config)
    rules.check(program)
    memory = {addition.A: one, addition.B: other}
    computed = reference.run_all_orders(program, memory).memory[addition.Y]
    layer = SumLayer(("a", "b"), "y", (shape, shape), shape)
    whole = integers.QuantizedSum(layer, (0, 0), 0, shift, -100, 127, factors=(left, right))
    assert np.array_equal(computed, whole.run([one, other]))


def test_a_factor_beyond_int8_is_rejected():
    with pytest.raises(TvmtuneError, match="weights hold 2\\^0 to 2\\^6"):
        addition.generate(Addition((1, 1, 1, 1, 1, 16), left=7), Config())


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"config": "pinq"}, "neither a published configuration nor a file. Did you mean pynq"),
        ({"configuration": "sim"}, "'configuration' is not known. Did you mean config"),
        ({"start-op": "max_pool"}, "no operator 'max_pool' for start-op. Did you mean max_pool2d"),
        ({"threads": "two"}, "threads=two is not a number"),
        ({"mcpu": "skylakee"}, "LLVM has no processor 'skylakee'. Did you mean skylake"),
    ],
)
def test_invalid_attributes_are_rejected(attrs, message):
    with pytest.raises(UsageError) as raised:
        api.plan(cnn.residual(), "vta", attrs=attrs)
    assert message in str(raised.value)


def test_other_layouts_are_rejected():
    with pytest.raises(UsageError, match="packed from NCHW"):
        api.plan(cnn.residual(), "vta", layout="NHWC")


@pytest.mark.slow
def test_tune_compile_and_bench_from_the_command_line(tmp_path):
    """tune, distill, compile, bench, with calibration data from a file."""
    model = tmp_path / "cnn.onnx"
    model.write_bytes(cnn.residual().to_onnx())
    samples = np.random.default_rng(0).standard_normal((4, 3, 16, 16)).astype("float32")
    np.savez(tmp_path / "samples.npz", data=samples)
    network = ["--target", "vta", "--network", "cnn.onnx", "--calibration", "samples.npz"]
    tuned = tvmtune(
        "tune", *network, "--trials", "8", "--log", "log.json", "-o", "lib.so", cwd=tmp_path
    )
    assert tuned.returncode == 0, tuned.stderr
    assert "calibrated with" not in tuned.stderr
    assert " estimated from its kernels, all modeled\n" in tuned.stdout
    for words in (
        ["distill", "log.json", "-o", "best.json"],
        ["compile", *network, "--log", "best.json", "-o", "again.so"],
        ["bench", "again.so", "--check", "--repeat", "3"],
    ):
        done = tvmtune(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_calibration_data_of_another_network_are_rejected(tmp_path):
    (tmp_path / "cnn.onnx").write_bytes(cnn.residual().to_onnx())
    np.savez(tmp_path / "samples.npz", data=np.ones((1, 3, 8, 8), "float32"))
    words = ["tasks", "--target", "vta", "--network", "cnn.onnx", "--calibration", "samples.npz"]
    text = complaint(tvmtune(*words, cwd=tmp_path).stderr)
    assert "'data' is 1x3x8x8, and the network takes 1x3x16x16" in text
