"""The bench: which runtimes take part, in which order, and the statistics of their times."""

from __future__ import annotations

import json
import shutil
import time

import onnx
import pytest

from libraries import spoiled
from models import tiny_cnn
from tvmtune import networks
from tvmtune.bench import bench as bench_module
from tvmtune.bench import peers
from tvmtune.bench.bench import bench
from tvmtune.bench.results import BenchResult, RuntimeResult
from tvmtune.library import metadata
from tvmtune.runtime import timing
from tvmtune.runtime.library import Library

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
    monkeypatch.setattr("tvmtune.runtime.session.rest", lambda: None)
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
    run = RuntimeResult("tvmtune", "1", 2, 1, batch=4, seconds=[0.004, 0.001, 0.002, 0.003])
    assert run.median_ms == 2.5
    assert run.mean_ms == 2.5
    assert run.min_ms == 1
    assert run.std_ms == pytest.approx(1.29099, abs=1e-5)
    assert run.p95_ms == pytest.approx(3.85)
    assert run.throughput == pytest.approx(1600)
    assert RuntimeResult("tvmtune", "1", 2, 1, 1, seconds=[0.004]).std_ms == 0


@pytest.mark.slow
def test_the_report_has_the_documented_fields(opened):
    result = bench(opened, repeat=4, peers=[Fake()])
    report = json.loads(json.dumps(result.to_json(), allow_nan=False))
    fields = {"runs", "network", "device", "host", "notes", "background_load", "time"}
    assert set(report) == fields
    assert 0 <= time.time() - report["time"] < 3600
    assert 0 <= report["background_load"] <= 1
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


@pytest.mark.slow
def test_runtimes_take_turns_and_each_round_starts_with_another(opened, monkeypatch):
    one, two = Fake(), Fake()
    one.name, two.name = "one", "two"
    one.log = two.log = log = []
    own = opened.invoke
    monkeypatch.setattr(opened, "invoke", lambda count=1: (log.append("own"), own(count))[1])
    bench(opened, repeat=3, peers=[one, two])
    # Loading runs each peer once, before the turns; a turn is a call to warm up and a timed one.
    turns = log[-18:][::2]
    assert turns == ["own", "one", "two", "one", "two", "own", "two", "own", "one"]


@pytest.mark.slow
def test_calls_are_added_to_reach_min_repeat_ms(opened):
    result = bench(opened, repeat=2, number=2, min_repeat_ms=5, peers=[Fake()])
    assert result.runs[1].number == 5
    assert result.runs[0].number >= 2
    calls = timing.calls_per_repeat(lambda count: count * 1e-6, 1, 10)
    assert 10_000 <= calls <= 12_000


def test_a_time_limit_ends_the_default_number_of_repeats_after_three(opened, monkeypatch):
    monkeypatch.setattr(bench_module, "MOST_SECONDS", 0.0)
    result = bench(opened, peers=[Fake()])
    assert [len(run.seconds) for run in result.runs] == [3, 3]
    assert len(bench(opened, repeat=5).runs[0].seconds) == 5


def test_on_round_gets_the_rounds_done(opened):
    rounds = []
    bench(opened, repeat=3, on_round=rounds.append)
    assert rounds == [1, 2, 3]


def test_a_missing_package_is_skipped_with_a_remedy(opened, monkeypatch):
    monkeypatch.setattr(Fake, "package", "no_such_runtime")
    result = bench(opened, repeat=1, peers=[Fake()])
    assert len(result.runs) == 1
    assert "fake is not installed: pip install no_such_runtime" in result.notes


def test_a_peer_that_cannot_run_the_network_is_skipped(opened, monkeypatch):
    def fail(self, network, threads):
        raise RuntimeError("no kernel\nfor this")

    monkeypatch.setattr(Fake, "load", fail)
    result = bench(opened, repeat=1, peers=[Fake()])
    assert "fake is skipped, it cannot run this network: no kernel for this" in result.notes


@pytest.fixture
def moved(tiny_library, tmp_path):
    """A library whose network the test may change."""
    shutil.copy(tiny_library.with_name("model.onnx"), tmp_path)
    library = shutil.copy(tiny_library, tmp_path)
    found = metadata.read(library)
    found["network"]["source"]["file"] = str(tmp_path / "model.onnx")
    metadata.append(library, found)
    return library


def test_peers_are_skipped_if_the_network_is_gone(moved, tmp_path):
    (tmp_path / "model.onnx").unlink()
    result = bench(Library.open(moved), repeat=1, peers=[Fake()])
    assert len(result.runs) == 1
    assert any("fake is skipped" in n and "model.onnx" in n for n in result.notes)


