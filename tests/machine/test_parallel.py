"""Calls in threads: results in order, the caller's context, one exception, nothing left running."""

from __future__ import annotations

import os
import threading
import time

import pytest

from tvmtune import phases
from tvmtune.machine import parallel


def square(number: int) -> int:
    time.sleep(0.001 * (number % 3))
    return number * number


@pytest.mark.parametrize("threads", [1, 2, 64])
def test_results_and_progress_come_in_order(threads):
    seen: list[tuple[str, int, int]] = []
    with phases.listening(lambda *event: seen.append(event)):
        results = parallel.each(square, range(20), "squaring", threads=threads)
    assert results == [n * n for n in range(20)]
    assert seen == [("squaring", done, 20) for done in range(21)]


def test_progress_counts_what_the_items_hold():
    seen: list[tuple[str, int, int]] = []
    groups = parallel.groups(range(5), 2)
    with phases.listening(lambda *event: seen.append(event)):
        assert parallel.each(sum, groups, "adding", size=len) == [6, 4]
    assert [(done, total) for _, done, total in seen] == [(0, 5), (3, 5), (5, 5)]


@pytest.mark.parametrize(("count", "most", "groups"), [(0, 4, 0), (3, 4, 3), (4, 4, 4), (9, 4, 4)])
def test_groups_hold_every_item_once(count, most, groups):
    made = parallel.groups(range(count), most)
    assert len(made) == groups
    assert sorted(item for group in made for item in group) == [*range(count)]


def test_without_items_nothing_is_reported():
    with phases.listening(lambda *event: pytest.fail(str(event))):
        assert parallel.each(square, [], "squaring") == []


@pytest.mark.parametrize("threads", [1, 2])
def test_the_first_error_ends_it(threads):
    begun: list[int] = []

    def fail(number: int) -> None:
        begun.append(number)
        time.sleep(0.01)
        raise ValueError(f"item {number}")

    with pytest.raises(ValueError, match="item 0"):
        parallel.each(fail, range(100), "failing", threads=threads)
    assert len(begun) < 100


def test_an_interrupt_leaves_no_thread_running():
    before = threading.active_count()

    def interrupt(phase: str, done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with phases.listening(interrupt), pytest.raises(KeyboardInterrupt):
        parallel.each(square, range(1000), "squaring", threads=2)
    assert threading.active_count() == before


def test_threads_have_the_callers_pass_context():
    import tvm

    def disabled(number: int) -> bool:
        return bool(tvm.transform.PassContext.current().config.get("tirx.disable_assert", False))

    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        assert parallel.each(disabled, range(4), "asking", threads=2) == [True] * 4
    assert parallel.each(disabled, range(4), "asking", threads=2) == [False] * 4


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs affinity masks")
def test_threads_may_use_every_cpu_though_the_caller_is_bound_to_one():
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})
    try:
        masks = parallel.each(lambda _: os.sched_getaffinity(0), range(4), "asking", threads=2)
        assert parallel.cores() > 1 or len(mine) == 1
        assert os.sched_getaffinity(0) == {min(mine)}
    finally:
        os.sched_setaffinity(0, mine)
    assert masks == [mine] * 4
