"""Addresses and keys, and answers from strangers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tvmtune.errors import UsageError
from tvmtune.remote import access, protocol
from tvmtune.remote.client.boards import servers
from tvmtune.remote.protocol import Address, Tracker, Unreachable, check_key, is_alive, split_remote


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("rpi", Address("rpi", 9190)),
        ("10.0.0.1:9000", Address("10.0.0.1", 9000)),
        ("[::1]:9000", Address("::1", 9000)),
        ("[::1]", Address("::1", 9190)),
        ("fe80::1", Address("fe80::1", 9190)),
    ],
)
def test_parse_addresses(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize("text", ["", ":9190", "host:", "host:0", "host:65536", "host:x", "[]"])
def test_invalid_addresses_are_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="is not an address: give HOST:PORT"):
        Address.parse(text)


def test_only_loopback_addresses_are_local() -> None:
    assert all(Address(host, 1).is_local for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"))
    assert not any(Address(host, 1).is_local for host in ("0.0.0.0", "::", "10.0.0.1", "127.board"))


@pytest.mark.parametrize("key", ["", "a b", "a:b", "a@b", "a\n", "a\x00", "x" * 1000])
def test_invalid_keys_are_rejected(key: str) -> None:
    with pytest.raises(UsageError, match="cannot be the key of a board"):
        check_key(key)


def test_a_remote_is_a_key_and_an_optional_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TVM_TRACKER_HOST", "TVM_TRACKER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert split_remote("pi4") == ("pi4", Address("127.0.0.1", 9190))
    assert split_remote("pi4@farm:9000") == ("pi4", Address("farm", 9000))
    with pytest.raises(UsageError, match="'10.0.0.1:9090' cannot be the key.*: give KEY, KEY@HOST"):
        split_remote("10.0.0.1:9090")
    assert split_remote("größe") == ("größe", Address("127.0.0.1", 9190))
    monkeypatch.setenv("TVM_TRACKER_HOST", "farm")
    monkeypatch.setenv("TVM_TRACKER_PORT", "9191")
    assert split_remote("pi4") == ("pi4", Address("farm", 9191))


@contextmanager
def stranger(says: bytes, slowly: bytes = b"") -> Iterator[Address]:
    """Something that says this to whoever connects, then more of it byte by byte, and stays."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held = []
        done = threading.Event()

        def serve() -> None:
            connection, _ = listener.accept()
            held.append(connection)
            connection.sendall(says)
            with suppress(OSError):
                for byte in slowly:
                    connection.sendall(bytes([byte]))
                    if done.wait(PAUSE):
                        return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Address("127.0.0.1", listener.getsockname()[1])
        done.set()
        thread.join(10)
        for connection in held:
            connection.close()


MAGIC = protocol.integer(protocol.TRACKER_MAGIC)


@pytest.mark.parametrize(
    "says",
    [
        b"",
        b"HTTP/1.1 400",
        MAGIC,
        MAGIC + protocol.integer(2**31 - 1),
        MAGIC + protocol.integer(-1),
        MAGIC + protocol.integer(2) + b"\xff\xff",
        MAGIC + protocol.pack({"not": "an answer"}),
        MAGIC + protocol.pack([0, 5]),
        MAGIC + protocol.pack([0, {"queue_info": 7}])[:9],
    ],
)
def test_garbage_from_a_tracker_is_an_error(says: bytes) -> None:
    with stranger(says) as address, pytest.raises(Unreachable, match=str(address)):
        Tracker(address, patience=0.5).summary()


PAUSE = 0.3
"""Seconds between two bytes: less than the patience below, which is for all of them."""


@pytest.mark.slow
def test_a_deadline_is_for_all_bytes_of_an_answer() -> None:
    """These would be right answers, if they came in time."""
    answer = protocol.pack([0, {}])
    with stranger(b"", slowly=MAGIC + answer) as tracker, pytest.raises(Unreachable):
        Tracker(tracker, patience=0.8)
    with stranger(MAGIC, slowly=answer) as tracker:
        connection = Tracker(tracker, patience=2.0)
        with pytest.raises(Unreachable, match="timed out"):
            connection.summary()
    with stranger(MAGIC, slowly=answer) as tracker:
        connection = Tracker(tracker, patience=2.0)
        with pytest.raises(Unreachable, match="timed out"):
            connection.request("key", wait=60.0)
    with stranger(b"", slowly=protocol.integer(protocol.MISMATCH)) as server:
        assert not is_alive(server, patience=0.8)


