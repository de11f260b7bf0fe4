"""Calls find a board, whatever becomes of boards, tracker and the calls themselves."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import processes
from farm.served import Farm, Running, free_port
from tvmtune.farm.lending import borrow
from tvmtune.farm.protocol import Address, Tracker, Unreachable
from tvmtune.measure import boards
from tvmtune.measure.boards import Boards, NoBoard
from tvmtune.workers import Outcome

CALLS = "measure.board_calls"
pytestmark = pytest.mark.slow

KEY = "x86"
DOUBLED = [2.0 * n for n in range(8)]


class Told:
    """What the user was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, message: str) -> None:
        self.lines.append(message)

    def wait(self, words: str, seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while not any(words in line for line in self.lines):
            assert time.monotonic() < end, f"'{words}' was never said: {self.lines}"
            time.sleep(0.05)


@contextmanager
def watched(tracker: Address, **options: object) -> Iterator[tuple[Boards, Told]]:
    """Boards, and what they say; of this process's children, none is left at the end."""
    before = children()
    told = Told()
    with Boards(KEY, tracker, say=told, **{"wait": 60.0, **options}) as made:  # type: ignore[arg-type]
        yield made, told
    assert processes.ended(children() - before)


def children() -> set[int]:
    """Processes that serve lanes: the fork server's children."""
    found = set()
    for server in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "forkserver" in " ".join(server.cmdline()):
                found |= {p.pid for p in server.children()}
    return found


def call(made: Boards, function: str, *arguments: object, deadline: float = 20.0) -> Outcome:
    calls = [arguments]
    return made.map(f"{CALLS}:{function}", calls, deadline=deadline, stage="run")[0]


def stop(running: Running) -> None:
    """Freeze a board: all of its processes."""
    for pid in (running.pid, *running.children()):
        os.kill(pid, signal.SIGSTOP)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines that suit a board on this machine."""
    monkeypatch.setattr(boards, "OVERHEAD", 2.0)
    monkeypatch.setattr(boards, "LOOK", 0.5)


def test_a_call_is_made_with_a_board(farm, within):
    within(90)
    _, tracker = farm.tracker()
    _, board = farm.board(KEY, tracker)
    with watched(tracker, options={"threads": 2}) as (made, told):
        assert call(made, "where").value == str(board)
        assert call(made, "threads").value == 2
        assert told.lines[0] == f"boards '{KEY}': {board} has come; now 1"


def test_what_a_board_refuses_is_the_calls_failure_and_ends_no_session(farm, within):
    within(90)
    _, tracker = farm.tracker()
    farm.board(KEY, tracker)
    with watched(tracker) as (made, _):
        before = call(made, "session").value
        outcome = call(made, "refuse")
        assert outcome.stage == "run"
        assert "no-such-library.so" in outcome.message
        assert call(made, "session").value == before


@pytest.mark.parametrize(("what", "how"), [("abort", "SIGABRT"), ("sigill", "SIGILL")])
def test_a_candidate_that_crashes_is_told_its_signal_and_costs_no_board(
    farm, candidates, within, what, how
):
    within(90)
    _, tracker = farm.tracker()
    farm.board(KEY, tracker)
    with watched(tracker) as (made, told):
        outcome = call(made, "candidate", str(candidates[what]))
        assert (outcome.stage, how in outcome.message) == ("crash", True)
        assert call(made, "candidate", str(candidates["sound"])).value == DOUBLED
        assert not any("lost" in line for line in told.lines)


def test_a_candidate_without_end_is_a_timeout_and_costs_no_board(farm, candidates, within, quick):
    within(90)
    _, tracker = farm.tracker()
    farm.board(KEY, tracker)
    with watched(tracker) as (made, told):
        outcome = call(made, "candidate", str(candidates["sleep"]), deadline=1.0)
        assert outcome == Outcome(stage="timeout", message="killed after 1 s (run)")
        assert call(made, "candidate", str(candidates["sound"])).value == DOUBLED
        assert not any("lost" in line for line in told.lines)


def test_the_work_of_a_board_that_is_killed_goes_to_another(farm, within):
    within(120)
    _, tracker = farm.tracker()
    first, second = farm.board(KEY, tracker), farm.board(KEY, tracker)
    servers = {str(address): running.pid for running, address in (first, second)}
    with watched(tracker) as (made, told):
        handles = [made.submit(f"{CALLS}:nap", (0.3,), 10.0) for _ in range(40)]
        while {handle.result().value for handle in handles if handle.done()} != set(servers):
            time.sleep(0.05)
        first[0].kill()
        outcomes = made.collect(handles, deadline=10.0, stage="run")
        assert all(outcome.ok for outcome in outcomes)
        assert {outcome.value for outcome in outcomes} == set(servers)
        told.wait(f"the board '{KEY}' at {first[1]} is lost")
        told.wait(f"{first[1]} has left; now 1")


def test_a_call_that_takes_down_two_boards_is_to_blame(farm, within):
    within(120)
    _, tracker = farm.tracker()
    three = [farm.board(KEY, tracker) for _ in range(3)]
    servers = {str(address): running.pid for running, address in three}
    with watched(tracker) as (made, told):
        outcome = call(made, "murder", servers)
        assert outcome.stage == "crash"
        assert outcome.message.startswith("it took a board down 2 times; the last: ")
        assert call(made, "where").ok
        assert sum("is lost" in line for line in told.lines) == 2
    assert [running.process.poll() is None for running, _ in three].count(True) == 1


def test_a_board_that_is_killed_and_comes_back_is_used_again(farm, within):
    within(120)
    _, tracker = farm.tracker()
    running, address = farm.board(KEY, tracker)
    with watched(tracker) as (made, told):
        handles = [made.submit(f"{CALLS}:nap", (0.2,), 10.0) for _ in range(10)]
        time.sleep(1.0)
        running.kill()
        told.wait(f"waiting for a board '{KEY}', up to 60 s: none is registered")
        farm.board(KEY, tracker, port=address.port)
        assert all(o.ok for o in made.collect(handles, deadline=10.0, stage="run"))
        told.wait(f"there is a board '{KEY}' again")


def test_a_frozen_board_loses_its_work_to_another_and_may_thaw(farm, within, quick):
    within(120)
    _, tracker = farm.tracker()
    frozen, address = farm.board(KEY, tracker)
    with watched(tracker) as (made, told):
        assert call(made, "where").value == str(address)
        stop(frozen)
        handle = made.submit(f"{CALLS}:where", (), 1.0)
        _, other = farm.board(KEY, tracker)
        assert made.collect([handle], deadline=1.0, stage="run")[0].value == str(other)
        told.wait(f"at {address} is lost (it does not answer)")
        for pid in (frozen.pid, *frozen.children()):
            os.kill(pid, signal.SIGCONT)
        naps = [(0.5,)] * 30
        found = made.map(f"{CALLS}:nap", naps, deadline=5.0, stage="run")
        assert {outcome.value for outcome in found} == {str(address), str(other)}


def test_work_goes_on_without_a_tracker_and_boards_return_with_it(farm, within):
    within(120)
    process, tracker = farm.tracker()
    farm.board(KEY, tracker)
    with watched(tracker) as (made, told):
        assert call(made, "where").ok
        process.kill()
        assert call(made, "where").ok  # the session is not the tracker's
        time.sleep(boards.IDLE + 1.0)  # it is given back
        handle = made.submit(f"{CALLS}:where", (), 5.0)
        told.wait(f"waiting for a board '{KEY}', up to 60 s: no tracker answers at {tracker}")
        farm.tracker(tracker.port)
        assert made.collect([handle], deadline=5.0, stage="run")[0].ok


def test_without_a_board_the_run_ends_when_the_wait_is_over(farm, within):
    within(90)
    _, tracker = farm.tracker()
    running, _ = farm.board(KEY, tracker)
    with watched(tracker, wait=3.0) as (made, told):
        assert call(made, "where").ok
        running.end()
        began = time.monotonic()
        with pytest.raises(
            NoBoard, match=f"no board '{KEY}' was to be had for 3 s: none is registered"
        ):
            call(made, "where")
        assert time.monotonic() - began < 20
        told.wait(f"waiting for a board '{KEY}', up to 3 s")


def test_boards_that_others_use_are_waited_for(farm, within):
    within(90)
    _, tracker = farm.tracker()
    _, board = farm.board(KEY, tracker)
    with (
        borrow(tracker, KEY, 10.0),
        watched(tracker, wait=2.0) as (made, _),
        pytest.raises(NoBoard, match="all of them are in use"),
    ):
        call(made, "where")
    with watched(tracker) as (made, _):
        assert call(made, "where").value == str(board)


def test_one_who_stops_waiting_takes_no_board_from_others(farm, within):
    within(90)
    _, tracker = farm.tracker()
    farm.board(KEY, tracker)
    with borrow(tracker, KEY, 10.0):
        for _ in range(3):
            with watched(tracker) as (made, _):
                made.submit(f"{CALLS}:where", (), 5.0)
                time.sleep(1.0)
    began = time.monotonic()
    with borrow(tracker, KEY, 10.0):
        assert time.monotonic() - began < 5.0


def test_a_board_that_joins_is_put_to_work(farm, within, quick):
    within(90)
    _, tracker = farm.tracker()
    _, first = farm.board(KEY, tracker)
    with watched(tracker) as (made, told):
        handles = [made.submit(f"{CALLS}:nap", (0.3,), 10.0) for _ in range(40)]
        _, second = farm.board(KEY, tracker)
        found = {o.value for o in made.collect(handles, deadline=10.0, stage="run")}
        assert found == {str(first), str(second)}
        told.wait(f"{second} has come; now 2")


def test_an_unknown_key_is_told_those_that_are_known(farm, within):
    within(60)
    _, tracker = farm.tracker()
    with pytest.raises(Unreachable, match=f"no board '{KEY}': it has none at all"):
        Boards(KEY, tracker)
    farm.board("rk3399", tracker)
    with pytest.raises(Unreachable, match=f"has no board '{KEY}': it has rk3399"):
        Boards(KEY, tracker)


def test_a_tracker_that_is_not_there_is_told_with_its_remedy(within):
    within(30)
    with pytest.raises(Unreachable, match="no tracker answers at .*tvmtune tracker"):
        Boards(KEY, Address("127.0.0.1", free_port()))


def test_closing_ends_what_is_at_work(farm, candidates, within):
    within(90)
    _, tracker = farm.tracker()
    farm.board(KEY, tracker)
    began = time.monotonic()
    with watched(tracker) as (made, _):
        handle = made.submit(f"{CALLS}:candidate", (str(candidates["sleep"]),), 600.0)
        time.sleep(3.0)
        assert not handle.done()
        began = time.monotonic()
    assert time.monotonic() - began < 5.0
    with borrow(tracker, KEY, 20.0):  # the board has noticed
        pass


def test_an_interrupt_leaves_calls_that_were_waiting(farm, within):
    within(90)
    _, tracker = farm.tracker()
    farm.board(KEY, tracker)

    def interrupt(index: int, outcome: Outcome) -> None:
        raise KeyboardInterrupt

    with watched(tracker) as (made, _), pytest.raises(KeyboardInterrupt):
        calls = [(0.1,), (30.0,), (600.0,)]
        made.map(f"{CALLS}:nap", calls, deadline=900, stage="run", on_result=interrupt)


@pytest.mark.parametrize("count", [2, 8])
def test_boards_share_the_work(farm, within, count):
    """Naps take no processor's time: with more boards, each makes its part of them."""
    within(240)
    _, tracker = farm.tracker()
    farm.board(KEY, tracker)
    naps = [(0.25,)] * (8 * count)

    def measure(made: Boards) -> tuple[float, Counter[str]]:
        made.map(f"{CALLS}:where", [()] * count * 2, deadline=30, stage="run")
        began = time.monotonic()
        found = made.map(f"{CALLS}:nap", naps, deadline=30, stage="run")
        return time.monotonic() - began, Counter(outcome.value for outcome in found)

    with watched(tracker) as (made, _):
        alone, _ = measure(made)
    for _ in range(count - 1):
        farm.board(KEY, tracker)
    with watched(tracker) as (made, _):
        together, shares = measure(made)
    print(f"{count} boards did {alone / together:.2f} times as much as one: {dict(shares)}")
    assert len(shares) == count
    assert max(shares.values()) <= 10  # of 8 each
    assert min(shares.values()) >= 5


# TVM's own tracker and servers. What they cannot do is said where it shows.


@contextmanager
def stock(farm: Farm, count: int) -> Iterator[tuple[Address, list[Address]]]:
    tracker = Address("127.0.0.1", free_port())
    ports = [free_port() for _ in range(count)]
    script = str(Path(__file__).with_name("stock.py"))
    words = [sys.executable, script, str(tracker.port), KEY, *map(str, ports)]
    running = farm.start(words, {"TVM_NUM_THREADS": "1"})
    running.expect("are up")
    end = time.monotonic() + 20
    with Tracker(tracker) as line:
        while len(line.summary()["server_info"]) < count:
            assert time.monotonic() < end
            time.sleep(0.1)
    yield tracker, [Address("127.0.0.1", port) for port in ports]


def test_boards_that_tvm_serves_work_as_well(farm, candidates, within, quick):
    within(90)
    with stock(farm, 1) as (tracker, addresses), watched(tracker) as (made, _):
        assert call(made, "where").value == str(addresses[0])
        outcome = call(made, "candidate", str(candidates["sleep"]), deadline=1.0)
        assert outcome == Outcome(stage="timeout", message="killed after 1 s (run)")
        assert call(made, "candidate", str(candidates["sound"])).value == DOUBLED
        assert call(made, "refuse").stage == "run"


def test_a_crash_on_boards_that_tvm_serves_costs_each_and_is_named(farm, candidates, within, quick):
    within(120)
    with stock(farm, 2) as (tracker, _), watched(tracker, wait=3.0) as (made, told):
        outcome = call(made, "candidate", str(candidates["abort"]), deadline=1.0)
        assert outcome.stage == "crash"
        assert "took a board down 2 times" in outcome.message
        with pytest.raises(NoBoard, match="none is registered"):
            call(made, "where")
        assert sum("is lost" in line for line in told.lines) == 2


def test_threads_that_a_board_of_tvms_does_not_have_are_told(farm, within, quick):
    within(60)
    options = {"threads": 2}
    with (
        stock(farm, 1) as (tracker, _),
        watched(tracker, wait=3.0, options=options) as (made, told),
    ):
        with pytest.raises(NoBoard, match="computes with 1 threads there instead of 2"):
            call(made, "where")
        assert sum(line.startswith(f"the board '{KEY}' at") for line in told.lines) == 1
