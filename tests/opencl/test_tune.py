"""Tuning on PoCL: the commands from a network to a library, here and on a board; what goes wrong."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import tvm

from cli.commands import complaint, tvmtune
from farm import served
from models import tiny_cnn
from tvmtune import api, host, networks
from tvmtune.graph import traces
from tvmtune.measure.measurer import Measurement, Measurer
from tvmtune.records.log import read_log
from tvmtune.tuning.budget import Budget
from tvmtune.types import Device, Implementation, Timing

RIGHT = r"^the output is right \(.* = [\d.e-]+, at most 1e-04"
TIMING = Timing(repeat=3, build_timeout=60.0, run_timeout=60.0)


@pytest.fixture(autouse=True)
def temporary(pocl: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What is temporary goes there: a short path, because sockets are among it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(pocl))
    monkeypatch.delenv("POCL_CACHE_DIR", raising=False)
    with tempfile.TemporaryDirectory(prefix="cl-", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[served.Farm]:
    made = served.Farm(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "side", "layout", "only", "trials"),
    [
        ("mobilenet", 224, "NHWC", "top8", 32),
        ("squeezenet_v1.1", 96, "NCHW", "top4", 16),
        ("resnet-18", 96, "NHWC", "top4", 16),
    ],
)
def test_a_network_is_tuned_compiled_and_right(
    network, side, layout, only, trials, tmp_path, temporary
):
    words = ["tune", "--target", "mali", "--network", network, "--layout", layout]
    words += ["--shape", f"data:1x3x{side}x{side}"]
    words += ["--trials", trials, "--tasks", only, "--repeat", 3, "-o", "lib.so"]
    words += ["--run-timeout", 60]  # a driver builds kernels when they first run, here on busy CPUs
    done = tvmtune(*words, cwd=tmp_path, timeout=900)
    assert done.returncode == 0, done.stderr
    assert re.search(RIGHT, done.stdout, re.MULTILINE)
    (log,) = tmp_path.glob(f"{network}-*-mali.json")
    trials_of = read_log(log).trials
    assert len(trials_of) == trials
    assert sum(not t.ok for t in trials_of) <= 1
    assert not list(temporary.glob("tvmtune-*"))


def test_a_library_is_timed_by_the_devices_own_clock_too(tmp_path):
    onnx.save(tiny_cnn(), tmp_path / "model.onnx")
    done = tvmtune("compile", "model.onnx", "--target", "opencl", "-o", "lib.so", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    words = ["lib.so", "--vs", "onnxruntime", "--repeat", 5, "--json", "bench.json"]
    done = tvmtune("bench", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    own, other = json.loads((tmp_path / "bench.json").read_text())["runs"]
    assert own["device"] == "opencl"
    assert own["device_ms"] > 0
    assert other["device_ms"] is None  # it computes on the CPU
    assert "on device ms" in done.stdout


@pytest.mark.slow
def test_the_owners_example_on_a_board(farm, tmp_path):
    _, tracker = farm.tracker()
    farm.board("rk3399", tracker, "--target", "mali")
    env = {"TVM_TRACKER_HOST": tracker.host, "TVM_TRACKER_PORT": str(tracker.port)}

    def run(*words: object) -> str:
        done = tvmtune(*words, cwd=tmp_path, env=env, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    remote = ("--remote", "rk3399")
    said = run("devices", "--probe")
    assert "(opencl)" in said
    tune = ["tune", "--target", "mali", "--network", "mobilenet", *remote, "--trials", 16]
    assert re.search(RIGHT, run(*tune, "--tasks", "top6", "-o", "mobilenet.so"), re.MULTILINE)
    log = "mobilenet-NHWC-B1-mali-rk3399"
    assert "6 records of 6 tasks" in run("distill", f"{log}.json")
    compile_ = ["compile", "--target", "mali", "--network", "mobilenet", *remote]
    assert "6 with a record" in run(*compile_, "--log", f"{log}.best.json", "-o", "lib.so")
    said = run("bench", "lib.so", *remote, "--check", "--repeat", 3)
    assert re.search(RIGHT, said, re.MULTILINE)


@pytest.mark.slow
def test_a_board_without_opencl_is_told_so(farm, tmp_path, cache):
    onnx.save(tiny_cnn(), tmp_path / "model.onnx")
    _, tracker = farm.tracker()
    env = {"TVMTUNE_OPENCL_LIBRARY": "/nonexistent/libOpenCL.so"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        farm.board("rk3399", tracker)
    words = ["tune", "model.onnx", "--target", "mali", "--remote", f"rk3399@{tracker}"]
    done = tvmtune(*words, "--trials", 8, cwd=tmp_path)
    assert done.returncode == 1
    said = complaint(done.stderr)
    assert "the board 'rk3399' has no opencl device that TVM can use" in said
    assert "tvmtune serve --target mali" in said


@pytest.fixture(scope="module")
def plan(pocl: Path, tmp_path_factory: pytest.TempPathFactory) -> api.Plan:
    folder = tmp_path_factory.mktemp("model")
    onnx.save(tiny_cnn(), folder / "model.onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(pocl))
        return api.plan(networks.load(str(folder / "model.onnx")), "opencl")


def measurer(plan: api.Plan, device: Device | None = None, **builder: object) -> Measurer:
    device = device or plan.device
    backend = host.backend("opencl")
    made = replace(backend.make_builder(device), **builder)
    return Measurer(device, made, backend.make_runner(device), TIMING)


def product(plan: api.Plan) -> Implementation:
    return next(t for t in plan.tasks if len(t.implementations) > 1).implementations[0]


def first(plan: api.Plan, implementation: Implementation) -> object:
    target = tvm.target.Target(plan.device.target)
    return traces.to_json(implementation.space.default(implementation.mod, target))


@pytest.mark.slow
def test_a_candidate_is_timed_and_found_right(plan):
    implementation = product(plan)
    trace = first(plan, implementation)
    found: list[Measurement] = []
    with measurer(plan) as at_work:
        at_work.measure([(implementation, trace)], lambda _, m: found.append(m))
        error, message = at_work.verify(implementation, trace)
    assert found[0].stage is None, found[0].message
    assert len(found[0].seconds) == 3
    assert all(0 < s < 1 for s in found[0].seconds)
    assert error is not None, message
    assert error <= 1e-5


@pytest.mark.slow
def test_a_device_whose_speed_varies_is_noticed(plan):
    with measurer(plan) as at_work:
        assert at_work.drift() == 1.0
        assert [path.name for path in at_work.directory.glob("*.so")] == ["baseline.so"]
        later = at_work.drift()
    assert later is not None
    assert later > 0


@pytest.mark.slow
def test_a_wrong_kernel_is_found_out(plan):
    """The reference is computed by this machine's CPU from the workload as it is."""
    implementation = product(plan)
    with measurer(plan, build="opencl.spoiled:build") as at_work:
        error, message = at_work.verify(implementation, first(plan, implementation))
    assert error is not None, message
    assert error > 0.1


