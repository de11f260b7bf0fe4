"""Tuning on PoCL: the commands from a network to a library, here and on a board, and failures."""

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
from models import tiny_cnn
from remote import served
from tvmtune import api, host, networks
from tvmtune.measure.measurer import Measurement, Measurer
from tvmtune.records.log import read_log
from tvmtune.spaces import traces
from tvmtune.tuning.budget import Budget
from tvmtune.types import Device, Implementation, Timing

RIGHT = r"^the output is right \(.* = [\d.e-]+, at most 1e-04"
TIMING = Timing(repeat=3, build_timeout=60.0, run_timeout=60.0)


@pytest.fixture(autouse=True)
def temporary(pocl: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of temporary files, with a short path because some are sockets."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(pocl))
    monkeypatch.delenv("POCL_CACHE_DIR", raising=False)
    with tempfile.TemporaryDirectory(prefix="cl-", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[served.Farm]:
    started = served.Farm(tmp_path)
    try:
        yield started
    finally:
        started.close()


@pytest.mark.parametrize(
    ("network", "side", "layout", "only", "trials"),
    [
        pytest.param("mobilenet", 64, "NHWC", "top6", 16, marks=pytest.mark.soak),
        pytest.param("tiny.onnx", 32, "NCHW", "top3", 8, marks=pytest.mark.slow),
        pytest.param("squeezenet_v1.1", 64, "NCHW", "top4", 12, marks=pytest.mark.soak),
        pytest.param("resnet-18", 64, "NHWC", "top4", 12, marks=pytest.mark.soak),
    ],
)
def test_a_tuned_network_is_correct(network, side, layout, only, trials, tmp_path, temporary):
    onnx.save(tiny_cnn(), tmp_path / "tiny.onnx")
    words = ["tune", "--target", "mali", "--network", network, "--layout", layout]
    words += ["--shape", f"data:1x3x{side}x{side}"]
    words += ["--trials", trials, "--tasks", only, "--repeat", 3, "-o", "lib.so"]
    words += ["--run-timeout", 60]  # a driver builds kernels when they first run, here on busy CPUs
    done = tvmtune(*words, cwd=tmp_path, timeout=900)
    assert done.returncode == 0, done.stderr
    assert re.search(RIGHT, done.stdout, re.MULTILINE)
    (log,) = tmp_path.glob(f"{network.removesuffix('.onnx')}-*-mali.json")
    trials_of = read_log(log).trials
    assert len(trials_of) == trials
    assert sum(not t.ok for t in trials_of) <= 1
    assert not list(temporary.glob("tvmtune-*"))


@pytest.mark.slow
def test_bench_also_reports_the_time_on_the_devices_own_clock(tmp_path):
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
def test_all_commands_work_with_a_board(farm, tmp_path):
    _, tracker = farm.tracker()
    farm.board("rk3399", tracker, "--target", "mali")
    env = {"TVM_TRACKER_HOST": tracker.host, "TVM_TRACKER_PORT": str(tracker.port)}

    def run(*words: object) -> str:
        done = tvmtune(*words, cwd=tmp_path, env=env, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    remote = ("--remote", "rk3399")
    output = run("devices", "--probe")
    assert "(opencl)" in output
    onnx.save(tiny_cnn(), tmp_path / "tiny.onnx")
    tune = ["tune", "--target", "mali", "--network", "tiny.onnx", *remote, "--tasks", "top3"]
    output = run(*tune, "--trials", 8, "--repeat", 3, "-o", "tiny.so")
    assert re.search(RIGHT, output, re.MULTILINE)
    (log,) = (path.stem for path in tmp_path.glob("tiny-*-mali-rk3399.json"))
    assert "3 records of 3 tasks" in run("distill", f"{log}.json")
    compile_ = ["compile", "--target", "mali", "--network", "tiny.onnx", *remote]
    assert "3 with a record" in run(*compile_, "--log", f"{log}.best.json", "-o", "lib.so")
    output = run("bench", "lib.so", *remote, "--check", "--repeat", 3)
    assert re.search(RIGHT, output, re.MULTILINE)


@pytest.mark.slow
def test_a_board_without_opencl_is_reported(farm, tmp_path, cache):
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
    message = complaint(done.stderr)
    assert "the board 'rk3399' has no opencl device that TVM can use" in message
    assert "tvmtune serve --target mali" in message


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
    spec = replace(backend.make_builder(device), **builder)
    return Measurer(device, spec, backend.make_runner(device), TIMING)


def product(plan: api.Plan) -> Implementation:
    return next(t for t in plan.tasks if len(t.implementations) > 1).implementations[0]


def first(plan: api.Plan, implementation: Implementation) -> object:
    target = tvm.target.Target(plan.device.target)
    return traces.to_json(implementation.space.default(implementation.mod, target))


@pytest.mark.slow
def test_a_candidate_is_measured_and_verified(plan):
    implementation = product(plan)
    trace = first(plan, implementation)
    results: list[Measurement] = []
    with measurer(plan) as running:
        running.measure([(implementation, trace)], lambda _, m: results.append(m))
        error, message = running.verify(implementation, trace)
    assert results[0].stage is None, results[0].message
    assert len(results[0].seconds) == 3
    assert all(0 < s < 1 for s in results[0].seconds)
    assert error is not None, message
    assert error <= 1e-5


@pytest.mark.slow
def test_drift_of_the_devices_speed_is_measured(plan):
    with measurer(plan) as running:
        assert running.drift() == 1.0
        assert [path.name for path in running.directory.glob("*.so")] == ["baseline.so"]
        later = running.drift()
    assert later is not None
    assert later > 0


@pytest.mark.slow
def test_a_wrong_kernel_is_detected(plan):
    """The reference is the unscheduled workload on this machine's CPU."""
    implementation = product(plan)
    with measurer(plan, build="opencl.spoiled:build") as running:
        error, message = running.verify(implementation, first(plan, implementation))
    assert error is not None, message
    assert error > 0.1


@pytest.mark.slow
def test_a_wrong_record_is_demoted_and_logged(plan, tmp_path, monkeypatch):
    """Records of the task with a ReLU are wrong; the library is still correct, without them."""
    backend = plan.backend
    real = backend.make_builder
    monkeypatch.setattr(
        backend, "make_builder", lambda device: replace(real(device), build="opencl.spoiled:build")
    )
    task = next(t for t in plan.tasks if "relu" in t.name)
    log = tmp_path / "log.json"
    api.tune(plan, log, budget=Budget(trials=8), timing=TIMING, tasks=[task])
    trials = read_log(log).trials
    wrong = [t for t in trials if t.error and t.error["stage"] == "wrong-answer"]
    assert wrong
    assert all(t.verified is False for t in wrong)
    assert not any(t.verified for t in trials)


@pytest.mark.slow
def test_too_large_a_work_group_fails_only_its_trial(plan):
    """The target claims more threads than the device has."""
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
    results: list[Measurement] = []
    with measurer(plan, device) as running:
        running.measure(candidates, lambda _, m: results.append(m))
    assert results[0].stage == "run"
    assert "CL_INVALID_WORK_GROUP_SIZE (65536 x 1 x 1 work-items in a group" in results[0].message
    assert results[1].stage is None
