"""Calls reach a board despite failing boards, trackers and candidates."""

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
from remote.served import Farm, Running, free_port
from tvmtune.measure import board_pool, board_worker
from tvmtune.measure.board_pool import BoardPool, NoBoard
from tvmtune.remote.client.board_client import board_session
from tvmtune.remote.protocol import Address, Tracker, Unreachable
from tvmtune.workers import Outcome

CALLS = "measure.board_calls"
pytestmark = pytest.mark.slow

KEY = "x86"
DOUBLED = [2.0 * n for n in range(8)]


class Messages:
    """The messages reported to the user."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, message: str) -> None:
        self.lines.append(message)

    def wait(self, words: str, seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while not any(words in line for line in self.lines):
            assert time.monotonic() < end, f"'{words}' was never reported: {self.lines}"
            time.sleep(0.05)


@contextmanager
def watched(tracker: Address, **options: object) -> Iterator[tuple[BoardPool, Messages]]:
    """A pool and its messages; checks at the end that no child of this process is left."""
    before = children()
    messages = Messages()
    with BoardPool(KEY, tracker, report=messages, **{"wait": 60.0, **options}) as pool:  # type: ignore[arg-type]
        yield pool, messages
    assert processes.ended(children() - before)


def children() -> set[int]:
    """Processes of board workers: the fork server's children."""
    found = set()
    for server in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "forkserver" in " ".join(server.cmdline()):
                found |= {p.pid for p in server.children()}
    return found


def call(pool: BoardPool, function: str, *arguments: object, deadline: float = 20.0) -> Outcome:
    calls = [arguments]
    return pool.map(f"{CALLS}:{function}", calls, deadline=deadline, stage="run")[0]


def stop(running: Running) -> None:
    """Freeze a board: all of its processes."""
    for pid in (running.pid, *running.children()):
        os.kill(pid, signal.SIGSTOP)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines that suit a board on this machine."""
    monkeypatch.setattr(board_worker, "OVERHEAD", 2.0)
    monkeypatch.setattr(board_pool, "POLL_INTERVAL", 0.5)


@pytest.fixture
def impatient(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Boards are given back, and missed, sooner than users want it."""
    monkeypatch.setattr(board_pool, "IDLE", 3.0)
    monkeypatch.setattr(board_pool, "NOTICE_AFTER", 4.0)


def test_a_call_runs_on_a_board(farm, within):
    within(90)
    _, tracker = farm.tracker()
    _, board = farm.board(KEY, tracker)
    with watched(tracker, options={"threads": 2}) as (pool, messages):
        assert call(pool, "where").value == str(board)
        assert call(pool, "threads").value == 2
        assert messages.lines[0] == f"boards '{KEY}': {board} joined; now 1"


def test_an_error_on_the_board_fails_the_call_and_keeps_the_session(farm, within):
    within(90)
    _, tracker = farm.tracker()
    farm.board(KEY, tracker)
    with watched(tracker) as (pool, _):
        before = call(pool, "session").value
        outcome = call(pool, "refuse")
        assert outcome.stage == "run"
        assert "no-such-library.so" in outcome.message
        assert call(pool, "session").value == before


@pytest.mark.parametrize(("what", "how"), [("abort", "SIGABRT"), ("sigill", "SIGILL")])
def test_a_crash_names_its_signal_and_keeps_the_board(farm, candidates, within, what, how):
    within(90)
    _, tracker = farm.tracker()
    farm.board(KEY, tracker)
    with watched(tracker) as (pool, messages):
        outcome = call(pool, "candidate", str(candidates[what]))
        assert (outcome.stage, how in outcome.message) == ("crash", True)
        assert call(pool, "candidate", str(candidates["sound"])).value == DOUBLED
        assert not any("lost" in line for line in messages.lines)


def test_an_endless_candidate_times_out_and_keeps_the_board(farm, candidates, within, quick):
    within(90)
    _, tracker = farm.tracker()
    farm.board(KEY, tracker)
    with watched(tracker) as (pool, messages):
        outcome = call(pool, "candidate", str(candidates["sleep"]), deadline=1.0)
        assert outcome == Outcome(stage="timeout", message="killed after 1 s (run)")
        assert call(pool, "candidate", str(candidates["sound"])).value == DOUBLED
        assert not any("lost" in line for line in messages.lines)


def test_work_of_a_killed_board_moves_to_another(farm, within):
    within(120)
    _, tracker = farm.tracker()
    first, second = farm.board(KEY, tracker), farm.board(KEY, tracker)
    servers = {str(address): running.pid for running, address in (first, second)}
    with watched(tracker) as (pool, messages):
        handles = [pool.submit(f"{CALLS}:nap", (0.3,), 10.0) for _ in range(40)]
        while {handle.result().value for handle in handles if handle.done()} != set(servers):
            time.sleep(0.05)
        first[0].kill()
        outcomes = pool.collect(handles, deadline=10.0, stage="run")
        assert all(outcome.ok for outcome in outcomes)
        assert {outcome.value for outcome in outcomes} == set(servers)
        messages.wait(f"the board '{KEY}' at {first[1]} is lost")
        messages.wait(f"{first[1]} left; now 1")


