"""Building candidates on a Dask cluster: here a scheduler and two workers on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import tvm

import processes
from kernels import this_machine
from measure.test_measurer import TIMING, double, trace_of
from tvmtune import host
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.measure import cluster, cluster_worker
from tvmtune.measure.cluster import Cluster, NoBuilder
from tvmtune.measure.measurer import BUILD, Measurer
from tvmtune.types import BuilderSpec

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
WITHIN = 60.0


class Dask:
    """A scheduler and workers, each with one thread, that end with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        file = folder / "scheduler.json"
        words = ["scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
        self.scheduler = self._start(*words, "--scheduler-file", str(file))
        end = time.monotonic() + WITHIN
        while not file.exists() or not file.read_text():
            assert time.monotonic() < end and self.scheduler.poll() is None
            time.sleep(0.1)
        self.address = str(json.loads(file.read_text())["address"])

    def worker(self, *, nanny: bool = True) -> subprocess.Popen[bytes]:
        words = ["--nthreads", "1", "--no-dashboard", "--local-directory", str(self.folder)]
        kind = "--nanny" if nanny else "--no-nanny"
        return self._start("worker", self.address, kind, *words)

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
            "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "5 s",
            "PYTHONWARNINGS": "ignore",
            processes.MARK: str(self.folder),
        }
        with (self.folder / f"{words[0]}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(Path(sys.executable).parent / "dask"), *words],
                env=env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def close(self) -> None:
        """Kill everything at once; what builds has to end by itself then."""
        for process in reversed(self._started):
            if process.poll() is None:
                kill_tree(process, children=False)
        assert processes.after_a_while(str(self.folder)) == {}


def kill_tree(process: subprocess.Popen[bytes], children: bool = True) -> None:
    """The process and, of Dask's nanny, its worker."""
    tree = [psutil.Process(process.pid)]
    if children:
        tree += tree[0].children(recursive=True)
    for each in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[Dask]:
    made = Dask(tmp_path)
    try:
        yield made
    finally:
        made.close()


def builder(build: str = "measure.faulty:build") -> BuilderSpec:
    return replace(host.backend("cpu").make_builder(this_machine()), build=build)


def measurer(address: str | None, build: str = "measure.faulty:build", **options: Any) -> Measurer:
    device = this_machine()
    runner = host.backend("cpu").make_runner(device)
    timing = options.pop("timing", TIMING)
    return Measurer(
        device, builder(build), runner, timing, build_cluster=address, wait=WITHIN, **options
    )


def candidates(count: int) -> list[tuple[Any, Any]]:
    """So many different ones."""
    made = [double(1024 * (n + 1)) for n in range(count)]
    return [(each, trace_of(each)) for each in made]


def outcomes(measuring: Measurer, wanted: list[tuple[Any, Any]]) -> list[Any]:
    found: list[Any] = []
    measuring.measure(wanted, lambda _, result: found.append(result))
    return found


def test_libraries_of_the_cluster_are_identical_to_local_ones(dask: Dask) -> None:
    dask.worker(), dask.worker()
    wanted = candidates(6)
    libraries = []
    for address in (None, dask.address):
        with measurer(address, "tvmtune.measure.local:build") as measuring:
            batch = measuring.build(wanted)
            outcome = measuring._collect(batch.handles)
            assert all(each.ok for each in outcome), [each.message for each in outcome]
            assert all(Path(each.value[0]).parent == measuring.directory for each in outcome)
            libraries.append([(Path(o.value[0]).read_bytes(), o.value[1]) for o in outcome])
    assert libraries[0] == libraries[1]


def test_candidates_are_built_timed_and_verified(dask: Dask) -> None:
    first, second = dask.worker(), dask.worker()
    with measurer(dask.address) as measuring:
        assert all(result.seconds for result in outcomes(measuring, candidates(4)))
        chosen = double()
        assert measuring.verify(chosen, trace_of(chosen)) == (0.0, "")
        assert measuring.verify(chosen, trace_of(chosen, "wrong"))[0] == pytest.approx(0.5)
    end = time.monotonic() + WITHIN
    while shops(first) or shops(second) or list(dask.folder.rglob("tvmtune-*")):
        assert time.monotonic() < end
        time.sleep(0.2)


def shops(worker: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The processes of a Dask worker that build."""
    return [
        process
        for process in psutil.Process(worker.pid).children(recursive=True)
        if "forkserver" in " ".join(process.cmdline())
        and psutil.Process(process.ppid()).cmdline() == process.cmdline()
    ]


def test_timeouts_and_crashes_are_reported_as_locally(dask: Dask) -> None:
    dask.worker(), dask.worker(nanny=False)
    (chosen, trace), *_ = candidates(1)
    timing = replace(TIMING, build_timeout=1.0)
    with measurer(dask.address, "measure.faulty:sleep", timing=timing) as measuring:
        (result,) = outcomes(measuring, [(chosen, trace)])
        assert (result.stage, result.message) == ("timeout", "killed after 1 s (build)")
    with measurer(dask.address, "measure.faulty:refuse") as measuring:
        (result,) = outcomes(measuring, [(chosen, trace)])
        assert (result.stage, result.message) == ("build", "no kernel today")
    with measurer(dask.address, "measure.faulty:die") as measuring:
        (result,) = outcomes(measuring, [(chosen, trace)])
        assert result.stage == "crash" and "SIGABRT" in result.message


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_work_of_a_lost_machine_moves_to_another(dask: Dask, how: int) -> None:
    lost = dask.worker(nanny=False)
    dask.worker(nanny=False)
    with measurer(dask.address) as measuring:
        wait_for_machines(measuring, 2)
        batch = measuring.build(candidates(8))
        while not any(handle.done() for handle in batch.handles):
            time.sleep(0.01)
        lost.send_signal(how)
        found: list[Any] = []
        measuring.time(batch, lambda _, result: found.append(result))
        assert all(result.seconds for result in found) and len(found) == 8


def test_without_a_scheduler_or_machines_the_run_ends(
    dask: Dask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "POLL_INTERVAL", 0.2)
    messages: list[str] = []
    worker = dask.worker()
    building = Cluster(
        dask.address, builder("measure.faulty:sleep"), wait=60.0, report=messages.append
    )
    building.wait = 1.5
    try:
        handles = [submit(building, number) for number in range(3)]
        kill_tree(worker)
        with pytest.raises(NoBuilder, match=r"it has no workers since [1-9]+ s"):
            building.collect(handles, deadline=30, stage="build")
        assert any("waiting for builders" in message for message in messages)
        handles = [submit(building, number) for number in range(3)]
        dask.scheduler.kill()
        with pytest.raises(NoBuilder, match="the build cluster at .* failed"):
            building.collect(handles, deadline=30, stage="build")
        with pytest.raises(NoBuilder, match="the build cluster at .* failed"):
            building.collect([submit(building, 9)], deadline=30, stage="build")
    finally:
        building.close()


def submit(building: Cluster, number: int) -> Any:
    chosen = double(1024 * (number + 1))
    path = Path(tempfile.gettempdir()) / f"workload-{os.getpid()}-{number}.json"
    path.write_text(tvm.ir.save_json(chosen.mod))
    spec = builder("measure.faulty:sleep")
    target = this_machine().target
    call = (str(path), trace_of(chosen), False, spec.build, target, spec.options, str(path.parent))
    try:
        return building.submit(BUILD, call, 30.0)
    finally:
        path.unlink()


def wait_for_machines(measuring: Measurer, count: int) -> None:
    end = time.monotonic() + WITHIN
    assert isinstance(measuring._builders, Cluster)
    while len(measuring._builders.machines() or ()) < count:
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_silent_cluster_ends_the_run(dask: Dask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "POLL_INTERVAL", 0.2)
    monkeypatch.setattr(cluster, "CONNECT_TIMEOUT", 1.0)
    dask.worker()
    building = Cluster(dask.address, builder(), wait=WITHIN)
    building.wait = 0.5
    try:
        dask.scheduler.send_signal(signal.SIGSTOP)
        with pytest.raises(NoBuilder, match="its scheduler does not answer since"):
            building.collect([submit(building, 1)], deadline=1.0, stage="build")
        began = time.monotonic()
        building.close()
        assert time.monotonic() - began < WITHIN / 2
    finally:
        dask.scheduler.send_signal(signal.SIGCONT)
        building.close()


def test_a_machine_with_another_version_or_linker_is_rejected(
    dask: Dask, monkeypatch: pytest.MonkeyPatch
) -> None:
    dask.worker()
    monkeypatch.setattr(cluster_worker, "_versions", lambda: {"apache-tvm": "0.1"})
    with pytest.raises(NoBuilder, match="cannot be used: it has apache-tvm .*the session has 0.1"):
        Cluster(dask.address, builder(), wait=WITHIN)
    monkeypatch.undo()
    monkeypatch.setattr(cluster_worker, "_version_of", lambda command: "LLD 99.0")
    with pytest.raises(NoBuilder, match="its linker differs from the session's: .*ld"):
        Cluster(dask.address, builder(), wait=WITHIN)
    monkeypatch.undo()
    spec = replace(builder(), options={"linker": ["/nowhere/ld"]})
    with pytest.raises(NoBuilder, match="/nowhere/ld is missing"):
        Cluster(dask.address, spec, wait=WITHIN)


@pytest.mark.parametrize(
    ("address", "kind", "message"),
    [
        ("tcp://127.0.0.1:1", NoBuilder, "no Dask scheduler at tcp://127.0.0.1:1"),
        ("nonsense://x", UsageError, "is not the address of a Dask scheduler"),
        ("tcp://127.0.0.1", TvmtuneError, "127.0.0.1"),
    ],
)
def test_a_wrong_address_is_reported(
    address: str, kind: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "CONNECT_TIMEOUT", 2.0)
    with pytest.raises(kind, match=message):
        Cluster(address, builder(), wait=1)


def test_a_missing_dask_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"pip install 'tvmtune\[cluster\]'"):
        Cluster("tcp://127.0.0.1:8786", builder(), wait=1)
