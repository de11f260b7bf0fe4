"""The server survives its clients and their candidates. Clients are TVM's own."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest

import processes
from cli.commands import command, complaint, tvmtune
from remote import served
from tvmtune.remote import protocol
from tvmtune.remote.protocol import DIED, Address, is_alive

RUN = """
remote = connect({options})
name = os.path.basename(sys.argv[1])
x = tvm.runtime.tensor(np.ones(8, "float32"), remote.cpu())
module = load(remote, sys.argv[1])
print("running", flush=True)
try:
    module["main"](x, x)
except Exception as error:
    print(type(error).__name__, error)
"""


def run(board: Address, library: Path, options: str = "") -> str:
    return served.client(board, "b", RUN.format(options=options), library).stdout


def serves(board: Address, library: Path, key: str = "b", *, tracked: bool = False) -> bool:
    """Whether a client gets the right result."""
    done = served.client(board, key, "doubles(connect(), sys.argv[1])", library, tracked=tracked)
    assert not done.returncode, done.stderr
    return done.stdout == "doubled\n"


@pytest.mark.slow
def test_stock_clients_upload_load_run_time_and_download(
    farm: served.Farm, candidates: dict[str, Path]
) -> None:
    _, board = farm.board("b")
    code = """
remote = connect()
module = load(remote, sys.argv[1])
x = tvm.runtime.tensor(np.arange(8, dtype="float32"), remote.cpu())
y = tvm.runtime.tensor(np.zeros(8, "float32"), remote.cpu())
timed = module.time_evaluator("main", remote.cpu(), number=10, repeat=3)(x, y)
assert len(timed.results) == 3 and timed.mean > 0
assert (y.numpy() == 2 * np.arange(8)).all()
assert bytes(remote.download("sound.so")) == open(sys.argv[1], "rb").read()
fill = remote.get_function("tvm.contrib.random.random_fill_for_measure")
fill(x)
assert len(set(x.numpy())) == 8
print("all of it")
"""
    done = served.client(board, "b", code, candidates["sound"])
    assert done.stdout == "all of it\n", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "how"), [("abort", "SIGABRT"), ("sigill", "SIGILL (an instruction that its CPU")]
)
def test_a_crash_ends_only_its_session(
    farm: served.Farm, candidates: dict[str, Path], name: str, how: str
) -> None:
    server, board = farm.board("b")
    assert DIED + how in run(board, candidates[name])
    server.expect("finished: " + re.escape(DIED + how))
    assert serves(board, candidates["sound"])


@pytest.mark.slow
def test_a_hanging_candidate_is_killed_at_the_session_timeout(
    farm: served.Farm, candidates: dict[str, Path]
) -> None:
    _, board = farm.board("b")
    output = run(board, candidates["sleep"], "timeout=2")
    assert "RPCSessionTimeoutError" in output
    assert "the 2 s of this session are over" in output
    assert serves(board, candidates["sound"])


@pytest.mark.slow
def test_leaked_memory_is_freed_with_the_session(
    farm: served.Farm, candidates: dict[str, Path]
) -> None:
    server, board = farm.board("b")

    def memory() -> int:
        return sum(_resident(pid) for pid in [server.pid, *server.children()])

    before = memory()
    code = RUN.format(options="") + "time.sleep(600)"
    with served.busy(board, "b", code, candidates["leak"]):
        _wait(lambda: memory() > before + 350e6)
    _wait(lambda: memory() < before + 50e6)
    assert serves(board, candidates["sound"])


@pytest.mark.slow
def test_the_session_of_a_killed_client_ends(
    farm: served.Farm, candidates: dict[str, Path]
) -> None:
    server, board = farm.board("b")
    with served.busy(board, "b", RUN.format(options=""), candidates["sleep"]):
        server.expect("asleep")
    server.expect("finished: its client left during a call")
    assert serves(board, candidates["sound"])


@pytest.mark.slow
def test_a_sessions_files_are_removed_when_it_ends(
    farm: served.Farm, candidates: dict[str, Path]
) -> None:
    server, board = farm.board("b")
    assert serves(board, candidates["sound"])
    server.expect("finished")
    _wait(lambda: not list(farm.folder.rglob("*.so")))


@pytest.mark.slow
def test_a_session_that_cannot_start_reports_why(
    farm: served.Farm, candidates: dict[str, Path]
) -> None:
    _, board = farm.board("b")
    (folder,) = farm.folder.glob("tvmtune-board-*")
    folder.rmdir()
    folder.touch()  # sessions cannot create folders in a file
    done = served.client(board, "b", "connect()")
    assert "the board cannot start a session: File exists" in done.stderr
    folder.unlink()
    assert serves(board, candidates["sound"])


@pytest.mark.slow
def test_idle_and_garbage_connections_do_not_block_others(farm: served.Farm) -> None:
    server, board = farm.board("b")
    magic = protocol.integer(protocol.RPC_MAGIC)
    sent = [
        b"",
        b"\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        magic,
        magic + protocol.integer(2**31 - 1) + b"x" * 5000,
        magic + protocol.integer(-5),
        magic + protocol.integer(0),
        magic + protocol.integer(9) + b"client:\xff\xfe",
        magic + protocol.integer(7) + b"client:",
        magic + protocol.integer(20) + b"client:b -timeout=no",
    ]
    crowd = [socket.create_connection((board.host, board.port), 10) for _ in range(200)]
    lines = []
    for words in sent:  # after the crowd: if there are too many, the oldest are closed
        lines.append(socket.create_connection((board.host, board.port), 10))
        lines[-1].sendall(words)
    assert is_alive(board)
    assert server.process.poll() is None
    lines[-1].settimeout(10)  # the last is valid: a timeout that is not a number is ignored
    assert lines[-1].recv(4) == protocol.integer(protocol.ACCEPTED)
    assert is_alive(board)
    for line in lines + crowd:
        line.close()


@pytest.mark.slow
def test_a_wrong_key_is_answered_with_mismatch(farm: served.Farm) -> None:
    _, board = farm.board("b")
    for key in (b"client:other", b"client:", b"server:b", b"b", b" "):
        with socket.create_connection((board.host, board.port), 10) as line:
            line.sendall(protocol.integer(protocol.RPC_MAGIC))
            line.sendall(protocol.integer(len(key)) + key)
            assert protocol.receive(line, 4, time.monotonic() + served.LIMIT) == protocol.integer(
                protocol.MISMATCH
            )


@pytest.mark.slow
def test_killing_the_server_ends_its_processes_and_frees_its_port(
    farm: served.Farm, candidates: dict[str, Path]
) -> None:
    server, board = farm.board("b")
    with served.busy(board, "b", RUN.format(options=""), candidates["sleep"]) as client:
        server.expect("asleep")
        assert (
            len(server.children("tvmtune.remote.server.forkserver_process")) == 2
        )  # and the session, its fork
        server.kill()
        assert not processes.after_a_while(server.mark)
        client.wait(served.LIMIT)
    for left in farm.folder.glob("tvmtune-board-*"):
        os.utime(left, (0, 0))  # as if some time had passed
    _, again = farm.board("b", port=board.port)
    assert serves(again, candidates["sound"])
    assert len(list(farm.folder.glob("tvmtune-board-*"))) == 1


@pytest.mark.slow
def test_a_killed_forkserver_is_replaced(farm: served.Farm, candidates: dict[str, Path]) -> None:
    server, board = farm.board("b")
    (forkserver,) = server.children("tvmtune.remote.server.forkserver_process")
    os.kill(forkserver, signal.SIGKILL)
    assert serves(board, candidates["sound"])
    with served.busy(board, "b", RUN.format(options=""), candidates["sleep"]) as client:
        server.expect("asleep")
        forkserver, session = server.children("tvmtune.remote.server.forkserver_process")
        os.kill(min(forkserver, session), signal.SIGKILL)
        output, _ = client.communicate(timeout=served.LIMIT)
    assert "the board's server had to be restarted" in output
    assert serves(board, candidates["sound"])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_server_and_its_session(
    farm: served.Farm, candidates: dict[str, Path], number: int
) -> None:
    server, board = farm.board("b")
    with served.busy(board, "b", RUN.format(options=""), candidates["sleep"]) as client:
        server.expect("asleep")
        assert server.end(number) == 0
        client.wait(served.LIMIT)
    assert not any("Traceback" in line for line in server.lines)


def test_a_port_in_use_is_reported(farm: served.Farm, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for words in (["serve", "--key", "b"], ["tracker"]):
            done = tvmtune(*words, "--port", port, cwd=tmp_path, timeout=served.LIMIT)
            assert done.returncode == 1
            output = complaint(done.stderr)
            assert f"cannot listen on port {port} of 127.0.0.1: Address already in use" in output
            assert "--port" in output


def test_a_broken_tvm_is_a_one_line_error(farm: served.Farm, tmp_path: Path) -> None:
    (tmp_path / "tvm.py").write_text("raise OSError('libtvm_runtime.so: wrong ELF class')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = tvmtune(
        *("serve", "--key", "b", "--port", served.free_port()),
        cwd=tmp_path,
        env={"PYTHONPATH": path},
        timeout=served.LIMIT,
    )
    assert done.returncode == 1
    assert "libtvm_runtime.so: wrong ELF class" in complaint(done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_listening_on_all_networks_warns(farm: served.Farm, host: str) -> None:
    port = served.free_port()
    for name, words in (("server", ["serve", "--key", "b"]), ("tracker", ["tracker"])):
        running = farm.start(command(*words, "--insecure", "--host", host, "--port", port))
        output = running.expect("warning: .*").group()
        assert f"everyone who can reach this {name} can run any code" in output
        assert "SSH tunnel" in output
        running.expect("serving|listens")
        assert running.end() == 0


def _resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _wait(condition: object, within: float = served.LIMIT) -> None:
    assert callable(condition)
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
