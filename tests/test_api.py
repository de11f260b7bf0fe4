"""The Python API from end to end: plan, tune, compile, and check the library's outputs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from models import tiny_cnn, tiny_encoder
from tvmtune import api
from tvmtune.bench.verify import run_check
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.inputs import random_inputs
from tvmtune.records.log import read_log
from tvmtune.runtime.library import Library
from tvmtune.tuning.budget import Budget
from tvmtune.tuning.options import TuneOptions
from tvmtune.types import Timing

QUICK = Timing(repeat=3)


def plan_of(model: onnx.ModelProto, folder: Path, **options) -> api.Plan:
    """Plan a network from a file, as users do."""
    path = folder / "network.onnx"
    onnx.save(model, path)
    return api.plan(api.load(str(path)), **options)


def assert_correct(path: Path, plan: api.Plan) -> None:
    """The outputs equal ONNX Runtime's and change with the inputs."""
    library = Library.open(path)
    assert library.inputs == plan.network.inputs
    assert library.outputs == plan.network.outputs
    seen = []
    for seed in (1, 2):
        inputs = random_inputs(plan.network.inputs, seed)
        outputs = library.run(inputs)
        expected = plan.network.reference(inputs)
        for spec, y, ref in zip(plan.network.outputs, outputs, expected, strict=True):
            assert y.shape == spec.shape
            assert y.dtype == spec.dtype
            assert np.abs(y - ref).max() <= 1e-4 * np.abs(ref).max()
        seen.append(outputs)
    assert not np.array_equal(seen[0][0], seen[1][0])
    assert run_check(library, library.metadata["check"]).passed


