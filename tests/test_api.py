"""The Python API from end to end: plan, tune and compile, and the library's answer is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from models import tiny_cnn, tiny_encoder
from tvmtune import api
from tvmtune.deploy.library import Library
from tvmtune.deploy.verify import run_check
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.inputs import random_inputs
from tvmtune.records.log import read_log
from tvmtune.tuning.session import Budget
from tvmtune.types import Timing

QUICK = Timing(repeat=3)


def plan_of(model: onnx.ModelProto, folder: Path, **options) -> api.Plan:
    """Through a file, as users come."""
    path = folder / "network.onnx"
    onnx.save(model, path)
    return api.plan(api.load(str(path)), **options)


def assert_right(path: Path, plan: api.Plan) -> None:
    """Its outputs are ONNX Runtime's, and others for other inputs."""
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


def test_a_plan_knows_its_network_its_device_and_its_log(tmp_path):
    plan = plan_of(tiny_cnn(batch=2), tmp_path, attrs={"threads": 1})
    assert plan.device.threads == 1
    assert plan.prepared.layout == "NHWC"
    assert plan.default_log() == Path("network-NHWC-B2-cpu.json")
    assert len(plan.tasks) > 5


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
def test_a_plan_refuses_what_it_does_not_know(tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        plan_of(tiny_cnn(), tmp_path, **options)


def test_given_hardware_parameters_win_over_those_found(tmp_path):
    found = plan_of(tiny_cnn(), tmp_path).device.params
    given = plan_of(tiny_cnn(), tmp_path, params={"l2_bytes": 12345}).device.params
    assert given == {**found, "l2_bytes": 12345}


@pytest.mark.parametrize("layout", ["NHWC", pytest.param("NCHW", marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [tiny_cnn, pytest.param(tiny_encoder, marks=pytest.mark.slow)])
def test_compiling_needs_no_log(tmp_path, make, layout):
    plan = plan_of(make(), tmp_path, layout=layout)
    compiled = api.compile(plan, tmp_path / "lib.so")
    assert compiled.counts == {"exact": 0, "anchor": 0, "default": len(plan.tasks)}
    assert_right(compiled.path, plan)


@pytest.mark.slow
@pytest.mark.parametrize("make", [tiny_cnn, tiny_encoder])
def test_tuned_networks_are_right(tmp_path, make):
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
    assert compiled.counts == {"exact": len(plan.tasks), "anchor": 0, "default": 0}
    assert_right(compiled.path, plan)


@pytest.mark.slow
def test_a_second_run_continues_and_other_networks_are_refused(tmp_path):
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
def test_only_the_chosen_tasks_are_tuned(tmp_path):
    plan, log = plan_of(tiny_cnn(), tmp_path), tmp_path / "log.json"
    (task,) = [t for t in plan.tasks if len(t.implementations) == 2]
    api.tune(plan, log, budget=Budget(trials=6), timing=QUICK, tasks=[task])
    trials = read_log(log).trials
    assert {t.task for t in trials} == {task.key}
    assert {t.implementation for t in trials} == {"direct", "winograd"}
    compiled = api.compile(plan, tmp_path / "lib.so", [log])
    assert compiled.counts == {"exact": 1, "anchor": 0, "default": len(plan.tasks) - 1}
    assert_right(compiled.path, plan)


@pytest.mark.slow
def test_a_log_serves_the_network_with_another_head(tmp_path):
    """Keys hold for equal kernels wherever they stand; only the classifier is another."""
    plan, log = plan_of(tiny_cnn(classes=10), tmp_path), tmp_path / "log.json"
    trials = sum(len(t.implementations) for t in plan.tasks)
    api.tune(plan, log, budget=Budget(trials=trials), timing=QUICK)
    other = plan_of(tiny_cnn(classes=7, seed=3), tmp_path)
    compiled = api.compile(other, tmp_path / "lib.so", [log])
    assert compiled.counts == {"exact": len(other.tasks) - 1, "anchor": 0, "default": 1}
    assert_right(compiled.path, other)