def test_peers_are_skipped_if_the_network_changed(moved, tmp_path):
    onnx.save(spoiled(tiny_cnn()), tmp_path / "model.onnx")
    result = bench(Library.open(moved), repeat=1, peers=[Fake()])
    assert (
        "fake is skipped: the weights of model changed since the library was compiled"
        in result.notes
    )
    onnx.save(tiny_cnn(classes=9), tmp_path / "model.onnx")
    result = bench(Library.open(moved), repeat=1, peers=[Fake()])
    assert any("the structure of model changed" in note for note in result.notes)


def test_a_given_network_is_not_loaded_again(moved, tmp_path, tiny_library):
    network = networks.load(str(tiny_library.with_name("model.onnx")))
    (tmp_path / "model.onnx").unlink()
    assert len(bench(Library.open(moved), repeat=1, peers=[Fake()], network=network).runs) == 2


@pytest.mark.slow
def test_wrong_outputs_show_as_a_difference(wrong):
    result = bench(Library.open(wrong), repeat=1, peers=[Fake()])
    # The metadata name the correct network, which the peer reads.
    assert result.runs[1].error > 1e-3


def test_infinite_errors_are_null_in_json():
    run = RuntimeResult("fake", "1", 2, 1, 1, seconds=[0.1], error=float("inf"))
    report = BenchResult([run], {}, {}, {}).to_json()
    assert json.loads(json.dumps(report, allow_nan=False))["runs"][0]["error"] is None


def test_busy_cpus_and_unsteady_times_give_warnings():
    runs = [RuntimeResult("fake", "1", 2, 1, 1, seconds=[0.001, 0.003, 0.001])]
    assert bench_module._warnings(runs, 0.0) == ["the times of fake vary by 115%"]
    assert "other processes used 40% of the CPUs" in bench_module._warnings(runs, 0.4)[0]
    assert (
        bench_module._warnings([RuntimeResult("fake", "1", 2, 1, 1, seconds=[1e-3] * 3)], None)
        == []
    )


def test_rest_waits_for_spinning_threads(monkeypatch):
    monkeypatch.undo()
    used = iter([0.0, 0.02, 0.02, 0.04, 0.06, 0.08, 0.08, 0.08, 0.08, 0.08])
    naps = []
    monkeypatch.setattr(timing.time, "process_time", lambda: next(used))
    monkeypatch.setattr(timing.time, "sleep", naps.append)
    clock = iter(range(100))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock) * 0.02)
    timing.rest()
    assert len(naps) == 5


def test_the_bench_rests_only_with_foreign_runtimes(opened, monkeypatch):
    rests = []
    monkeypatch.setattr(opened.session, "rest", lambda: rests.append(None))
    bench(opened, repeat=3, peers=[Fake()])
    assert len(rests) == 2 + 3 * 2
    rests.clear()
    monkeypatch.setattr(Fake, "foreign", False)
    bench(opened, repeat=3, peers=[Fake()])
    assert len(rests) == 2


def test_a_peer_moves_to_the_librarys_device_or_leaves_a_note(opened, monkeypatch):
    monkeypatch.setitem(opened.metadata["device"], "runtime", "cuda")

    class Both(Fake):
        """Claims to run on CUDA."""

        name = "both"

        def move(self, device):
            self.device = device

    result = bench(opened, repeat=3, peers=[Fake(), Both()])
    assert [run.device for run in result.runs] == ["cuda", "cpu", "cuda"]
    assert [note for note in result.notes if "computes" in note] == ["fake computes on the CPU"]


def test_the_gpus_clock_is_reported_if_there_is_one(opened, monkeypatch):
    class Clocked(Fake):
        def device_seconds(self, count):
            return 2e-3

    assert bench(opened, repeat=3, peers=[Clocked()]).runs[1].device_ms is None  # it has no GPU
    monkeypatch.setitem(opened.metadata["device"], "runtime", "cuda")
    peer = Clocked()
    monkeypatch.setattr(peer, "move", lambda device: setattr(peer, "device", device))
    own, other = bench(opened, repeat=3, peers=[peer]).runs
    assert own.device_ms is None  # the library is really for CPUs
    assert other.device_ms == pytest.approx(2)


def test_a_peer_uses_cuda_graphs_or_leaves_a_note(opened, monkeypatch):
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
    graph_notes = [note for note in result.notes if "graphs" in note]
    assert graph_notes == ["fake uses no CUDA graphs, and the library does"]


@pytest.mark.parametrize("name", ["onnxruntime", "torch", "torch-compile"])
def test_a_package_without_cuda_gives_the_reason(name):
    peer = peers.peer(name)
    pytest.importorskip(peer.package)
    reason = peer.move("cuda")
    if reason is None:
        pytest.skip("it has CUDA here")
    assert reason.startswith(f"{name} computes on the CPU: ")
    assert peer.device == "cpu"
    assert peer.move("opencl") == f"{name} computes on the CPU"
