"""Measuring in turns: who takes part, in which order, and what is made of the times."""

from __future__ import annotations

import json
import shutil

import onnx
import pytest

from deploy.building import spoiled
from models import tiny_cnn
from tvmtune import networks
from tvmtune.deploy import bench as bench_module
from tvmtune.deploy import metadata, peers, timing
from tvmtune.deploy.bench import BenchResult, Run, bench
from tvmtune.deploy.library import Library

RUN_KEYS = {
    "runtime",
    "version",
    "threads",
    "median_ms",
    "mean_ms",
    "std_ms",
    "p95_ms",
    "min_ms",
    "device_ms",
    "throughput",
    "repeats",
    "number",
    "ratio",
    "error",
    "device",
}


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch):
    monkeypatch.setattr("tvmtune.deploy.session.rest", lambda: None)
    monkeypatch.setattr(bench_module, "warm_up", lambda invoke, seconds=0.0: invoke(1))


class Fake(peers.Peer):
    """Answers like ONNX Runtime and takes a millisecond."""

    name = "fake"
    package = "onnxruntime"

    def __init__(self):
        self.inner = peers.peer("onnxruntime")
        self.log: list[str] = []

    def load(self, network, threads):
        self.threads = threads
        self.inner.load(network, threads)

    def set_inputs(self, inputs):
        self.inner.set_inputs(inputs)
        self.inner.invoke()

    def invoke(self, count=1):
        self.log.append(self.name)
        return count * 1e-3

    def outputs(self):
        return self.inner.outputs()


def test_statistics():
    run = Run("tvmtune", "1", 2, 1, batch=4, seconds=[0.004, 0.001, 0.002, 0.003])
    assert run.median_ms == 2.5
    assert run.mean_ms == 2.5
    assert run.min_ms == 1
    assert run.std_ms == pytest.approx(1.29099, abs=1e-5)
    assert run.p95_ms == pytest.approx(3.85)
    assert run.throughput == pytest.approx(1600)
    assert Run("tvmtune", "1", 2, 1, 1, seconds=[0.004]).std_ms == 0


def test_the_report_is_what_scripts_read(opened):
    result = bench(opened, repeat=4, peers=[Fake()])
    report = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert set(report) == {"runs", "network", "device", "host", "notes"}
    assert [run["runtime"] for run in report["runs"]] == ["tvmtune", "fake"]
    own, other = report["runs"]
    assert set(own) == set(other) == RUN_KEYS
    assert own["ratio"] == 1
    assert own["error"] is None
    assert own["repeats"] == other["repeats"] == 4
    assert own["threads"] == other["threads"] == opened.threads
    assert other["median_ms"] == pytest.approx(1)
    assert other["ratio"] == pytest.approx(1 / own["median_ms"])
    assert other["error"] < 1e-5
    assert own["throughput"] == pytest.approx(1e3 / own["median_ms"])
    assert report["network"]["name"] == "model"
    assert report["device"]["threads"] == opened.threads
    assert report["host"]["cpu"]


def test_runtimes_take_turns_and_each_is_first_in_turn(opened, monkeypatch):
    one, two = Fake(), Fake()
    one.name, two.name = "one", "two"
    one.log = two.log = log = []
    own = opened.invoke
    monkeypatch.setattr(opened, "invoke", lambda count=1: (log.append("own"), own(count))[1])
    bench(opened, repeat=3, peers=[one, two])
    # Loading runs each peer once, before the turns; a turn is a call to warm up and a timed one.
    turns = log[-18:][::2]
    assert turns == ["own", "one", "two", "one", "two", "own", "two", "own", "one"]


def test_more_calls_fill_the_time_that_is_asked_for(opened):
    result = bench(opened, repeat=2, number=2, min_repeat_ms=5, peers=[Fake()])
    assert result.runs[1].number == 5
    assert result.runs[0].number >= 2
    calls = timing.calls_per_repeat(lambda count: count * 1e-6, 1, 10)
    assert 10_000 <= calls <= 12_000


def test_a_time_limit_leaves_few_repeats_to_those_that_are_slow(opened):
    result = bench(opened, repeat=30, seconds=0, peers=[Fake()])
    assert [len(run.seconds) for run in result.runs] == [3, 3]
    assert len(bench(opened, repeat=2, seconds=0).runs[0].seconds) == 2


def test_the_bar_is_told(opened):
    rounds = []
    bench(opened, repeat=3, on_round=rounds.append)
    assert rounds == [1, 2, 3]


def test_a_missing_package_is_left_out_with_its_remedy(opened, monkeypatch):
    monkeypatch.setattr(Fake, "package", "no_such_runtime")
    result = bench(opened, repeat=1, peers=[Fake()])
    assert len(result.runs) == 1
    assert "fake is not installed: pip install no_such_runtime" in result.notes


def test_a_runtime_that_cannot_run_the_network_is_left_out(opened, monkeypatch):
    def fail(self, network, threads):
        raise RuntimeError("no kernel\nfor this")

    monkeypatch.setattr(Fake, "load", fail)
    result = bench(opened, repeat=1, peers=[Fake()])
    assert "fake is left out, it cannot run this network: no kernel for this" in result.notes


@pytest.fixture
def moved(made, tmp_path):
    """A library whose network lies where the test may change it."""
    shutil.copy(made.with_name("model.onnx"), tmp_path)
    library = shutil.copy(made, tmp_path)
    found = metadata.read(library)
    found["network"]["source"]["file"] = str(tmp_path / "model.onnx")
    metadata.append(library, found)
    return library


