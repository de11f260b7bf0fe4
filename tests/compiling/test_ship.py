"""The shipped library is the fastest one with correct outputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import tvm
from onnx import numpy_helper

from models import tiny_cnn
from tvmtune import api
from tvmtune.cli.compile import describe
from tvmtune.compiling import ship as shipping
from tvmtune.compiling.accuracy_fallbacks import Attempt
from tvmtune.compiling.compile import compile_library
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.inputs import random_inputs
from tvmtune.runtime.library import Library
from tvmtune.spaces import traces
from tvmtune.tuning.budget import Budget
from tvmtune.types import Trial

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("ship") / "tiny.onnx"
    onnx.save(tiny_cnn(), path)
    return api.plan(api.load(str(path)))


@pytest.fixture(scope="module")
def pair(plan, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    return [api.compile_untuned(plan, folder / f"{name}.so") for name in ("tuned", "untuned")]


def wrong(compiled):
    """A copy of the library with a check that no output passes."""
    check = dict(compiled.metadata["check"])
    check["outputs"] = [dict(o) | {"shape": [7]} for o in check["outputs"]]
    return replace(compiled, metadata=compiled.metadata | {"check": check})


@pytest.fixture
def attempts(monkeypatch):
    """Replace the compiler: attempt N yields the Nth of these libraries and is listed as compiled."""

    def serve(*libraries):
        compiled: list[int] = []

        def compile_library(plan, records, path, **_):
            compiled.append(records["number"])
            return libraries[records["number"]]

        monkeypatch.setattr(shipping, "compile_library", compile_library)
        return [Attempt({"number": n}, n) for n in range(len(libraries))], compiled

    return serve


@pytest.mark.parametrize(
    ("seconds", "kind"),
    [
        ({"tuned": 1.0, "untuned": 2.0}, "tuned"),
        ({"tuned": 1.0, "untuned": 0.99}, "tuned"),  # within the noise
        ({"tuned": 1.0, "untuned": 0.5}, "untuned"),
    ],
)
def test_the_tuned_library_is_shipped_unless_the_untuned_is_clearly_faster(
    plan, pair, attempts, tmp_path, monkeypatch, seconds, kind
):
    monkeypatch.setattr(shipping, "_time_in_turns", lambda libraries: seconds)
    tuned, _ = attempts(pair[0])
    shipped = shipping.ship(plan, tuned, pair[1], tmp_path / "lib.so")
    assert shipped.kind == kind
    assert (shipped.remark is None) == (kind == "tuned")
    assert [run.runtime for run in shipped.bench.runs] == ["tvmtune", "untuned"]
    assert shipped.untuned_ms == shipped.bench.runs[1].median_ms
    assert Library.open(tmp_path / "lib.so").run(random_inputs(plan.network.inputs))


def test_the_first_correct_attempt_is_the_tuned_library(
    plan, pair, attempts, tmp_path, monkeypatch
):
    seconds = {"tuned": 1.0, "untuned": 2.0}
    monkeypatch.setattr(shipping, "_time_in_turns", lambda libraries: seconds)
    tuned, compiled = attempts(wrong(pair[0]), pair[0], pair[0])
    shipped = shipping.ship(plan, tuned, pair[1], tmp_path / "lib.so")
    assert shipped.verdict.passed
    assert shipped.compiled.fallbacks == 1
    assert compiled == [0, 1]  # no more than needed


def test_nothing_is_written_if_all_outputs_are_wrong(plan, pair, attempts, tmp_path):
    tuned, _ = attempts(wrong(pair[0]))
    with pytest.raises(TvmtuneError, match="nothing is written"):
        shipping.ship(plan, tuned, wrong(pair[1]), tmp_path / "lib.so")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_if_the_outputs_for_given_inputs_are_wrong(
    plan, pair, attempts, tmp_path, monkeypatch
):
    reference = plan.network.reference
    monkeypatch.setattr(
        plan.network, "reference", lambda inputs: [y * 1.001 for y in reference(inputs)]
    )
    inputs = random_inputs(plan.network.inputs, 9)
    tuned, _ = attempts(pair[0])
    with pytest.raises(TvmtuneError, match="for the given inputs are wrong"):
        shipping.ship(plan, tuned, pair[1], tmp_path / "lib.so", inputs=inputs)
    assert list(tmp_path.iterdir()) == []


def test_inputs_that_the_reference_rejects_are_an_error_before_tuning(plan, tmp_path, monkeypatch):
    def refuse(inputs):
        raise IndexError("index 9 is out of bounds")

    monkeypatch.setattr(plan.network, "reference", refuse)
    inputs = random_inputs(plan.network.inputs)
    with pytest.raises(UsageError, match="cannot run the given inputs: index 9 is out of bounds"):
        api.compile_untuned(plan, tmp_path / "lib.so", inputs=inputs)


def test_an_operator_that_is_fastest_without_a_schedule_is_shipped_as_written(
    tmp_path, monkeypatch
):
    path = Path(__file__).parents[2] / "examples" / "rgb2yuv.py"
    plan = api.plan(api.load(str(path), arguments={"w": 32, "h": 8}))
    log = tmp_path / "log.json"
    api.tune(plan, log, budget=Budget(trials=2))
    times = {"tuned": 3.0, "untuned": 2.0, "as written": 1.0}
    monkeypatch.setattr(shipping, "_time_in_turns", lambda libraries: times)
    shipped = api.ship(plan, tmp_path / "lib.so", [log])
    assert shipped.kind == "as written"
    assert "the as written one is written" in str(shipped.remark)
    runs = {run.runtime: run for run in shipped.bench.runs}
    assert list(runs) == ["tvmtune", "untuned", "as written", "numpy"]
    assert runs["as written"].threads == 1


@pytest.mark.parametrize("verified", [True, None])
def test_tasks_whose_kernels_were_never_checked_are_named(plan, tmp_path, verified):
    task = plan.tasks[0]
    implementation = task.implementations[0]
    schedule = implementation.space.default(
        implementation.mod, tvm.target.Target(plan.device.target)
    )
    record = Trial(
        task.key,
        implementation.name,
        implementation.workload_key,
        "0x0",
        trace=traces.to_json(schedule),
        seconds=[1e-3],
        verified=verified,
    )
    compiled = compile_library(plan, {task.key: record}, tmp_path / "lib.so")
    assert compiled.unverified == (() if verified else (task.name,))
    assert ("are used unverified" in describe(compiled)) is not verified


def test_a_library_whose_reference_is_constant_comes_with_a_warning(tmp_path, plan, pair):
    assert pair[0].warning == ""
    model = tiny_cnn()
    for weights in model.graph.initializer:
        array = numpy_helper.to_array(weights)
        if array.ndim > 1:
            weights.CopyFrom(numpy_helper.from_array(0 * array, weights.name))
    onnx.save(model, tmp_path / "zero.onnx")
    compiled = api.compile_untuned(
        api.plan(api.load(str(tmp_path / "zero.onnx"))), tmp_path / "zero.so"
    )
    assert "the reference's output does not depend on the input" in compiled.warning