SECRET = "correct horse battery"


@pytest.mark.parametrize("secret", ["", SECRET])
def test_a_tracker_that_hangs_is_reported_as_such(
    secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if secret:
        monkeypatch.setenv(access.SECRET, secret)
    with (
        stranger(b"") as address,
        pytest.raises(
            Unreachable,
            match=f"at {address} is not a tracker, or hangs: timed out after 0.5 s. Restart it",
        ) as caught,
    ):
        Tracker(address, patience=0.5)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("leaves", "message"),
    [
        (False, "the tracker at .* does not answer: timed out"),
        (True, "is gone: the connection was closed"),
    ],
)
def test_a_tracker_that_fails_after_its_proof_has_the_secret(
    leaves: bool, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(access.SECRET, SECRET)
    gate = access.Gate(SECRET.encode())
    held = []

    def prove() -> None:
        line, _ = listener.accept()
        held.append(line)
        line.sendall(gate.receive(line.recv(100)))
        line.recv(100)
        if leaves:
            line.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=prove, daemon=True)
        thread.start()
        with pytest.raises(Unreachable, match=message) as caught:
            Tracker(Address("127.0.0.1", listener.getsockname()[1]), patience=2.0)
        assert "secret" not in str(caught.value)
        thread.join(10)
        held[0].close()


def test_a_secret_is_read_before_connecting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(access.SECRET_FILE, str(tmp_path / "none"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with pytest.raises(UsageError, match="none cannot be read: No such file"):
            Tracker(Address("127.0.0.1", listener.getsockname()[1]))
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_is_alive_is_true_for_servers_only() -> None:
    with stranger(b"") as silent:
        assert not is_alive(silent, patience=0.5)
    with stranger(b"HTTP/1.1 400") as other:
        assert not is_alive(other, patience=0.5)
    with stranger(protocol.integer(protocol.MISMATCH)) as server:
        assert is_alive(server, patience=5)
    assert not is_alive(server, patience=0.5)


@pytest.mark.parametrize(
    "answer",
    [
        {"queue_info": {"pi": 3}},
        {"queue_info": {"pi": {"free": "one"}}},
        {"queue_info": {"pi": {"free": 1e400}}},
        {"server_info": 7},
    ],
)
def test_a_summary_of_other_types_is_an_error(answer: object) -> None:
    with (
        stranger(MAGIC + protocol.pack([0, answer])) as address,
        pytest.raises(Unreachable, match="is not a tracker"),
        Tracker(address, patience=5) as tracker,
    ):
        tracker.summary()


def test_entries_of_servers_that_are_no_objects_are_left_out() -> None:
    good = {"key": "server:pi", "addr": ["10.0.0.1", 9090]}
    summary = {"server_info": [3, None, "x", {"key": 1}, {"key": "server:pi", "addr": 3}, good]}
    assert servers(summary) == {"pi": [Address("10.0.0.1", 9090)]}


@pytest.mark.parametrize("grant", [3, [], ["h", "port", "k"], ["h", 1e400, "k"], ["h", None, "k"]])
def test_a_grant_of_other_types_is_an_error(grant: object) -> None:
    with (
        stranger(MAGIC + protocol.pack([0, grant])) as address,
        pytest.raises(Unreachable, match="is not a tracker"),
        Tracker(address, patience=5) as tracker,
    ):
        tracker.request("pi", 5.0)


def test_a_deep_answer_is_an_error() -> None:
    text = b"[" * 100_000 + b"]" * 100_000
    with (
        stranger(MAGIC + protocol.integer(len(text)) + text) as address,
        pytest.raises(Unreachable, match="it nests too deeply"),
        Tracker(address, patience=5) as tracker,
    ):
        tracker.summary()
