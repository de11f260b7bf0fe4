"""A farm with a secret serves those who know it, and nobody else."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from cli.commands import complaint, tvmtune
from remote import served
from tvmtune.errors import UsageError
from tvmtune.remote import access, protocol
from tvmtune.remote.protocol import Address, Tracker, Unreachable

SECRET, OTHER = b"correct horse battery", b"incorrect horse battery"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path / "farm.secret", SECRET)


def written(path: Path, secret: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(secret + b"\n")
    path.chmod(mode)
    return path


def exchange(client: access.Caller, gate: access.Gate, step: int = 1000) -> bytes:
    """What the gate says last, if it receives ``step`` bytes at a time."""

    def feed(data: bytes) -> bytes:
        parts = [data[at : at + step] for at in range(0, len(data), step)]
        return b"".join(gate.receive(part) for part in parts)

    return feed(client.reply(feed(client.hello())))


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_who_knows_the_secret_may_pass(step: int) -> None:
    gate = access.Gate(SECRET)
    assert exchange(access.Caller(SECRET), gate, step) == protocol.integer(access.HELLO)
    assert gate.is_open and not gate.refused and not gate.rest


def test_what_follows_the_proof_is_kept() -> None:
    gate, caller = access.Gate(SECRET), access.Caller(SECRET)
    gate.receive(caller.reply(gate.receive(caller.hello())) + b"more")
    assert gate.is_open and gate.rest == b"more"


def test_neither_side_passes_with_another_secret() -> None:
    gate = access.Gate(SECRET)
    with pytest.raises(access.WrongSecret):
        exchange(access.Caller(OTHER), gate)
    answer = gate.receive(bytes(32))  # who does not care who the other side is
    assert gate.refused and not gate.is_open
    assert answer == protocol.integer(access.SECRET_WRONG)


def test_a_proof_holds_once() -> None:
    caller, gate = access.Caller(SECRET), access.Gate(SECRET)
    heard = [caller.hello()]
    heard.append(caller.reply(gate.receive(heard[0])))
    gate.receive(heard[1])
    assert gate.is_open
    again = access.Gate(SECRET)
    for message in heard:
        again.receive(message)
    assert again.refused and not again.is_open


def test_a_client_without_a_secret_is_told() -> None:
    gate = access.Gate(SECRET)
    said = gate.receive(protocol.integer(protocol.TRACKER_MAGIC))
    assert said == protocol.integer(access.SECRET_NEEDED)
    assert gate.refused and not gate.is_open


def test_a_secret_is_read_from_a_file_or_the_environment(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert access.secret() is None
    monkeypatch.setenv(access.SECRET, OTHER.decode())
    assert access.secret() == OTHER
    monkeypatch.setenv(access.SECRET_FILE, str(file))
    assert access.secret() == SECRET
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        access.read(tmp_path / "none")
    with pytest.raises(
        UsageError, match="too short: it needs at least 16 characters; make one with"
    ):
        access.read(written(tmp_path / "short", b"secret"))
    with pytest.raises(UsageError, match="every user of this machine can read .* chmod o-r"):
        access.read(written(tmp_path / "open", SECRET, 0o644))
    monkeypatch.delenv(access.SECRET_FILE)
    monkeypatch.setenv(access.SECRET, "")
    with pytest.raises(UsageError, match=f"the secret in {access.SECRET} is too short"):
        access.secret()


@pytest.mark.parametrize("words", [["tracker"], ["serve", "--key", "b"]])
def test_other_machines_are_served_with_a_secret_only(words: list[str], tmp_path: Path) -> None:
    done = tvmtune(*words, "--host", "0.0.0.0", cwd=tmp_path, timeout=served.LIMIT)
    assert done.returncode == 2
    message = complaint(done.stderr)
    for remedy in ("--secret-file FILE", "SSH", "--insecure"):
        assert remedy in message


@pytest.mark.parametrize("words", [["tracker"], ["serve", "--key", "b"], ["devices"]])
def test_a_wrong_secret_file_is_a_one_line_error(words: list[str], tmp_path: Path) -> None:
    done = tvmtune(*words, "--secret-file", "none", cwd=tmp_path, timeout=served.LIMIT)
    assert done.returncode == 2
    assert "none cannot be read: No such file" in complaint(done.stderr)


@pytest.mark.slow
def test_a_farm_with_a_secret(farm: served.Farm, file: Path, tmp_path: Path) -> None:
    use = ("--secret-file", str(file))
    open_to_all, tracker = farm.start_tracker("0.0.0.0", *use)
    assert any("warning: at 0.0.0.0, everyone who knows the secret" in x for x in open_to_all.lines)
    _, board = farm.board("b", tracker, *use)
    where = ("devices", "--probe", "--json", "--tracker", str(tracker))

    done = tvmtune(*where, *use, cwd=tmp_path, timeout=served.LIMIT)
    assert done.returncode == 0, done.stderr
    (probe,) = json.loads(done.stdout)["probes"]
    assert probe["address"] == str(board) and probe["reachable"]
    by_text = {access.SECRET: SECRET.decode()}
    assert tvmtune(*where, cwd=tmp_path, env=by_text, timeout=served.LIMIT).returncode == 0

    done = tvmtune(*where, cwd=tmp_path, timeout=served.LIMIT)
    assert done.returncode == 1
    assert f"at {tracker} serves only clients that know its secret" in complaint(done.stderr)
    other = written(tmp_path / "other", OTHER)
    done = tvmtune(*where, "--secret-file", other, cwd=tmp_path, timeout=served.LIMIT)
    assert done.returncode == 1
    assert f"at {tracker} has another secret" in complaint(done.stderr)

    stranger = farm.start(farm.serving("b", tracker))
    stranger.expect("serves only clients that know its secret: give it with .*: trying again")
    stranger = farm.start(farm.serving("b", tracker, "--secret-file", str(other)))
    stranger.expect("has another secret than the one given: trying again")
    with socket.create_connection((tracker.host, tracker.port), 30) as line:
        line.sendall(protocol.integer(protocol.TRACKER_MAGIC) + protocol.pack([protocol.SUMMARY]))
        line.settimeout(30)
        heard = b""
        while part := line.recv(100):
            heard += part
        assert heard == protocol.integer(access.SECRET_NEEDED), "and no summary"


@pytest.mark.slow
def test_a_board_asks_for_a_proof_for_its_match_key(
    farm: served.Farm, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads the tracker's traffic knows match keys."""
    use = ("--secret-file", str(file))
    _, tracker = farm.tracker(None, *use)
    _, board = farm.board("b", tracker, *use)
    monkeypatch.setenv(access.SECRET_FILE, str(file))
    with Tracker(tracker) as connection:
        granted = connection.request("b", 30.0)
        assert granted is not None and granted[0] == board
        match, _, proof = granted[1].rpartition(":")
        assert greet(board, match) == protocol.MISMATCH
        assert greet(board, f"{match}:{'0' * len(proof)}") == protocol.MISMATCH
        assert greet(board, f"{match}:{proof}") == protocol.ACCEPTED
        assert greet(board, f"{match}:{proof}") == protocol.MISMATCH, "once"


def greet(board: Address, key: str) -> int:
    data = f"client:{key}".encode()
    with socket.create_connection((board.host, board.port), 30) as line:
        line.sendall(protocol.integer(protocol.RPC_MAGIC) + protocol.integer(len(data)) + data)
        line.settimeout(30)
        return protocol.read_integer(line.recv(4))


@pytest.mark.slow
def test_a_tracker_without_a_secret_is_not_used_with_one(
    farm: served.Farm, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, tracker = farm.tracker()
    monkeypatch.setenv(access.SECRET_FILE, str(file))
    with pytest.raises(Unreachable, match=f"at {tracker} knows no secret, or is none of tvmtune's"):
        Tracker(tracker)
    running = farm.start(farm.serving("b", tracker, "--secret-file", str(file)))
    running.expect("knows no secret, or is none of tvmtune's.*: trying again")
    assert plain.lines == [f"the tracker listens at {tracker}\n"], "no exception of TVM's"
