"""``--remote ssh://``: tunnels through a real sshd on this machine."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cli.commands import complaint, tvmtune
from remote import served
from tvmtune.errors import UsageError
from tvmtune.remote import access
from tvmtune.remote.client import tunnel
from tvmtune.remote.client.lease import BoardLease
from tvmtune.remote.client.tunnel import Target
from tvmtune.remote.protocol import Address, Tracker, Unreachable

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
needs_sshd = pytest.mark.skipif(
    SSHD is None or shutil.which("ssh-keygen") is None or shutil.which("ssh") is None,
    reason="there is no sshd here: apt-get install openssh-server",
)


@pytest.fixture
def sshd(farm: served.Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The port of an SSH server that admits this user by a key; ``ssh`` knows both."""
    assert SSHD is not None
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True
        )
    if os.geteuid() == 0:  # it separates privileges, and wants an empty folder for that
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    port = served.free_port()
    (tmp_path / "sshd_config").write_text(
        f"HostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/user.pub\nStrictModes no\n"
        "PermitRootLogin yes\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        f"UsePAM no\nPidFile none\nListenAddress 127.0.0.1:{port}\n"
    )
    config = tmp_path / "ssh_config"
    config.write_text(
        f"Host board Attic-1\n  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n"
        f"Host *\n  IdentityFile {tmp_path}/user\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {tmp_path}/known\n  StrictHostKeyChecking accept-new\n"
    )
    running = farm.start([SSHD, "-D", "-e", "-f", str(tmp_path / "sshd_config")])
    running.expect("Server listening")
    monkeypatch.setenv(tunnel.SSH, f"ssh -F {config}")
    return port


def tunnels() -> list[psutil.Process]:
    """Processes of ``ssh`` that this test's configuration started."""
    config = os.environ[tunnel.SSH].split()[-1]
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if config in words and "-N" in words:
            found.append(process)
    return found


def wait_until_gone(within: float = served.LIMIT) -> None:
    end = time.monotonic() + within
    while left := tunnels():
        assert time.monotonic() < end, left
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("ssh://board", Target("board")),
        ("ssh://pi@board:2222", Target("board", "pi", 2222)),
        ("ssh://pi@board/9091", Target("board", "pi", None, 9091)),
        ("ssh://[::1]:22/9092", Target("::1", "", 22, 9092)),
        ("ssh://Pi@RK3399:22/9092", Target("RK3399", "Pi", 22, 9092)),
    ],
)
def test_addresses(url: str, target: Target) -> None:
    assert Target.parse(url) == target


@pytest.mark.parametrize(
    "url",
    [
        *("ssh://", "ssh://board:x", "ssh://board:99999", "ssh://pi:secret@board", "ssh://board/x"),
        *("ssh://-oProxyCommand=id", "ssh://-l@board", "ssh://board/0", "ssh://a b", "ssh://b?x"),
        *("ssh://@", "ssh://pi@", "ssh://:22", "ssh://[::1", "ssh://[::1]x"),
    ],
)
def test_invalid_addresses_are_rejected(url: str) -> None:
    with pytest.raises(UsageError, match="is not ssh://"):
        Target.parse(url)


@pytest.mark.slow
def test_a_tracker_of_its_own_serves_one_client_after_the_other(
    farm: served.Farm, tmp_path: Path
) -> None:
    """A server without a tracker is its own."""
    _, board = farm.board("b")
    with BoardLease(f"b@{board}") as first:
        assert first.address == board
        with Tracker(board) as connection:
            assert connection.summary()["queue_info"] == {"b": {"free": 0, "pending": 0}}
            assert connection.request("b", 0.5) is None
    with BoardLease(f"b@{board}") as second:
        assert second.address == board
    code = "doubles(connect(), sys.argv[1])"
    library = served.build(tmp_path, {"sound": served.WORK})["sound"]
    for tracked in (True, False):  # TVM's own clients, of the tracker and of the server
        done = served.client(board, "b", code, library, tracked=tracked)
        assert done.stdout == "doubled\n", done.stderr
    _, tracker = farm.tracker()
    _, elsewhere = farm.board("b", tracker)
    with pytest.raises(Unreachable, match=f"is registered with the tracker at {tracker}"):
        BoardLease(f"b@{elsewhere}")


@pytest.mark.slow
def test_a_granted_board_that_nobody_comes_for_is_granted_again(farm: served.Farm) -> None:
    _, board = farm.board("b")
    with Tracker(board) as connection:
        assert connection.request("b", 30.0) is not None
    with Tracker(board) as connection:
        assert connection.request("b", served.LIMIT) is not None