def test_a_plan_describes_its_network_device_and_log(tmp_path):
    plan = plan_of(tiny_cnn(batch=2), tmp_path, attrs={"threads": 1})
    assert plan.device.threads == 1
    assert plan.prepared.layout == "NHWC"
    assert plan.default_log() == Path("network-NHWC-B2-cpu.json")
    assert plan.default_library() == Path("network-B2.so")
    assert len(plan.tasks) > 5


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("options", "target", "library"),
    [
        ({}, {}, "mobilenet.so"),
        ({"batch": 2}, {}, "mobilenet-B2.so"),
        ({"shapes": {"data": (1, 3, 96, 96)}}, {}, "mobilenet-1x3x96x96.so"),
        ({"dtype": "bfloat16"}, {}, "mobilenet-bfloat16.so"),
        ({}, {"target": "arm", "attrs": {"board": "rk3399"}}, "mobilenet-arm.so"),
    ],
)
def test_each_variant_of_a_network_has_a_library_name_of_its_own(options, target, library):
    plan = api.plan(api.load("mobilenet", **options), **target)
    assert plan.default_library() == Path(library)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "cpuu"}, "cpu"),
        ({"layout": "NHCW"}, "NHWC"),
        ({"attrs": {"thread": 1}}, "threads"),
        ({"attrs": {"threads": 0}}, "threads must be from 1 to"),
        ({"attrs": {"mcpu": "no-such-cpu"}}, "no processor 'no-such-cpu'"),
        ({"remote": "board:9"}, "'board:9' cannot be the key of a board"),
    ],
)
def test_a_plan_rejects_unknown_names_and_values(tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        plan_of(tiny_cnn(), tmp_path, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Budget(trials=0), "--trials must be at least 1, not 0"),
        (lambda: Budget(seconds=0.0), "--time-budget must be above 0, not 0"),
        (lambda: Budget(failure_rate=1.5), "--max-failure-rate must be from 0 to 1, not 1.5"),
        (lambda: Timing(repeat=0), "--repeat must be at least 1, not 0"),
        (lambda: Timing(run_timeout=-3.0), "--run-timeout must be above 0, not -3"),
        (lambda: TuneOptions(tuner="xgbb"), "tuner 'xgbb' is not known. Did you mean xgb"),
        (lambda: TuneOptions(scheduler="efect"), "scheduler 'efect' is not known."),
        (lambda: TuneOptions(wait=0.0), "--wait must be above 0, not 0"),
        (
            lambda: TuneOptions(tuner="ga", tuner_options={"populaton": 2}),
            "--tuner-option populaton: tuner 'ga' has no such option. Did you mean population",
        ),
    ],
)
def test_options_are_validated_with_the_messages_of_the_command_line(make, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        make()


def test_options_hold_canonical_names_and_typed_values():
    options = TuneOptions(tuner="genetic", tuner_options={"mutate": 1})
    assert options.tuner == "ga"
    assert options.tuner_options == {"mutate": 1.0}
    assert isinstance(options.tuner_options["mutate"], float)


def test_tuning_with_an_invalid_option_leaves_no_log(tmp_path):
    plan = plan_of(tiny_cnn(), tmp_path)
    with pytest.raises(UsageError, match="scheduler 'efect' is not known"):
        api.tune(plan, tmp_path / "log.json", scheduler="efect")
    assert not (tmp_path / "log.json").exists()


def test_given_hardware_parameters_override_detected_ones(tmp_path):
    detected = plan_of(tiny_cnn(), tmp_path).device.params
    given = plan_of(tiny_cnn(), tmp_path, params={"l2_bytes": 12345}).device.params
    assert given == {**detected, "l2_bytes": 12345}


@pytest.mark.parametrize("layout", ["NHWC", pytest.param("NCHW", marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [tiny_cnn, pytest.param(tiny_encoder, marks=pytest.mark.slow)])
def test_compiling_needs_no_log(tmp_path, make, layout):
    plan = plan_of(make(), tmp_path, layout=layout)
    compiled = api.compile(plan, tmp_path / "lib.so")
    assert compiled.counts == {"exact": 0, "anchor": 0, "shipped": 0, "default": len(plan.tasks)}
    assert_correct(compiled.path, plan)


@pytest.mark.slow
@pytest.mark.parametrize("make", [tiny_cnn, tiny_encoder])
def test_tuned_networks_are_correct(tmp_path, make):
    plan = plan_of(make(), tmp_path)
    log = tmp_path / "log.json"
    trials = sum(len(t.implementations) for t in plan.tasks) + 8
    session = api.tune(plan, log, budget=Budget(trials=trials), timing=QUICK)
    assert session.total == session.new == trials
    assert session.estimate() < float("inf")
    written = read_log(log)
    assert len(written.trials) == trials
    assert set(written.tasks) == {t.key for t in plan.tasks}
    compiled = api.compile(plan, tmp_path / "lib.so", [log])
    assert compiled.counts == {"exact": len(plan.tasks), "anchor": 0, "shipped": 0, "default": 0}
    assert_correct(compiled.path, plan)


@pytest.mark.slow
def test_a_second_run_continues_and_other_networks_are_rejected(tmp_path):
    (tmp_path / "other").mkdir()
    plan, log = plan_of(tiny_cnn(), tmp_path), tmp_path / "log.json"
    trials = sum(len(t.implementations) for t in plan.tasks)
    api.tune(plan, log, budget=Budget(trials=trials), timing=QUICK)
    session = api.tune(plan, log, budget=Budget(trials=trials + 3), timing=QUICK)
    assert (session.resumed, session.new) == (trials, 3)
    records = [(t.workload, t.candidate) for t in read_log(log).trials]
    assert len(set(records)) == len(records) == trials + 3, "nothing is measured twice"
    other = plan_of(tiny_encoder(), tmp_path / "other")
    before = log.read_bytes()
    with pytest.raises(TvmtuneError, match="the log of another network"):
        api.tune(other, log, budget=Budget(trials=1))
    fewer = plan_of(tiny_cnn(), tmp_path, attrs={"threads": 1})
    if fewer.device.threads != plan.device.threads:
        with pytest.raises(TvmtuneError, match="another device"):
            api.tune(fewer, log, budget=Budget(trials=1))
        with pytest.raises(TvmtuneError, match="no measurement of this device"):
            api.compile(fewer, tmp_path / "lib.so", [log])
    assert log.read_bytes() == before
    assert not (tmp_path / "lib.so").exists()


@pytest.mark.slow
def test_only_selected_tasks_are_tuned(tmp_path):
    plan, log = plan_of(tiny_cnn(), tmp_path), tmp_path / "log.json"
    (task,) = [t for t in plan.tasks if len(t.implementations) > 1]
    api.tune(plan, log, budget=Budget(trials=6), timing=QUICK, tasks=[task])
    trials = read_log(log).trials
    assert {t.task for t in trials} == {task.key}
    assert {t.implementation for t in trials} == {i.name for i in task.implementations}
    assert {"direct", "winograd-4x4", "winograd-2x2"} <= {t.implementation for t in trials}
    compiled = api.compile(plan, tmp_path / "lib.so", [log])
    assert compiled.counts == {
        "exact": 1,
        "anchor": 0,
        "shipped": 0,
        "default": len(plan.tasks) - 1,
    }
    assert_correct(compiled.path, plan)


@pytest.mark.slow
def test_records_are_reused_for_a_network_with_another_classifier(tmp_path):
    """Equal kernels have equal keys in both networks."""
    plan, log = plan_of(tiny_cnn(classes=10), tmp_path), tmp_path / "log.json"
    trials = sum(len(t.implementations) for t in plan.tasks)
    api.tune(plan, log, budget=Budget(trials=trials), timing=QUICK)
    other = plan_of(tiny_cnn(classes=7, seed=3), tmp_path)
    compiled = api.compile(other, tmp_path / "lib.so", [log])
    assert compiled.counts == {
        "exact": len(other.tasks) - 1,
        "anchor": 0,
        "shipped": 0,
        "default": 1,
    }
    assert_correct(compiled.path, other)