def test_a_network_that_is_gone(moved, tmp_path):
    (tmp_path / "model.onnx").unlink()
    result = bench(Library.open(moved), repeat=1, peers=[Fake()])
    assert len(result.runs) == 1
    assert any("fake is left out" in n and "model.onnx" in n for n in result.notes)


def test_a_network_that_changed(moved, tmp_path):
    onnx.save(spoiled(tiny_cnn()), tmp_path / "model.onnx")
    result = bench(Library.open(moved), repeat=1, peers=[Fake()])
    assert (
        "fake is left out: the weights of model changed since the library was compiled"
        in result.notes
    )
    onnx.save(tiny_cnn(classes=9), tmp_path / "model.onnx")
    result = bench(Library.open(moved), repeat=1, peers=[Fake()])
    assert any("the structure of model changed" in note for note in result.notes)


def test_a_network_that_is_at_hand_need_not_be_loaded(moved, tmp_path, made):
    network = networks.load(str(made.with_name("model.onnx")))
    (tmp_path / "model.onnx").unlink()
    assert len(bench(Library.open(moved), repeat=1, peers=[Fake()], network=network).runs) == 2


def test_wrong_outputs_show_as_a_difference(wrong):
    result = bench(Library.open(wrong), repeat=1, peers=[Fake()])
    # The peer reads the right network: the metadata claim to be that library's.
    assert result.runs[1].error > 1e-3


def test_a_report_has_no_number_that_json_lacks():
    run = Run("fake", "1", 2, 1, 1, seconds=[0.1], error=float("inf"))
    report = BenchResult([run], {}, {}, {}).to_json()
    assert json.loads(json.dumps(report, allow_nan=False))["runs"][0]["error"] is None


def test_unsteady_times_are_said_to_be():
    runs = [Run("fake", "1", 2, 1, 1, seconds=[0.001, 0.003, 0.001])]
    assert bench_module._doubts(runs, 0.0) == ["the times of fake vary by 115%"]
    assert "other processes used 40% of the CPUs" in bench_module._doubts(runs, 0.4)[0]
    assert bench_module._doubts([Run("fake", "1", 2, 1, 1, seconds=[1e-3] * 3)], None) == []


def test_resting_waits_for_threads_that_spin(monkeypatch):
    monkeypatch.undo()
    used = iter([0.0, 0.02, 0.02, 0.04, 0.06, 0.08, 0.08, 0.08, 0.08, 0.08])
    naps = []
    monkeypatch.setattr(timing.time, "process_time", lambda: next(used))
    monkeypatch.setattr(timing.time, "sleep", naps.append)
    clock = iter(range(100))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock) * 0.02)
    timing.rest()
    assert len(naps) == 5


def test_only_other_runtimes_are_rested_from(opened, monkeypatch):
    rests = []
    monkeypatch.setattr(opened.session, "rest", lambda: rests.append(None))
    bench(opened, repeat=3, peers=[Fake()])
    assert len(rests) == 2 + 3 * 2
    rests.clear()
    monkeypatch.setattr(Fake, "foreign", False)
    bench(opened, repeat=3, peers=[Fake()])
    assert len(rests) == 2


def test_a_peer_computes_where_the_library_does_or_says_that_it_does_not(opened, monkeypatch):
    monkeypatch.setitem(opened.metadata["device"], "runtime", "cuda")

    class Both(Fake):
        """Computes on GPUs for CUDA, by its own account."""

        name = "both"

        def move(self, device):
            self.device = device

    result = bench(opened, repeat=3, peers=[Fake(), Both()])
    assert [run.device for run in result.runs] == ["cuda", "cpu", "cuda"]
    assert [note for note in result.notes if "computes" in note] == ["fake computes on the CPU"]


def test_a_gpus_own_clock_is_told_where_there_is_one(opened, monkeypatch):
    class Clocked(Fake):
        def device_seconds(self, count):
            return 2e-3

    assert bench(opened, repeat=3, peers=[Clocked()]).runs[1].device_ms is None  # it has no GPU
    monkeypatch.setitem(opened.metadata["device"], "runtime", "cuda")
    peer = Clocked()
    monkeypatch.setattr(peer, "move", lambda device: setattr(peer, "device", device))
    own, other = bench(opened, repeat=3, peers=[peer]).runs
    assert own.device_ms is None  # of a library for CPUs, whatever its metadata say here
    assert other.device_ms == pytest.approx(2)


def test_cuda_graphs_are_for_all_or_it_is_said(opened, monkeypatch):
    monkeypatch.setitem(opened.metadata["device"], "params", {"cuda-graphs": True})

    class Able(Fake):
        name = "able"
        captures = True

    able, unable = Able(), Fake()
    for peer in (able, unable):
        monkeypatch.setattr(peer, "move", lambda device: None)
    monkeypatch.setitem(opened.metadata["device"], "runtime", "cuda")
    result = bench(opened, repeat=3, peers=[able, unable])
    assert able.graphs
    told = [note for note in result.notes if "graphs" in note]
    assert told == ["fake uses no CUDA graphs, and the library does"]


@pytest.mark.parametrize("name", ["onnxruntime", "torch", "torch-compile"])
def test_a_package_without_cuda_says_so(name):
    peer = peers.peer(name)
    pytest.importorskip(peer.package)
    reason = peer.move("cuda")
    if reason is None:
        pytest.skip("it has CUDA here")
    assert reason.startswith(f"{name} computes on the CPU: ")
    assert peer.device == "cpu"
    assert peer.move("opencl") == f"{name} computes on the CPU"
