"""Times of kernels, while the system's clock is set."""

from __future__ import annotations

import time

import pytest

from tvmtune.machine.clock_steps import ATTEMPTS, without_step
from tvmtune.measure import local
from tvmtune.types import Timing


@pytest.fixture
def clock(monkeypatch):
    """The time of day is that of the list's sum later."""
    steps = []
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + sum(steps))
    return steps


@pytest.mark.parametrize("step", [3600.0, -3600.0, 0.1])
def test_a_measurement_is_repeated_if_the_clock_was_set_meanwhile(clock, step):
    results = []

    def measure():
        if len(results) < 2:
            clock.append(step)
        results.append(len(results))
        return results[-1]

    assert without_step(measure) == 2
    assert without_step(measure) == 3  # set before, not meanwhile


def test_a_clock_that_is_set_all_the_time_is_an_error(clock):
    with pytest.raises(RuntimeError, match=f"clock was set during each of {ATTEMPTS}"):
        without_step(lambda: clock.append(1.0))


def test_a_candidates_times_contain_no_step(clock, monkeypatch):
    """TVM's timer reads the time of day."""

    class Module:
        def time_evaluator(self, name, device, repeat, **how):
            def evaluator(*arrays):
                first = not clock
                if first:
                    clock.append(-3600.0)
                results = [(-3600.0 if first else 0.0) + 1e-3] * repeat
                return type("Result", (), {"results": results})

            return evaluator

    monkeypatch.setattr(local, "load", lambda artifact, options: (None, Module()))
    monkeypatch.setattr(local, "_arguments", local.Arguments(None))
    assert local.run("some.so", [], Timing(repeat=4), {}) == [1e-3] * 4
