"""Registration of boards with trackers, and recovery after failures."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import processes
from cli.commands import command
from remote import served
from remote.test_server import serves
from tvmtune.remote import protocol
from tvmtune.remote.client.boards import queues
from tvmtune.remote.protocol import Address, Tracker, Unreachable


def totals(tracker: Address) -> dict[str, tuple[int, int]]:
    """Boards and free ones by key."""
    with Tracker(tracker) as line:
        return {row.key: (row.total, row.free) for row in queues(line)}


def becomes(tracker: Address, wanted: dict[str, tuple[int, int]], within: float = 60.0) -> bool:
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            if totals(tracker) == wanted:
                return True
        except Unreachable:
            pass
        time.sleep(0.1)
    return totals(tracker) == wanted


@pytest.mark.slow
def test_each_request_is_granted_another_board(
    farm: served.Farm, candidates: dict[str, Path]
) -> None:
    _, tracker = farm.tracker()
    farm.board("b", tracker)
    farm.board("b", tracker)
    assert becomes(tracker, {"b": (2, 2)})
    with Tracker(tracker) as line:
        first = line.request("b", 10)
        second = line.request("b", 10)
        assert first and second and first[0] != second[0]
        assert line.request("b", 0.5) is None
    # no client connected to the two, so they are offered again
    assert becomes(tracker, {"b": (2, 2)})
    assert serves(tracker, candidates["sound"], tracked=True)


@pytest.mark.slow
def test_a_board_is_offered_again_when_its_client_leaves(
    farm: served.Farm, candidates: dict[str, Path]
) -> None:
    _, tracker = farm.tracker()
    farm.board("b", tracker)
    code = """
for _ in range(10):
    doubles(connect(), sys.argv[1])
"""
    done = served.client(tracker, "b", code, candidates["sound"], tracked=True)
    assert done.stdout == 10 * "doubled\n", done.stderr
    assert becomes(tracker, {"b": (1, 1)})


@pytest.mark.slow
def test_a_board_stays_registered_after_a_crash(
    farm: served.Farm, candidates: dict[str, Path]
) -> None:
    _, tracker = farm.tracker()
    farm.board("b", tracker)
    code = "doubles(connect(), sys.argv[1])"
    for _ in range(2):
        crashed = served.client(tracker, "b", code, candidates["abort"], tracked=True)
        assert "the board's process died: SIGABRT" in crashed.stderr
    assert serves(tracker, candidates["sound"], tracked=True)


@pytest.mark.slow
def test_a_dead_tracker_is_restarted_and_boards_register_again(
    farm: served.Farm, candidates: dict[str, Path]
) -> None:
    tracker, address = farm.tracker()
    board, _ = farm.board("b", address)
    (child,) = tracker.children("tvmtune.remote.tracker")
    os.kill(child, signal.SIGKILL)
    tracker.expect("restarting it")
    board.expect("registered")
    assert becomes(address, {"b": (1, 1)})
    assert serves(address, candidates["sound"], tracked=True)


@pytest.mark.slow
def test_a_session_survives_the_tracker(farm: served.Farm, candidates: dict[str, Path]) -> None:
    tracker, address = farm.tracker()
    board, _ = farm.board("b", address)
    code = """
