"""A network whose fastest kernels exceed the tolerance together keeps as many of them as possible."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace

import onnx
import pytest

from tvmtune import api
from tvmtune.bench import verify
from tvmtune.compiling import compile
from tvmtune.compiling.accuracy_fallbacks import accuracy_fallbacks
from tvmtune.compiling.compile import compile_library
from tvmtune.errors import TvmtuneError
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.networks.zoo.graph_builder import GraphBuilder
from tvmtune.records.log import read_log
from tvmtune.runtime.library import Library
from tvmtune.tuning.budget import Budget
from tvmtune.types import Timing, Trial

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """Three convolutions that Winograd's algorithm applies to, each its own task."""
    g = GraphBuilder("deep", seed=0)
    x = g.input("data", (1, 16, 16, 16))
    for number, channels in enumerate((32, 64, 96)):
        x = g.relu(g.conv_bn(x, f"layer{number}", channels, 3, pad=1))
    path = tmp_path_factory.mktemp("deep") / "deep.onnx"
    onnx.save(g.model(g.flatten(x, "flat")), path)
    return api.plan(api.load(str(path)))


@pytest.fixture(scope="module")
def log(plan, tmp_path_factory):
    """Trials of each implementation; the log claims that Winograd's are the fastest by far."""
    path = tmp_path_factory.mktemp("log") / "log.json"
    patient = Timing(build_timeout=120.0, run_timeout=60.0)
    trials = sum(len(task.implementations) for task in plan.tasks)
    api.tune(plan, path, budget=Budget(trials=trials), timing=patient)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    # On a busy machine some were measured again, which would outweigh the claimed times.
    lines = [line for line in lines if line["type"] != "remeasure"]
    trials = [line for line in lines if line["type"] == "trial"]
    quick = [
        line for line in trials if line["implementation"] == "winograd-4x4" and line["seconds"]
    ]
    assert len({line["task"] for line in quick}) == 3, trials
    for line in lines:
        if line.get("implementation") == "winograd-4x4" and line.get("seconds"):
            line |= {"seconds": [1e-9], "verified": True}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def errors(plan, log, tmp_path_factory):
    """The network's error with the records of each attempt."""
    folder, check, measured = tmp_path_factory.mktemp("errors"), verify.make_check(plan.network), []
    for attempt in accuracy_fallbacks([read_log(log)], plan.tasks, plan.device):
        path = folder / f"{attempt.fallbacks}.so"
        compile_library(plan, attempt.records, path, check=check)
        measured.append(verify.run_check(Library.open(path), check).error)
    return measured


def allow(monkeypatch, error):
    """Set the tolerance of outputs."""
    monkeypatch.setattr("tvmtune.accuracy.tolerance", lambda dtype, network=False: error)


def algorithms(compiled):
    return [row["implementation"] for row in compiled.metadata["tasks"]["list"]]


def inexact(compiled):
    """How many tasks have an algorithm that rounds more than the direct one."""
    return sum(name.startswith("winograd-4x4") for name in algorithms(compiled))


def test_an_early_kernel_falls_back_first_then_those_that_gain_least_more_in_each_attempt(
    plan, log
):
    attempts = accuracy_fallbacks([read_log(log)], plan.tasks, plan.device)
    assert [attempt.fallbacks for attempt in attempts] == [0, 1, 2, 3]
    for attempt in attempts:
        names = [trial.implementation for trial in attempt.records.values()]
        assert names.count("winograd-4x4") == 3 - attempt.fallbacks
        assert set(attempt.records) == {task.key for task in plan.tasks}
    quick, exact = attempts[0].records, attempts[-1].records
    fell_back = [
        key
        for one, following in itertools.pairwise(attempts)
        for key in exact
        if one.records[key].implementation != following.records[key].implementation
    ]
    first = min(plan.tasks, key=lambda task: (task.key not in fell_back, task.sites))
    assert fell_back[0] == first.key
    gains = [exact[key].latency - quick[key].latency for key in fell_back[1:]]
    assert len(gains) == 2
    assert gains == sorted(gains)


def test_without_records_early_kernels_get_exact_defaults_first(plan):
    attempts = accuracy_fallbacks([], plan.tasks, plan.device)
    assert [(a.fallbacks, a.exact_defaults) for a in attempts] == [(0, False), (1, True), (2, True)]
    (kept,) = attempts[1].records.values()
    last = max((t for t in plan.tasks if not t.untuned.exact), key=lambda task: task.sites)
    assert (kept.task, kept.implementation) == (last.key, last.untuned.name)
    assert kept.is_default
    assert [a.records for a in (attempts[0], attempts[2])] == [{}, {}]