@pytest.mark.slow
def test_a_wrong_record_is_demoted_and_logged(plan, tmp_path, monkeypatch):
    """Of each task that has a rectifier; what is shipped is right all the same, without them."""
    backend = plan.backend
    real = backend.make_builder
    monkeypatch.setattr(
        backend, "make_builder", lambda device: replace(real(device), build="opencl.spoiled:build")
    )
    task = next(t for t in plan.tasks if "relu" in t.name)
    log = tmp_path / "log.json"
    api.tune(plan, log, budget=Budget(trials=12), timing=TIMING, tasks=[task])
    trials = read_log(log).trials
    wrong = [t for t in trials if t.error and t.error["stage"] == "wrong-answer"]
    assert wrong
    assert all(t.verified is False for t in wrong)
    assert not any(t.verified for t in trials)


@pytest.mark.slow
def test_a_group_that_is_too_large_costs_one_trial(plan):
    """The device is made out to have more threads than it has."""
    device = replace(plan.device, target=plan.device.target | {"max_threads_per_block": 1 << 20})
    x = tvm.te.placeholder((1 << 16,), "float32", "x")
    y = tvm.te.compute((1 << 16,), lambda i: x[i] + 1.0, "y")
    mod = tvm.IRModule({"main": tvm.te.create_prim_func([x, y])})
    schedule = tvm.s_tir.Schedule(mod)
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    schedule.bind(loop, "threadIdx.x")
    sound = tvm.s_tir.Schedule(mod)
    (loop,) = sound.get_loops(sound.get_sblock("y"))
    outer, inner = sound.split(loop, [None, 64])
    sound.bind(outer, "blockIdx.x")
    sound.bind(inner, "threadIdx.x")
    implementation = Implementation("direct", "0" * 16, mod, plan.tasks[0].implementations[0].space)
    candidates = [(implementation, traces.to_json(s)) for s in (schedule, sound)]
    found: list[Measurement] = []
    with measurer(plan, device) as at_work:
        at_work.measure(candidates, lambda _, m: found.append(m))
    assert found[0].stage == "run"
    assert "CL_INVALID_WORK_GROUP_SIZE (65536 x 1 x 1 work-items in a group" in found[0].message
    assert found[1].stage is None
