"""Building, timing and checking candidates in processes that may die."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import te, topi
from tvm.s_tir import Schedule

import disks
import processes
from kernels import this_machine
from measure import faulty
from tvmtune import host
from tvmtune.machine import oom_kills
from tvmtune.measure import check_data, recovery
from tvmtune.measure.measurer import PREFIX, Measurement, Measurer
from tvmtune.passes.workload_keys import workload_key
from tvmtune.spaces import traces
from tvmtune.spaces.rule_space import RuleSpace
from tvmtune.types import BuilderSpec, Implementation, Timing
from tvmtune.workers import Outcome

TIMING = Timing(repeat=4, build_timeout=30.0, run_timeout=2.0)


def implementation(*args: Any) -> Implementation:
    func = te.create_prim_func(list(args)).with_attr("global_symbol", "main")
    mod = tvm.IRModule({"main": func})
    return Implementation("direct", workload_key(mod), mod, RuleSpace(this_machine().target))


def double(count: int = 1024) -> Implementation:
    """``y = 2 x`` over ``count`` floats."""
    x = te.placeholder((count,), "float32", name="x")
    return implementation(x, te.compute((count,), lambda i: x[i] * 2.0, name="y"))


def trace_of(chosen: Implementation, spoil: str = "") -> Any:
    """A vectorised schedule of :func:`double`; ``spoil`` names one of the faulty kernels."""
    schedule = Schedule(chosen.mod)
    block = schedule.get_sblock("y")
    _, inner = schedule.split(schedule.get_loops(block)[0], [None, 16])
    schedule.vectorize(inner)
    if spoil:
        schedule.annotate(block, faulty.MARK, spoil)
    return traces.to_json(schedule)


def make_measurer(
    build: str = "measure.faulty:build", timing: Timing = TIMING, **runner: Any
) -> Measurer:
    """``runner``: what is to be otherwise in the runner of the cpu backend."""
    backend, device = host.backend("cpu"), this_machine()
    builder = replace(backend.make_builder(device), build=build)
    return Measurer(device, builder, replace(backend.make_runner(device), **runner), timing)


@pytest.fixture
def noting():
    """A measurer whose builds and runs can be read from :func:`notes`."""
    with make_measurer("measure.faulty:build_and_note", run="measure.faulty:run_and_note") as made:
        yield made


def notes(measurer: Measurer) -> list[tuple[str, float, float]]:
    path = measurer.directory / faulty.NOTES
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(what, float(began), float(ended)) for what, began, ended in lines]


@pytest.fixture(scope="module")
def measurer():
    """One for many tests: a worker that died must not matter to the next."""
    with make_measurer() as made:
        yield made


def measure(measurer: Measurer, *candidates: tuple[Implementation, Any]) -> list[Measurement]:
    found: list[tuple[int, Measurement]] = []
    measurer.measure(candidates, lambda index, result: found.append((index, result)))
    assert [index for index, _ in found] == list(range(len(candidates)))
    return [result for _, result in found]


def artifacts(measurer: Measurer) -> list[Path]:
    return list(measurer.directory.glob("*.so"))


def test_a_good_candidate_is_timed(measurer):
    chosen = double()
    (result,) = measure(measurer, (chosen, trace_of(chosen)))
    assert result.stage is None
    assert len(result.seconds) == TIMING.repeat
    assert all(0 < s < TIMING.run_timeout for s in result.seconds)


def test_a_slow_candidate_is_dropped_early(measurer):
    chosen = double()
    found: list[Measurement] = []
    candidates = [(chosen, trace_of(chosen))] * 2
    measurer.measure(candidates, lambda _, result: found.append(result), best=[1e-12, 1e3])
    assert [len(result.seconds) for result in found] == [2, TIMING.repeat]


def test_a_very_slow_candidate_is_dropped_after_its_first_runs(measurer):
    chosen = double(1 << 24)
    found: list[Measurement] = []
    measurer.measure(
        [(chosen, trace_of(chosen))], lambda _, result: found.append(result), best=[1e-6]
    )
    (result,) = found
    assert result.stage is None
    assert len(result.seconds) == 1
    assert result.seconds[0] > 1e-3


@pytest.mark.parametrize("spoil", ["endless", "crashing"])
def test_a_crashing_kernel_affects_no_other_candidate(measurer, spoil):
    chosen = double()
    good, bad = (chosen, trace_of(chosen)), (chosen, trace_of(chosen, spoil))
    before, harmful, after, again = measure(measurer, good, bad, good, bad)
    assert harmful.stage == again.stage == {"endless": "timeout", "crashing": "crash"}[spoil]
    assert harmful.seconds == ()
    assert harmful.message
    assert before.stage is after.stage is None
    assert before.seconds
    assert after.seconds


def test_an_endless_kernel_times_out(measurer):
    chosen = double()
    (result,) = measure(measurer, (chosen, trace_of(chosen, "endless")))
    assert "2 s" in result.message


def test_a_crash_names_its_signal(measurer):
    chosen = double()
    (result,) = measure(measurer, (chosen, trace_of(chosen, "crashing")))
    assert "SIGSEGV" in result.message


@pytest.mark.parametrize("case", ["another workload", "impossible split", "damaged"])
def test_a_trace_that_does_not_apply_fails_in_stage_space(measurer, case):
    chosen = double()
    trace = trace_of(chosen)
    if case == "another workload":
        x, w = (te.placeholder((8, 8), "float32", name=name) for name in "xw")
        chosen = implementation(x, w, topi.nn.dense(x, w))
    elif case == "impossible split":
        schedule = Schedule(chosen.mod)
        loop = schedule.get_loops(schedule.get_sblock("y"))[0]
        schedule.vectorize(schedule.split(loop, [None, 16])[1])
        schedule.parallel(schedule.fuse(*schedule.get_loops(schedule.get_sblock("y"))[:1]))
        insts, decisions = traces.to_json(schedule)
        trace = [[i for i in insts if i[0] != "Split"], decisions]
    else:
        trace = [[["NoSuchStep", [], [], []]], []]
    good = double()
    result, other = measure(measurer, (chosen, trace), (good, trace_of(good)))
    assert result.stage == "space"
    assert result.message.startswith("the trace cannot be applied: ")
    assert other.stage is None


def test_an_error_in_the_build_function_fails_in_stage_build():
    chosen = double()
    with make_measurer("measure.faulty:refuse") as measurer:
        results = measure(measurer, *[(chosen, trace_of(chosen))] * 3)
        assert [r.stage for r in results] == ["build"] * 3
        assert results[0].message == "no kernel today"
        deviation, message = measurer.verify(chosen, trace_of(chosen))
        assert (deviation, message) == (None, "no kernel today")


def test_an_endless_build_is_killed():
    chosen = double()
    timing = replace(TIMING, build_timeout=1.0)
    with make_measurer("measure.faulty:sleep", timing) as measurer:
        (result,) = measure(measurer, (chosen, trace_of(chosen)))
    assert result.stage == "timeout"
    assert "(build)" in result.message


def test_a_correct_kernel_has_no_deviation(measurer):
    chosen = double()
    deviation, message = measurer.verify(chosen, trace_of(chosen))
    assert deviation is not None
    assert deviation < 1e-6
    assert message == ""


def test_the_default_schedule_of_a_convolution_passes_verification(measurer):
    x = te.placeholder((1, 13, 7, 16), "float32", name="x")
    w = te.placeholder((3, 3, 16, 24), "float32", name="w")
    chosen = implementation(x, w, topi.nn.conv2d_nhwc(x, w, 1, 1, 1))
    target = tvm.target.Target(this_machine().target)
    trace = traces.to_json(chosen.space.default(chosen.mod, target))
    (result,) = measure(measurer, (chosen, trace))
    assert result.stage is None
    deviation, _ = measurer.verify(chosen, trace)
    assert deviation is not None
    assert deviation < 1e-5


def test_a_wrong_kernel_deviates(measurer):
    chosen = double()
    deviation, _ = measurer.verify(chosen, trace_of(chosen, "wrong"))
    assert deviation == pytest.approx(0.5)
    # and is no reason to doubt the next
    deviation, _ = measurer.verify(chosen, trace_of(chosen))
    assert deviation is not None
    assert deviation < 1e-6


def test_unwritten_outputs_are_wrong(measurer):
    chosen = double()
    deviation, _ = measurer.verify(chosen, trace_of(chosen, "partial"))
    assert deviation == float("inf")


def test_a_crash_during_the_check_is_wrong(measurer):
    chosen = double()
    deviation, message = measurer.verify(chosen, trace_of(chosen, "crashing"))
    assert deviation == float("inf")
    assert "SIGSEGV" in message


def test_libraries_are_removed_after_use(measurer):
    chosen = double()
    assert measurer.verify(chosen, trace_of(chosen))[0] is not None
    kept = artifacts(measurer)
    measure(measurer, (chosen, trace_of(chosen)), (chosen, trace_of(chosen, "crashing")))
    measurer.verify(chosen, trace_of(chosen))
    assert artifacts(measurer) == kept, "only references stay"


def test_builders_are_idle_while_a_candidate_is_timed(noting):
    chosen = double()
    first = noting.build([(chosen, trace_of(chosen))] * 2)
    second = noting.build([(chosen, trace_of(chosen))] * 4)
    found: dict[str, list[Measurement]] = {"first": [], "second": []}
    noting.time(first, lambda _, result: found["first"].append(result))
    noting.time(second, lambda _, result: found["second"].append(result))
    assert [len(results) for results in found.values()] == [2, 4]
    assert all(result.seconds for results in found.values() for result in results)
    runs = [note for note in notes(noting) if note[0] == "run"]
    builds = [note for note in notes(noting) if note[0] == "built"]
    assert len(runs) == 6
    for _, began, ended in runs:
        assert not [b for b in builds if b[1] < ended and b[2] > began]


def test_build_does_not_block_the_caller():
    chosen = double()
    timing = replace(TIMING, build_timeout=1.0)
    with make_measurer("measure.faulty:sleep", timing) as measurer:
        batch = measurer.build([(chosen, trace_of(chosen))])
        assert not batch.handles[0].done()
        found: list[Measurement] = []
        measurer.time(batch, lambda _, result: found.append(result))
        assert found[0].stage == "timeout"


def test_verification_uses_the_prepared_build(noting):
    chosen = double()
    noting.prepare(chosen, trace_of(chosen))
    for _ in range(2):
        deviation, _ = noting.verify(chosen, trace_of(chosen))
        assert deviation is not None
        assert deviation < 1e-6
    # the unscheduled workload once, and the candidate each time
    assert [what for what, _, _ in notes(noting)] == ["built"] * 3


def test_a_reference_for_this_machine_runs_in_a_builder_before_the_check():
    chosen = double()
    backend, device = host.backend("cpu"), this_machine()
    builder = backend.make_builder(device)
    builder = replace(builder, reference=BuilderSpec.Reference(device.target, builder.options))
    runner = replace(backend.make_runner(device), exclusive=False)
    with Measurer(device, builder, runner, TIMING) as measurer:
        measurer.prepare(chosen, trace_of(chosen))
        measurer.rest()
        assert len(list(measurer.directory.glob("*.npz"))) == len(check_data.SETS)
        deviation, _ = measurer.verify(chosen, trace_of(chosen))
        assert deviation is not None
        assert deviation < 1e-6


def test_a_dropped_batch_leaves_nothing_behind(measurer):
    chosen = double()
    kept = artifacts(measurer)
    measurer.drop(measurer.build([(chosen, trace_of(chosen))] * 40))
    measurer.rest()
    # The last one is deleted right after its build has ended, by another thread.
    assert processes.soon(lambda: artifacts(measurer) == kept)


def test_verification_ignores_a_build_of_another_candidate(measurer):
    chosen = double()
    kept = artifacts(measurer)
    measurer.prepare(chosen, trace_of(chosen, "partial"))
    measurer.prepare(chosen, trace_of(chosen))
    measurer.prepare(chosen, trace_of(chosen, "wrong"))
    deviation, _ = measurer.verify(chosen, trace_of(chosen))
    assert deviation is not None
    assert deviation < 1e-6
    deadline = time.monotonic() + 30
    while len(artifacts(measurer)) > len(kept) + 1:  # only the reference stays
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_remeasuring_uses_the_shipping_build_and_more_repeats(noting):
    chosen = double()
    result = noting.remeasure(chosen, trace_of(chosen))
    assert len(result.seconds) > TIMING.repeat
    assert [what for what, _, _ in notes(noting)] == ["shipped", "run"]
    assert artifacts(noting) == []


def test_remeasuring_reports_a_failed_build(measurer):
    result = measurer.remeasure(double(), [[["NoSuchStep", [], [], []]], []])
    assert (result.seconds, result.stage) == ((), "space")


def test_drift_is_relative_to_the_first_reading(measurer):
    assert measurer.drift() == 1.0
    later = measurer.drift()
    assert later is not None
    assert later > 0


def test_a_runner_without_a_baseline_has_no_drift():
    with make_measurer(baseline=None) as measurer:
        assert measurer.drift() is None
    with make_measurer(baseline="measure.calls:complain") as measurer:
        assert measurer.drift() is None


def test_the_peak_is_plausible(measurer):
    peak = measurer.peak()
    assert peak is not None
    assert 1 < peak < 1e5


def test_closing_removes_the_directory_and_ends_the_workers():
    import psutil

    chosen = double()
    with make_measurer() as measurer:
        measure(measurer, (chosen, trace_of(chosen)))
        workers = [*measurer._builders._workers, *measurer._runners._workers]
        pids = [worker._child.pid for worker in workers if worker._child]
        assert measurer.directory.is_dir()
        assert pids
    assert not measurer.directory.exists()
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    measurer.close()  # a second time does nothing


# Makes a session's directory and ends without removing it.
DYING = f"""
import os, sys
sys.path[:] = {sys.path!r}
from tvmtune.machine import scratch
from tvmtune.measure.measurer import PREFIX
with scratch.folder(PREFIX) as folder:
    print(folder, flush=True)
    os.kill(os.getpid(), 9)