def test_a_call_that_loses_two_boards_fails(farm, within):
    within(120)
    _, tracker = farm.tracker()
    three = [farm.board(KEY, tracker) for _ in range(3)]
    servers = {str(address): running.pid for running, address in three}
    with watched(tracker) as (pool, messages):
        outcome = call(pool, "murder", servers)
        assert outcome.stage == "crash"
        assert outcome.message.startswith("it took a board down 2 times; the last: ")
        assert outcome.fault == "board"
        assert call(pool, "where").ok
        assert sum("is lost" in line for line in messages.lines) == 2
    assert [running.process.poll() is None for running, _ in three].count(True) == 1


def test_a_restarted_board_is_used_again(farm, within, impatient):
    within(120)
    _, tracker = farm.tracker()
    running, address = farm.board(KEY, tracker)
    with watched(tracker) as (pool, messages):
        handles = [pool.submit(f"{CALLS}:nap", (0.2,), 10.0) for _ in range(10)]
        time.sleep(1.0)
        running.kill()
        messages.wait(f"waiting for a board '{KEY}', up to 60 s: none is registered")
        farm.board(KEY, tracker, port=address.port)
        assert all(o.ok for o in pool.collect(handles, deadline=10.0, stage="run"))
        messages.wait(f"a board '{KEY}' is available again")


def test_work_of_a_frozen_board_moves_to_another_until_it_thaws(farm, within, quick):
    within(120)
    _, tracker = farm.tracker()
    frozen, address = farm.board(KEY, tracker)
    with watched(tracker) as (pool, messages):
        assert call(pool, "where").value == str(address)
        stop(frozen)
        handle = pool.submit(f"{CALLS}:where", (), 1.0)
        _, other = farm.board(KEY, tracker)
        assert pool.collect([handle], deadline=1.0, stage="run")[0].value == str(other)
        messages.wait(f"at {address} is lost (it does not answer)")
        for pid in (frozen.pid, *frozen.children()):
            os.kill(pid, signal.SIGCONT)
        naps = [(0.5,)] * 30
        found = pool.map(f"{CALLS}:nap", naps, deadline=5.0, stage="run")
        assert {outcome.value for outcome in found} == {str(address), str(other)}


def test_work_continues_without_a_tracker_and_boards_return_with_it(farm, within, impatient):
    within(120)
    process, tracker = farm.tracker()
    farm.board(KEY, tracker)
    with watched(tracker) as (pool, messages):
        assert call(pool, "where").ok
        process.kill()
        assert call(pool, "where").ok  # the session does not need the tracker
        time.sleep(board_pool.IDLE + 1.0)  # it is given back
        handle = pool.submit(f"{CALLS}:where", (), 5.0)
        messages.wait(f"waiting for a board '{KEY}', up to 60 s: no tracker answers at {tracker}")
        farm.tracker(tracker.port)
        assert pool.collect([handle], deadline=5.0, stage="run")[0].ok


def test_without_a_board_the_run_ends_after_the_wait(farm, within):
    within(90)
    _, tracker = farm.tracker()
    running, _ = farm.board(KEY, tracker)
    with watched(tracker, wait=3.0) as (pool, messages):
        assert call(pool, "where").ok
        running.end()
        began = time.monotonic()
        with pytest.raises(
            NoBoard, match=f"no board '{KEY}' was available for 3 s: none is registered"
        ):
            call(pool, "where")
        assert time.monotonic() - began < 20
        messages.wait(f"waiting for a board '{KEY}', up to 3 s")


def test_the_pool_waits_for_boards_in_use(farm, within):
    within(90)
    _, tracker = farm.tracker()
    _, board = farm.board(KEY, tracker)
    with (
        board_session(tracker, KEY, 10.0),
        watched(tracker, wait=2.0) as (pool, _),
        pytest.raises(NoBoard, match="all of them are in use"),
    ):
        call(pool, "where")
    with watched(tracker) as (pool, _):
        assert call(pool, "where").value == str(board)


def test_a_cancelled_request_takes_no_board(farm, within):
    within(90)
    _, tracker = farm.tracker()
    farm.board(KEY, tracker)
    with board_session(tracker, KEY, 10.0):
        for _ in range(3):
            with watched(tracker) as (pool, _):
                pool.submit(f"{CALLS}:where", (), 5.0)
                time.sleep(1.0)
    began = time.monotonic()
    with board_session(tracker, KEY, 10.0):
        assert time.monotonic() - began < 5.0