@pytest.mark.slow
@needs_sshd
def test_a_board_behind_ssh(farm: served.Farm, sshd: int, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("correct horse battery")
    secret.chmod(0o600)
    use = ("--secret-file", str(secret))
    _, board = farm.board("b", None, *use)
    remote = f"ssh://board/{board.port}"
    words = ("run", make_library(tmp_path), "--remote", remote)
    done = tvmtune(*words, *use, cwd=tmp_path, timeout=served.LIMIT)
    assert done.returncode == 0, done.stderr
    wait_until_gone()
    done = tvmtune(*words, cwd=tmp_path, timeout=served.LIMIT)
    assert done.returncode == 1
    needed = complaint(done.stderr)
    assert f"the board at {remote} serves only clients that know its secret" in needed
    assert "no tvmtune serve" not in needed
    other = tmp_path / "other"
    other.write_text("incorrect horse battery")
    other.chmod(0o600)
    done = tvmtune(*words, "--secret-file", other, cwd=tmp_path, timeout=served.LIMIT)
    assert done.returncode == 1
    assert f"the board at {remote} has another secret" in complaint(done.stderr)
    done = tvmtune(*words, "--tracker", "127.0.0.1:1", cwd=tmp_path, timeout=served.LIMIT)
    assert done.returncode == 2
    assert "is a board without a tracker: omit --tracker" in complaint(done.stderr)
    wait_until_gone()


@pytest.mark.slow
@needs_sshd
def test_ssh_ends_with_its_process_even_if_that_is_killed(farm: served.Farm, sshd: int) -> None:
    _, board = farm.board("b")
    code = (
        "import sys, time\nfrom tvmtune.remote.client import tunnel\n"
        "with tunnel.opened(sys.argv[1]) as remote:\n"
        "    print(remote, flush=True)\n    time.sleep(3600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, f"ssh://board/{board.port}"], stdout=subprocess.PIPE, text=True
    ) as client:
        try:
            assert client.stdout is not None
            key, _, address = client.stdout.readline().strip().partition("@")
            assert key == "b"
            assert len(tunnels()) == 1
            with Tracker(Address.parse(address)) as connection:
                assert connection.summary()["server_info"][0]["addr"][1] != board.port
        finally:
            client.send_signal(signal.SIGKILL)
    wait_until_gone()


@pytest.mark.slow
@needs_sshd
def test_failures_are_one_message(
    farm: served.Farm, sshd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = served.free_port()
    with (
        pytest.raises(Unreachable, match=f"no tvmtune serve on port {port}: .*tvmtune serve --key"),
        tunnel.opened(f"ssh://board/{port}"),
    ):
        pass
    with (
        pytest.raises(Unreachable, match="no SSH connection to 127.0.0.1: .*refused"),
        tunnel.opened(f"ssh://127.0.0.1:{port}"),
    ):
        pass
    (tmp_path / "user.pub").write_text("")
    with (
        pytest.raises(Unreachable, match="no SSH connection to board: .*Permission denied"),
        tunnel.opened("ssh://board"),
    ):
        pass
    monkeypatch.setenv(tunnel.SSH, "no-such-ssh")
    with (
        pytest.raises(Unreachable, match="no-such-ssh: No such file"),
        tunnel.opened("ssh://board"),
    ):
        pass


@pytest.mark.slow
@needs_sshd
def test_what_the_board_answers_is_the_cause(
    farm: served.Farm, sshd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tracker = farm.tracker()
    _, board = farm.board("b", tracker)
    remote = f"ssh://Attic-1/{board.port}"  # names of hosts in ssh's configuration have a case
    with (
        pytest.raises(
            Unreachable, match=f"at {remote}: .*registered with the tracker at {tracker}"
        ),
        tunnel.opened(remote),
    ):
        pass
    _, board = farm.board("c")
    remote = f"ssh://board/{board.port}"
    monkeypatch.setenv(access.SECRET, "correct horse battery")
    with (
        pytest.raises(Unreachable, match=f"the board at {remote} knows no secret"),
        tunnel.opened(remote),
    ):
        pass


@pytest.mark.slow
@needs_sshd
def test_who_took_the_local_port_is_not_the_board(
    farm: served.Farm, sshd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, board = farm.board("b")
    _, other = farm.board("other")
    monkeypatch.setattr(tunnel, "_free_port", lambda: other.port)
    with (
        pytest.raises(Unreachable, match=r"no SSH connection to board: .*forward"),
        tunnel.opened(f"ssh://board/{board.port}") as remote,
    ):
        pytest.fail(f"{remote} is not behind SSH")
    wait_until_gone()


def make_library(folder: Path) -> Path:
    import libraries
    import models

    return libraries.make_library(models.tiny_encoder(), folder, threads=1, check=False)