remote = connect()
print("here", flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.1)
doubles(remote, sys.argv[1])
"""
    go = farm.folder / "go"
    with served.busy(address, "b", code, candidates["sound"], go, tracked=True) as client:
        assert client.stdout and client.stdout.readline() == "here\n"
        tracker.kill()
        board.expect("no tracker at")
        farm.tracker(address.port)
        board.expect("registered")
        assert becomes(address, {"b": (1, 0)})
        go.touch()
        assert client.communicate(timeout=served.LIMIT)[0] == "doubled\n"
    assert becomes(address, {"b": (1, 1)})


@pytest.mark.slow
def test_a_hanging_tracker_is_restarted(farm: served.Farm) -> None:
    tracker, address = farm.tracker()
    (child,) = tracker.children("tvmtune.remote.tracker")
    os.kill(child, signal.SIGSTOP)
    tracker.expect("restarting it")
    assert becomes(address, {})


@pytest.mark.slow
def test_a_board_waits_for_a_tracker_and_follows_its_successor(farm: served.Farm) -> None:
    port = served.free_port()
    where = ["--tracker", f"127.0.0.1:{port}"]
    board, _ = farm.board("b", None, *where)
    board.expect(f"no tracker at 127.0.0.1:{port} .*refused.*: trying again")
    first, address = farm.tracker(port)
    board.expect("registered")
    first.kill()
    assert not processes.after_a_while(first.mark)
    board.expect("no tracker at")
    farm.tracker(port)
    board.expect("registered")
    assert becomes(address, {"b": (1, 1)})


@pytest.mark.slow
def test_a_server_that_is_not_a_tracker_is_reported(farm: served.Farm) -> None:
    _, other = farm.board("other")
    board, _ = farm.board("b", None, "--tracker", str(other))
    board.expect(f"what answers at {other} is not a tracker: trying again")
    nowhere, _ = farm.board("b", None, "--tracker", "no-such-host.invalid:1")
    nowhere.expect(r"no tracker at no-such-host.invalid:1 \(.*\): trying again")


@pytest.mark.slow
def test_a_board_unreachable_for_clients_warns(farm: served.Farm) -> None:
    words = command("serve", "--key", "b", "--port", served.free_port())
    running = farm.start([*words, "--tracker", "192.0.2.1:9190"])
    running.expect("warning: the tracker at 192.0.2.1:9190 will send clients to this machine's")
    running.expect("serving ")


@pytest.mark.slow
def test_garbage_does_not_stop_the_tracker(farm: served.Farm) -> None:
    running, tracker = farm.tracker()
    strangers = [b"", b"GET / HTTP/1.1\r\n\r\n", protocol.integer(protocol.TRACKER_MAGIC + 1)]
    sent = [
        protocol.integer(2**31 - 1),
        protocol.integer(4) + b"\xff\xfe\xfd\xfc",
        protocol.integer(3) + b"[9]",
        protocol.pack([protocol.REQUEST, "nobody", "", 1]),
        protocol.pack([protocol.PUT, "k", "not a pair", None]),
        protocol.pack([protocol.UPDATE_INFO, {"key": "server:odd", "addr": ["h", "no port"]}]),
    ]
    lines = [socket.create_connection((tracker.host, tracker.port), 10) for _ in strangers + sent]
    for line, words in zip(lines, strangers, strict=False):
        line.sendall(words)
    for line, words in zip(lines[len(strangers) :], sent, strict=True):
        line.sendall(protocol.integer(protocol.TRACKER_MAGIC))
        assert protocol.receive(line, 4, time.monotonic() + served.LIMIT) == protocol.integer(
            protocol.TRACKER_MAGIC
        )
        line.sendall(words)
    assert becomes(tracker, {"nobody": (0, 0)})
    (child,) = running.children("tvmtune.remote.tracker")
    for line in lines:
        line.close()
    assert totals(tracker) is not None
    assert running.children("tvmtune.remote.tracker") == [child]


@pytest.mark.slow
def test_a_stock_server_registers_with_it(farm: served.Farm, candidates: dict[str, Path]) -> None:
    _, tracker = farm.tracker()
    words = [*(sys.executable, "-m", "tvm.exec.rpc_server", "--host", "127.0.0.1")]
    words += [*_ports(served.free_port()), "--tracker", str(tracker), "--key", "stock"]
    # it leaves a process behind, so it gets its own process group
    server = subprocess.Popen(words, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        assert becomes(tracker, {"stock": (1, 1)})
        assert serves(tracker, candidates["sound"], "stock", tracked=True)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(served.LIMIT)


@pytest.mark.slow
def test_a_board_registers_with_a_stock_tracker(
    farm: served.Farm, candidates: dict[str, Path]
) -> None:
    port = served.free_port()
    words = [*(sys.executable, "-m", "tvm.exec.rpc_tracker", "--host", "127.0.0.1")]
    words += _ports(port)
    stock = subprocess.Popen(words, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        address = Address("127.0.0.1", port)
        assert becomes(address, {})
        board, _ = farm.board("b", None, "--tracker", str(address))
        board.expect("registered")
        assert becomes(address, {"b": (1, 1)})
        for _ in range(2):
            assert serves(address, candidates["sound"], tracked=True)
    finally:
        os.killpg(stock.pid, signal.SIGKILL)
        stock.wait(served.LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_tracker_leaves_no_process_behind(farm: served.Farm, number: int) -> None:
    tracker, address = farm.tracker()
    assert tracker.end(number) in (0, -signal.SIGKILL)
    farm.tracker(address.port)


def _ports(port: int) -> list[str]:
    """For TVM's commands, which look for a free port in a range."""
    return ["--port", str(port), "--port-end", str(port + 1)]
