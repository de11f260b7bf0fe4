"""Candidates built here, timed and checked on a board that may be lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cli.commands import command
from disks import NO_BYTECODE
from measure.test_measurer import artifacts, double, measure, trace_of
from remote.served import Farm, free_port
from tvmtune import host
from tvmtune.errors import UsageError
from tvmtune.measure import board_pool, board_worker, recovery
from tvmtune.measure.board_pool import BoardPool
from tvmtune.measure.measurer import Measurement, Measurer
from tvmtune.remote.protocol import Address
from tvmtune.types import TensorSpec, Timing

pytestmark = pytest.mark.slow

KEY = "x86"
TIMING = Timing(repeat=4, build_timeout=30.0, run_timeout=2.0)


@contextmanager
def measuring(tracker: Address, build: str = "measure.faulty:build") -> Iterator[Measurer]:
    backend = host.backend("cpu")
    device = backend.make_target({}, f"{KEY}@{tracker}")
    builder = replace(backend.make_builder(device), build=build)
    with Measurer(device, builder, backend.make_runner(device), TIMING, wait=60.0) as made:
        yield made


@pytest.fixture
def tracker(farm: Farm, within: Any) -> Address:
    within(150)
    _, address = farm.tracker()
    farm.board(KEY, address)
    return address


def test_candidates_are_timed_on_the_board_while_others_are_built(tracker):
    chosen = double()
    with measuring(tracker) as measurer:
        results = measure(measurer, *[(chosen, trace_of(chosen))] * 6)
        assert all(r.stage is None and len(r.seconds) == TIMING.repeat for r in results)
        assert all(0 < s < 1e-2 for r in results for s in r.seconds)
        assert artifacts(measurer) == []
        assert measurer.peak() is measurer.drift() is None


def test_failures_on_a_board_are_reported(tracker, monkeypatch):
    monkeypatch.setattr(board_worker, "OVERHEAD", 2.0)
    chosen = double()
    good = (chosen, trace_of(chosen))
    spoilt = [(chosen, trace_of(chosen, spoil)) for spoil in ("crashing", "endless")]
    with measuring(tracker) as measurer:
        first, crashed, second, endless, third = measure(
            measurer, good, spoilt[0], good, spoilt[1], good
        )
    assert [r.stage for r in (first, second, third)] == [None] * 3
    assert crashed.stage == "crash"
    assert "SIGSEGV" in crashed.message
    assert endless == Measurement(stage="timeout", message="killed after 2 s (run)")


def test_outputs_are_checked_against_this_machine(tracker):
    chosen = double()
    with measuring(tracker) as measurer:
        assert measurer.verify(chosen, trace_of(chosen)) == (0.0, "")
        error, _ = measurer.verify(chosen, trace_of(chosen, "wrong"))
        assert error == pytest.approx(0.5)
        error, _ = measurer.verify(chosen, trace_of(chosen, "partial"))
        assert error == float("inf")
        error, message = measurer.verify(chosen, trace_of(chosen, "crashing"))
        assert (error, "SIGSEGV" in message) == (float("inf"), True)


def test_a_very_slow_candidate_is_dropped_after_its_first_runs(tracker):
    chosen = double(1 << 24)
    found: list[Measurement] = []
    with measuring(tracker) as measurer:
        candidates = [(chosen, trace_of(chosen))]
        measurer.measure(candidates, lambda _, result: found.append(result), best=[1e-6])
    assert [(r.stage, len(r.seconds)) for r in found] == [(None, 1)]


def test_candidates_with_other_weight_layouts_share_the_boards_memory(tracker):
    def specs(*shapes: tuple[int, ...]) -> list[TensorSpec]:
        return [TensorSpec("x", shape, "float32") for shape in shapes]

    plain = specs((4, 8), (8, 16), (4, 16))
    packed = specs((4, 8), (2, 8, 8), (4, 16))
    other = specs((16,), (16,))
    with BoardPool(KEY, tracker) as made:
        call = ([plain, packed, plain, other],)
        outcome = made.map("measure.board_calls:fills", [call], deadline=30, stage="run")[0]
    assert outcome.ok, outcome.message
    filled, shapes = outcome.value
    assert filled == 3 + 2
    assert shapes == [[s.shape for s in call] for call in (plain, packed, plain, other)]


def test_a_board_fills_its_tensors_as_this_machine_does():
    from tvm.runtime import tensor

    from tvmtune.remote.board_functions import fill
    from tvmtune.test_data import fill as values

    for dtype in ("float32", "int32"):
        spec = TensorSpec("x", (3, 5), dtype)
        there = tensor(np.zeros(spec.shape, dtype))
        fill(there, 7)
        assert (there.numpy() == values(spec, 7)).all()


def test_results_before_the_last_board_left_are_reported(farm, within):
    within(150)
    _, tracker = farm.tracker()
    running, _ = farm.board(KEY, tracker)
    chosen = double()
    found: list[int] = []

    def on_result(index: int, result: Measurement) -> None:
        found.append(index)
        if index == 2:
            running.kill()

    with measuring(tracker) as measurer:
        assert isinstance(measurer._runners, BoardPool)
        measurer._runners.wait = 3.0
        with pytest.raises(board_pool.NoBoard):
            measurer.measure([(chosen, trace_of(chosen))] * 40, on_result)
    assert found[:3] == [0, 1, 2]
    assert found == sorted(set(found))
    assert len(found) < 40


def test_the_target_is_the_boards_own(tracker):
    backend = host.backend("cpu")
    here = backend.make_target({}, None)
    there = backend.make_target({}, f"{KEY}@{tracker}")
    assert (there.target, there.threads, there.model) == (here.target, here.threads, here.model)
    assert there.identity() != here.identity()
    assert there.key == KEY
    assert backend.make_target({"threads": 1}, there.remote).threads == 1
    with pytest.raises(UsageError, match="no processor 'zmver4'"):
        backend.make_target({"mcpu": "zmver4"}, there.remote)


def test_a_full_disk_on_the_board_is_reported(farm, within, monkeypatch):
    within(90)
    _, tracker = farm.tracker()
    serve = command("serve", "--key", KEY, "--tracker", tracker, "--port", free_port())
    # a limit to the size of files is met as a full disk is: a part is written, the rest is not
    running = farm.start(["bash", "-c", 'ulimit -f 2; exec "$@"', "bash", *serve], NO_BYTECODE)
    running.expect("registered")
    chosen = double()
    monkeypatch.setattr(recovery, "PATIENCE", 2.0)
    with (
        measuring(tracker) as measurer,
        pytest.raises(
            recovery.EnvironmentFault, match="cannot be written on the board.*File too large"
        ),
    ):
        measure(measurer, (chosen, trace_of(chosen)))