"""
# Makes one, and keeps it.
LIVING = DYING.replace("os.kill(os.getpid(), 9)", "sys.stdin.read()")


def test_directories_of_dead_sessions_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    dead = subprocess.run(
        [sys.executable, "-c", DYING], env=environment, capture_output=True, text=True
    )
    left = Path(dead.stdout.strip())
    young, notes = tmp_path / f"{PREFIX}young", tmp_path / "tvmtune-notes-1"
    for path in (young, notes):
        path.mkdir()
    os.utime(left, (0, 0))  # as if some time had passed
    os.utime(notes, (0, 0))
    with make_measurer() as measurer:
        assert set(tmp_path.iterdir()) == {measurer.directory, young, notes}


@pytest.mark.parametrize("namespace", [[], ["unshare", "--pid", "--fork", "--mount-proc"]])
def test_directories_of_live_sessions_stay(tmp_path, monkeypatch, namespace):
    """Also those in another PID namespace, such as a container's, whose numbers mean nothing here."""
    if namespace and subprocess.run([*namespace, "true"], capture_output=True).returncode:
        pytest.skip("no PID namespace can be made here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen(
        [*namespace, sys.executable, "-c", LIVING],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as session:
        assert session.stdout is not None
        kept = Path(session.stdout.readline().strip())
        os.utime(kept, (0, 0))
        with make_measurer() as measurer:
            assert set(tmp_path.iterdir()) == {measurer.directory, kept}
        session.communicate()
    assert not kept.exists()


def recovering(
    monkeypatch: pytest.MonkeyPatch, build: str, *, patience: float = 60.0, **runner: Any
) -> Measurer:
    """A measurer that pauses for a short time."""
    monkeypatch.setattr(recovery, "PAUSES", (0.05, 0.1))
    monkeypatch.setattr(recovery, "ALONE", (0.05, 0.1))
    monkeypatch.setattr(recovery, "PATIENCE", patience)
    return make_measurer(build, **runner)


@pytest.mark.sweep
@pytest.mark.parametrize("what", ["disk", "files", "linker"])
def test_a_candidate_that_met_a_fault_is_measured_again(monkeypatch, what):
    chosen = double()
    found: list[tuple[int, Measurement]] = []
    with recovering(monkeypatch, f"measure.faulty:build_without_{what}") as measurer:
        candidates = [(chosen, trace_of(chosen, "wrong"))] + [(chosen, trace_of(chosen))] * 2
        measurer.measure(candidates, lambda index, result: found.append((index, result)))
        spoilt = measurer.directory / faulty.SPOILT
        assert spoilt.read_text() == "111"  # the first build, and its two repetitions that failed
    assert all(result.stage is None for _, result in found)
    assert [index for index, _ in found] == [1, 2, 0]  # it comes last


@pytest.mark.parametrize("where", ["build", "run"])
def test_a_killed_process_is_tried_again_alone(monkeypatch, where):
    chosen = double()
    killing = {"run": "measure.faulty:run_killed_once"} if where == "run" else {}
    build = "measure.faulty:build_killed_once" if where == "build" else "measure.faulty:build"
    with recovering(monkeypatch, build, **killing) as measurer:
        results = measure(measurer, (chosen, trace_of(chosen)))
    assert [result.stage for result in results] == [None]


def kernel_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the kernel had killed whatever is killed, because memory ran out. Only this process says
    so, which judges the ends of workers."""
    numbers = itertools.count()
    monkeypatch.setattr(oom_kills, "count", lambda: next(numbers))


def test_a_candidate_that_is_killed_from_outside_has_not_failed(monkeypatch):
    """However often: the run ends, and says so."""
    chosen = double()
    found: list[Measurement] = []
    with (
        recovering(
            monkeypatch, "measure.faulty:build", patience=2.0, run="measure.faulty:run_killed"
        ) as measurer,
        pytest.raises(recovery.EnvironmentFault, match="SIGKILL. Find what kills tvmtune's"),
    ):
        measurer.measure([(chosen, trace_of(chosen))], lambda _, result: found.append(result))
    assert found == []


def test_a_candidate_that_is_killed_alone_too_has_failed(monkeypatch):
    chosen = double()
    kernel_kills(monkeypatch)
    with recovering(
        monkeypatch, "measure.faulty:build", run="measure.faulty:run_killed"
    ) as measurer:
        (result,) = measure(measurer, (chosen, trace_of(chosen)))
    assert result.stage == "crash"
    assert "SIGKILL (out of memory)" in result.message
    assert result.message.endswith("(also alone, 2 times)")


def test_a_candidate_that_lacks_memory_is_blamed_only_after_long_pauses(monkeypatch):
    """In which other programs may end: half a minute together, the longer one last."""
    pauses: list[float] = []
    monkeypatch.setattr(recovery, "_sleep", pauses.append)
    found = recovery.Recovery(Path("/tmp"), lambda message: None, lambda: None)
    lacking = Outcome(stage="crash", message="the worker died: SIGKILL", fault="memory")
    assert found.repeat(lambda: lacking, lacking).stage == "crash"
    assert pauses == sorted(pauses)
    assert sum(pauses) >= 30.0


@pytest.mark.parametrize("kills", [1, 9])
def test_a_check_that_is_killed_gives_no_wrong_verdict(monkeypatch, kills):
    chosen = double()
    kernel_kills(monkeypatch)
    with recovering(
        monkeypatch,
        "measure.faulty:build",
        check=f"measure.faulty:check_killed_{'once' if kills == 1 else 'always'}",
    ) as measurer:
        deviation, message = measurer.verify(chosen, trace_of(chosen))
    if kills == 1:
        assert deviation is not None
        assert deviation < 1e-6
    else:
        assert deviation is None
        assert "SIGKILL" in message


def test_a_fault_that_does_not_end_ends_the_run_with_its_name(monkeypatch):
    chosen = double()
    found: list[int] = []
    with (
        recovering(monkeypatch, "measure.faulty:build_without_space", patience=0.5) as measurer,
        pytest.raises(recovery.EnvironmentFault, match="No space left on device.*Free some space"),
    ):
        candidates = [(chosen, trace_of(chosen, "wrong")), (chosen, trace_of(chosen))]
        measurer.measure(candidates, lambda index, _: found.append(index))
    assert found == [1]  # what was measured is reported


def test_a_device_that_needs_time_to_be_set_up_gets_it(monkeypatch):
    chosen = double()
    init = "measure.faulty:init_after_failures"
    with recovering(monkeypatch, "measure.faulty:build", init=init) as measurer:
        (result,) = measure(measurer, (chosen, trace_of(chosen)))
        assert (measurer.directory / faulty.SPOILT).read_text() == "1111"
    assert result.stage is None


def test_workers_that_cannot_be_set_up_end_the_run(monkeypatch):
    chosen = double()
    with (
        recovering(
            monkeypatch, "measure.faulty:build", patience=0.5, init="measure.calls:complain"
        ) as measurer,
        pytest.raises(recovery.EnvironmentFault, match="could not be set up.*the device"),
    ):
        measure(measurer, (chosen, trace_of(chosen)))


def test_a_process_that_dies_silently_on_a_full_disk_is_not_to_blame(monkeypatch, tmp_path):
    chosen = double()
    disk = tmp_path / "disk"
    with disks.mounted(disk, "size=4M"):
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        filler = disk / "filler"
        with recovering(monkeypatch, "measure.faulty:build_or_die_on_a_full_disk") as measurer:
            filler.write_bytes(bytes(7 << 19))
            threading.Timer(2.0, filler.unlink).start()
            (result,) = measure(measurer, (chosen, trace_of(chosen)))
    assert result.stage is None
