"""Warm start: a search begins with the best traces of similar workloads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tuning import listening, small
from tvmtune.records.log import read_log
from tvmtune.spaces import traces
from tvmtune.tuning.observer import Observer
from tvmtune.tuning.state import ImplementationState, TaskState
from tvmtune.tuning.warm_start import MAX_CANDIDATES, PER_WORKLOAD, WarmStart, loop_signature
from tvmtune.types import DEFAULT


def states_of(*rows: int) -> list[TaskState]:
    tasks = [small.task(n, small.matmul(r)) for n, r in enumerate(rows)]
    return [TaskState(t, [ImplementationState(i) for i in t.implementations]) for t in tasks]


@pytest.fixture(scope="module")
def donor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of three matrix products, with task lines as a run writes them."""
    from tvmtune.records import schema

    log = tmp_path_factory.mktemp("donor") / "log.json"
    tasks = [small.task(n, small.matmul(rows)) for n, rows in enumerate((8, 32, 64))]
    with small.session(log, tasks, per_task=4) as session:
        for task in tasks:
            session.log.write(schema.task(task))
        session.run()
    return log


def on_another_device(log: Path, path: Path, kind: str = "llvm") -> Path:
    """The same log, measured elsewhere."""
    first, *rest = log.read_text().splitlines()
    header = json.loads(first)
    mine = header["device"]["identity"]
    header["device"] |= {"identity": "f" * 16, "model": "another CPU"}
    header["device"]["target"]["kind"] = kind
    lines = [json.dumps(header), *(line.replace(mine, "f" * 16) for line in rest)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_similarity_depends_on_operator_loops_and_shape():
    eight, sixteen, sixty = (loop_signature(small.matmul(rows)) for rows in (8, 16, 64))
    assert eight is not None
    assert sixteen is not None
    assert sixty is not None
    near, far = eight.distance(sixteen), eight.distance(sixty)
    assert near == (False, False, 1.0)
    assert far == (False, False, 3.0)
    assert eight.distance(eight) == (False, False, 0.0)


def test_a_workload_without_an_anchor_block_has_no_signature():
    assert loop_signature(small.addition(8)) is None


class BestSoFar(Observer):
    """The best searched traces of each task when the latest workload's first candidates are proposed.

    Not those at the end of the session: confirming incumbents changes latencies, and their order."""

    def __init__(self) -> None:
        self.of: dict[str, list[list[Any]]] = {}

    def started(self, session: Any) -> None:
        self.session = session

    def proposing(self, state: Any, impl: Any) -> None:
        if impl.implementation.workload_key not in listening.warm_start:
            tasks = [
                [t for t in s.trials if t.ok and t.tuner != DEFAULT] for s in self.session.states
            ]
            best = [sorted(trials, key=lambda t: t.latency)[:PER_WORKLOAD] for trials in tasks]
            self.of[state.task.name] = [[t.trace for t in trials] for trials in best]


@pytest.mark.slow
def test_the_sessions_own_tasks_help_the_next(tmp_path, monkeypatch):
    listening.register(monkeypatch)
    tasks = [small.task(n, small.matmul(rows)) for n, rows in enumerate((8, 64, 16))]
    best = BestSoFar()
    with small.session(
        tmp_path / "log.json",
        tasks,
        tuner="listening",
        per_task=6,
        scheduling="sequential",
        observer=best,
    ) as session:
        session.run()
    first, second, third = listening.warm_start.values()
    assert first == [], "only default schedules are known, and it has its own"
    assert 0 < len(second) <= PER_WORKLOAD
    assert second == best.of["task1"][0]
    # 16 rows are nearer to 8 than to 64
    assert 0 < len(third) <= 2 * PER_WORKLOAD
    assert third == best.of["task2"][0] + best.of["task2"][1]
    mod = tasks[0].implementations[0].mod
    traces.apply(mod, second[0])


@pytest.mark.slow
def test_traces_from_other_logs_come_nearest_first(donor, tmp_path):
    log = read_log(on_another_device(donor, tmp_path / "other.json"))
    states = states_of(12)
    found = WarmStart(states, [log], small.device(), "measured").of(states[0].implementations[0])
    assert 0 < len(found) <= MAX_CANDIDATES
    rows = [
        next(n for n, k in enumerate(log.tasks) if k == t.task)
        for trace in found
        for t in log.trials
        if t.trace == trace
    ]
    assert rows == sorted(rows), "8 rows are the nearest to 12, then 32, then 64"
    assert set(rows) == {0, 1, 2}


def test_a_workload_measured_on_another_device_is_the_nearest_of_all(donor, tmp_path):
    log = read_log(on_another_device(donor, tmp_path / "other.json"))
    states = states_of(64)
    found = WarmStart(states, [log], small.device(), "measured").of(states[0].implementations[0])
    task = states[0].task.key
    searched = [t for t in log.trials if t.task == task and t.ok and t.tuner != "default"]
    best = sorted(searched, key=lambda t: t.latency)
    assert found[:PER_WORKLOAD] == [t.trace for t in best[:PER_WORKLOAD]]


def test_records_of_the_same_workload_and_device_are_not_used(donor):
    log = read_log(donor)
    states = states_of(64)
    found = WarmStart(states, [log], small.device(), "measured").of(states[0].implementations[0])
    mine = [t.trace for t in log.trials if t.task == states[0].task.key]
    assert found
    assert not [trace for trace in found if trace in mine]


def test_schedules_for_another_kind_of_target_are_not_used(donor, tmp_path):
    log = read_log(on_another_device(donor, tmp_path / "gpu.json", kind="cuda"))
    states = states_of(16)
    assert (
        WarmStart(states, [log], small.device(), "measured").of(states[0].implementations[0]) == []
    )
    log = read_log(donor)
    assert (
        WarmStart(states, [log], small.device(), "modelled").of(states[0].implementations[0]) == []
    )
