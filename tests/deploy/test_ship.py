"""Which library is handed over: the quickest of those whose outputs are right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from models import tiny_cnn
from tvmtune import api
from tvmtune.deploy import ship as shipping
from tvmtune.deploy.library import Library
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.inputs import random_inputs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("ship") / "tiny.onnx"
    onnx.save(tiny_cnn(), path)
    return api.plan(api.load(str(path)))


@pytest.fixture(scope="module")
def made(plan, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    return [api.compile_untuned(plan, folder / f"{name}.so") for name in ("tuned", "untuned")]


def wrong(compiled):
    """The same library with a check that no output can pass."""
    check = dict(compiled.metadata["check"])
    check["outputs"] = [dict(o) | {"shape": [7]} for o in check["outputs"]]
    return replace(compiled, metadata=compiled.metadata | {"check": check})


@pytest.mark.parametrize(
    ("seconds", "kind"),
    [
        ({"tuned": 1.0, "untuned": 2.0}, "tuned"),
        ({"tuned": 1.0, "untuned": 0.99}, "tuned"),  # within the noise
        ({"tuned": 1.0, "untuned": 0.5}, "untuned"),
    ],
)
def test_the_tuned_library_is_shipped_unless_the_untuned_is_clearly_quicker(
    plan, made, tmp_path, monkeypatch, seconds, kind
):
    monkeypatch.setattr(shipping, "_in_turns", lambda libraries: seconds)
    shipped = shipping.ship(made[:1], made[1], plan.network, tmp_path / "lib.so")
    assert shipped.kind == kind
    assert (shipped.remark is None) == (kind == "tuned")
    assert [run.runtime for run in shipped.bench.runs] == ["tvmtune", "untuned"]
    assert shipped.untuned_ms == shipped.bench.runs[1].median_ms
    assert Library.open(tmp_path / "lib.so").run(random_inputs(plan.network.inputs))


def test_the_first_attempt_that_is_right_is_the_tuned_library(plan, made, tmp_path):
    attempts = iter([wrong(made[0]), made[0], None])
    shipped = shipping.ship(attempts, made[1], plan.network, tmp_path / "lib.so")
    assert shipped.verdict.passed
    assert list(attempts) == [None]  # no more are made than are needed


def test_nothing_is_written_where_all_outputs_are_wrong(plan, made, tmp_path):
    with pytest.raises(TvmtuneError, match="nothing is written"):
        shipping.ship([wrong(made[0])], wrong(made[1]), plan.network, tmp_path / "lib.so")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_where_the_users_inputs_come_out_wrong(
    plan, made, tmp_path, monkeypatch
):
    reference = plan.network.reference
    monkeypatch.setattr(
        plan.network, "reference", lambda inputs: [y * 1.001 for y in reference(inputs)]
    )
    inputs = random_inputs(plan.network.inputs, 9)
    with pytest.raises(TvmtuneError, match="for the given inputs are wrong"):
        shipping.ship(made[:1], made[1], plan.network, tmp_path / "lib.so", inputs=inputs)
    assert list(tmp_path.iterdir()) == []


def test_inputs_that_the_reference_cannot_take_are_refused_before_any_tuning(
    plan, tmp_path, monkeypatch
):
    def refuse(inputs):
        raise IndexError("index 9 is out of bounds")

    monkeypatch.setattr(plan.network, "reference", refuse)
    inputs = random_inputs(plan.network.inputs)
    with pytest.raises(UsageError, match="cannot run the given inputs: index 9 is out of bounds"):
        api.compile_untuned(plan, tmp_path / "lib.so", inputs=inputs)


def test_an_operator_whose_plain_loops_are_quickest_is_shipped_as_written(tmp_path, monkeypatch):
    path = Path(__file__).parents[2] / "examples" / "rgb2yuv.py"
    plan = api.plan(api.load(str(path), arguments={"w": 32, "h": 8}))
    log = tmp_path / "log.json"
    from tvmtune.tuning.session import Budget

    api.tune(plan, log, budget=Budget(trials=2))
    times = {"tuned": 3.0, "untuned": 2.0, "as written": 1.0}
    monkeypatch.setattr(shipping, "_in_turns", lambda libraries: times)
    shipped = api.ship(plan, tmp_path / "lib.so", [log])
    assert shipped.kind == "as written"
    assert "the as written one is shipped" in str(shipped.remark)
    runs = {run.runtime: run for run in shipped.bench.runs}
    assert list(runs) == ["tvmtune", "untuned", "as written", "numpy"]
    assert runs["as written"].threads == 1