def test_an_eighth_of_the_network_falls_back_first_then_halves_without_records():
    g = GraphBuilder("deep", seed=0)
    x = g.input("data", (1, 32, 28, 28))
    for number in range(9):
        x = g.relu(g.conv_bn(x, f"layer{number}", 64 + 16 * number, 3, pad=1))
    plan = api.plan(OnnxNetwork(g.model(g.flatten(x, "flat")), name="deep"))
    fast = sorted((t for t in plan.tasks if not t.untuned.exact), key=lambda task: task.sites)
    assert len(fast) == 9
    attempts = accuracy_fallbacks([], plan.tasks, plan.device)
    assert [attempt.fallbacks for attempt in attempts] == [0, 2, 6, 9]
    for attempt in attempts[1:]:
        assert set(attempt.records) == {task.key for task in fast[attempt.fallbacks :]}


def test_a_kernel_keeps_its_fast_default_where_only_early_ones_fall_back(plan, tmp_path):
    attempt = accuracy_fallbacks([], plan.tasks, plan.device)[1]
    compiled = compile_library(plan, attempt.records, tmp_path / "some.so")
    assert inexact(compiled) == 1
    assert compiled.counts == {"exact": 0, "anchor": 0, "shipped": 0, "default": len(plan.tasks)}
    lowered = plan.backend.lower(plan.prepared, attempt.records, plan.device)
    products = re.findall(r"winograd_product = .*alloc_buffer\((.*)\)", lowered.script())
    # (..., positions down, positions across, tiles, channels)
    extents = [re.findall(r"int64\((\d+)\)", shape)[-4:-2] for shape in products]
    assert extents == [["6", "6"]]


@pytest.mark.parametrize(
    ("implementation", "named"),
    [("winograd-4x4", "winograd-4x4"), ("template", "direct"), ("gone", "direct")],
)
def test_a_row_names_what_takes_the_place_of_a_record_that_no_longer_applies(
    implementation, named, plan
):
    """Another space of the direct program falls back to that program's default schedule."""
    task = next(t for t in plan.tasks if any(i.name == "winograd-4x4" for i in t.implementations))
    direct = task.implementations[0]
    other = replace(task, implementations=[*task.implementations, replace(direct, name="template")])
    trial = Trial(task.key, implementation, task.key, "", trace=[[], []])
    row = compile._task_row(other, trial, "default", exact=False)
    assert row["implementation"] == named


def test_a_network_without_inexact_defaults_needs_one_attempt():
    g = GraphBuilder("dense", seed=0)
    network = g.model(g.flatten(g.relu(g.input("data", (1, 16, 4, 4))), "flat"))
    plan = api.plan(OnnxNetwork(network, name="dense"))
    assert len(accuracy_fallbacks([], plan.tasks, plan.device)) == 1


def test_an_untuned_network_falls_back_to_exact_algorithms(plan, tmp_path, monkeypatch):
    quick = api.compile(plan, tmp_path / "quick.so")
    assert (quick.fallbacks, inexact(quick)) == (0, 2)
    check = quick.metadata["check"]
    exact = compile_library(plan, {}, tmp_path / "exact.so", check=check)
    errors = [
        verify.run_check(Library.open(compiled.path), check).error for compiled in (quick, exact)
    ]
    assert errors[1] < errors[0]
    allow(monkeypatch, sum(errors) / 2)
    compiled = api.compile(plan, tmp_path / "compiled.so")
    assert compiled.fallbacks == 2
    assert algorithms(compiled) == algorithms(exact)
    assert inexact(exact) == 0


def test_defaults_are_exact_where_the_output_is_not_checked(plan, tmp_path):
    unchecked = api.compile(plan, tmp_path / "unchecked.so", check_seed=None)
    assert inexact(unchecked) == 0
    there = api.plan(plan.network, "arm", attrs={"board": "rk3399"})
    lowered = api.compile(there, tmp_path / "there.so")
    assert inexact(lowered) == 0


def test_a_network_keeps_as_many_fast_kernels_as_its_tolerance_allows(
    plan, log, errors, tmp_path, monkeypatch
):
    worst = errors[0]
    assert worst > 1.2 * errors[-1], errors
    allow(monkeypatch, 0.9 * worst)
    needed = next(n for n, error in enumerate(errors) if error <= 0.9 * worst)
    compiled = api.compile(plan, tmp_path / "compiled.so", [log])
    shipped = api.ship(plan, tmp_path / "shipped.so", [log])
    assert needed > 0
    assert compiled.fallbacks == needed
    assert algorithms(compiled).count("winograd-4x4") == 3 - needed
    assert shipped.verdict.passed
    if shipped.kind == "tuned":
        assert shipped.compiled.fallbacks == needed


def test_a_network_that_is_wrong_with_all_fallbacks_is_rejected(plan, log, tmp_path, monkeypatch):
    allow(monkeypatch, 1e-12)
    with pytest.raises(TvmtuneError, match="the library is not kept"):
        api.compile(plan, tmp_path / "lib.so", [log])
    assert list(tmp_path.iterdir()) == []