def test_a_board_that_joins_is_used(farm, within, quick):
    within(90)
    _, tracker = farm.tracker()
    _, first = farm.board(KEY, tracker)
    with watched(tracker) as (pool, messages):
        handles = [pool.submit(f"{CALLS}:nap", (0.3,), 10.0) for _ in range(40)]
        _, second = farm.board(KEY, tracker)
        found = {o.value for o in pool.collect(handles, deadline=10.0, stage="run")}
        assert found == {str(first), str(second)}
        messages.wait(f"{second} joined; now 2")


def test_an_unknown_key_error_lists_known_keys(farm, within):
    within(60)
    _, tracker = farm.tracker()
    with pytest.raises(Unreachable, match=f"no board '{KEY}': it has none"):
        BoardPool(KEY, tracker)
    farm.board("rk3399", tracker)
    with pytest.raises(Unreachable, match=f"has no board '{KEY}': it has rk3399"):
        BoardPool(KEY, tracker)


def test_a_missing_tracker_error_names_the_remedy(within):
    within(30)
    with pytest.raises(Unreachable, match="no tracker answers at .*tvmtune tracker"):
        BoardPool(KEY, Address("127.0.0.1", free_port()))


def test_closing_ends_running_calls(farm, candidates, within):
    within(90)
    _, tracker = farm.tracker()
    farm.board(KEY, tracker)
    began = time.monotonic()
    with watched(tracker) as (pool, _):
        handle = pool.submit(f"{CALLS}:candidate", (str(candidates["sleep"]),), 600.0)
        time.sleep(3.0)
        assert not handle.done()
        began = time.monotonic()
    assert time.monotonic() - began < 5.0
    with board_session(tracker, KEY, 20.0):  # the board has noticed
        pass


def test_an_interrupt_drops_waiting_calls(farm, within):
    within(90)
    _, tracker = farm.tracker()
    farm.board(KEY, tracker)

    def interrupt(index: int, outcome: Outcome) -> None:
        raise KeyboardInterrupt

    with watched(tracker) as (pool, _), pytest.raises(KeyboardInterrupt):
        calls = [(0.1,), (30.0,), (600.0,)]
        pool.map(f"{CALLS}:nap", calls, deadline=900, stage="run", on_result=interrupt)


@pytest.mark.parametrize("count", [2, pytest.param(8, marks=pytest.mark.soak)])
def test_boards_share_the_work(farm, within, count):
    """Naps take no CPU time: each board makes its share of them."""
    within(240)
    _, tracker = farm.tracker()
    for _ in range(count):
        farm.board(KEY, tracker)
    with watched(tracker) as (pool, _):
        pool.map(f"{CALLS}:where", [()] * count * 2, deadline=30, stage="run")
        found = pool.map(f"{CALLS}:nap", [(0.25,)] * (8 * count), deadline=30, stage="run")
    shares = Counter(outcome.value for outcome in found)
    assert len(shares) == count
    assert max(shares.values()) <= 10  # of 8 each
    assert min(shares.values()) >= 5


# TVM's own tracker and servers.


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


def test_boards_of_tvms_own_server_work(farm, candidates, within, quick):
    within(90)
    with stock(farm, 1) as (tracker, addresses), watched(tracker) as (pool, _):
        assert call(pool, "where").value == str(addresses[0])
        outcome = call(pool, "candidate", str(candidates["sleep"]), deadline=1.0)
        assert outcome == Outcome(stage="timeout", message="killed after 1 s (run)")
        assert call(pool, "candidate", str(candidates["sound"])).value == DOUBLED
        assert call(pool, "refuse").stage == "run"


def test_a_crash_takes_down_boards_of_tvms_own_server(farm, candidates, within, quick):
    within(120)
    with stock(farm, 2) as (tracker, _), watched(tracker, wait=3.0) as (pool, messages):
        outcome = call(pool, "candidate", str(candidates["abort"]), deadline=1.0)
        assert outcome.stage == "crash"
        assert "took a board down 2 times" in outcome.message
        with pytest.raises(NoBoard, match="none is registered"):
            call(pool, "where")
        assert sum("is lost" in line for line in messages.lines) == 2


def test_a_tvm_server_with_too_few_threads_is_unusable(farm, within, quick):
    within(60)
    options = {"threads": 2}
    with (
        stock(farm, 1) as (tracker, _),
        watched(tracker, wait=3.0, options=options) as (pool, messages),
    ):
        with pytest.raises(NoBoard, match="computes with 1 threads there instead of 2"):
            call(pool, "where")
        assert sum(line.startswith(f"the board '{KEY}' at") for line in messages.lines) == 1
