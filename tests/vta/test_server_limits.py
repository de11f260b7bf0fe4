"""What the HTTP server of an accelerator grants its clients: access, memory and time."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import os
import socket
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.remote import access
from tvmtune.remote.protocol import Address
from tvmtune_vta.device import client, deadlines, protocol, server, simulated
from tvmtune_vta.device.client import RemoteAccelerator
from tvmtune_vta.device.simulated import SimulatedAccelerator
from tvmtune_vta.hardware import work
from tvmtune_vta.hardware.program import Program
from vta import small
from vta.small import W, Y
from vta.test_server import ask, bare, example, path_of, running, serving

SECRET = b"correct horse battery"
LARGE = 1 << 20


def endless(times: int = 1) -> Program:
    """A valid program with GEMMs of 2^14 x 2^14 iterations."""
    steps = small.steps()
    gemm, operand = steps[4]
    still = {"dst_factor_in": 0, "src_factor_out": 0, "wgt_factor_out": 0, "wgt_factor_in": 0}
    long = dataclasses.replace(gemm, iter_out=(1 << 14) - 1, iter_in=(1 << 14) - 1, **still)
    first = dataclasses.replace(long, push_prev=False)
    more = dataclasses.replace(long, pop_prev=False, push_prev=False)
    last = dataclasses.replace(long, pop_prev=False)
    steps[4:5] = [(first, operand), *[(more, operand)] * times, (last, operand)]
    made = Program.build(
        small.program().config, steps, small.program().uops, small.program().buffers
    )
    return dataclasses.replace(made, contents={W: small.memory()[W]})


def test_slow_clients_keep_nobody_out() -> None:
    with serving(SimulatedAccelerator()) as started:
        where = (started.where.host, started.where.port)
        slow = [socket.create_connection(where, 60) for _ in range(8)]
        for line in slow:
            line.sendall(f"PUT /programs/{'0' * 64} HTTP/1.1\r\n".encode())
            line.sendall(f"Content-Length: {LARGE}\r\n\r\nx".encode())
        status, data, _ = ask(started, "PUT", f"/programs/{'0' * 64}", bytes(LARGE))
        assert (status, b"damaged" in data) == (400, True)
        for line in slow:
            line.close()


@pytest.mark.slow
def test_bodies_are_limited_in_memory_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not fit waits for others to end; in vain, its client is dropped."""
    monkeypatch.setattr(server, "BODY_TIMEOUT", 1.0)
    with serving(SimulatedAccelerator()) as started:
        started.memory = deadlines.Budget(LARGE)
        started.memory.take(LARGE, time.monotonic())
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(started, "PUT", f"/programs/{'0' * 64}", bytes(LARGE))
        started.memory.give_back(LARGE)
        for _ in range(3):
            assert ask(started, "PUT", f"/programs/{'0' * 64}", bytes(LARGE))[0] == 400


@pytest.mark.parametrize(
    "said", [b"", b"PUT / HTTP/1.1\r\nContent-Length: 100\r\n\r\n"], ids=["header", "body"]
)
def test_a_request_has_one_deadline(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_TIMEOUT", 1.0)
    monkeypatch.setattr(server, "BODY_TIMEOUT", 1.0)
    with serving(SimulatedAccelerator()) as started:
        with socket.create_connection((started.where.host, started.where.port), 60) as line:
            line.sendall(said)
            line.settimeout(0.2)
            for _ in range(300):  # a byte each 0.2 s, less than any timeout
                try:
                    line.sendall(b"P")
                    if line.recv(1) == b"":
                        return
                except TimeoutError:
                    continue
                except OSError:
                    return
        pytest.fail("it waits for a client that sends one byte now and then")


def test_an_answer_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CONNECT_TIMEOUT", 1.0)
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def trickle() -> None:
            line, _ = listener.accept()
            with line:
                for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" + bytes(9999):
                    try:
                        line.sendall(bytes([byte]))
                    except OSError:
                        return
                    if done.wait(0.2):
                        return

        thread = threading.Thread(target=trickle, daemon=True)
        thread.start()
        with pytest.raises(TvmtuneError, match="no VTA server answers at .*: timed out"):
            RemoteAccelerator(f"127.0.0.1:{listener.getsockname()[1]}")
        done.set()
        thread.join(60)


@pytest.mark.slow
def test_programs_that_run_for_long_are_refused() -> None:
    assert work.operations(endless()) > 3 * 2**28 * 4 * 256 * 0.99
    with serving(SimulatedAccelerator(bounded=True)) as started:
        there = RemoteAccelerator(str(started.where))
        with pytest.raises(TvmtuneError, match=r"takes 8.2e\+11 operations, .* at most 5.5e\+11"):
            there.load(endless())
        program, given, wanted = example()
        assert np.array_equal(there.load(program).run(given)[Y], wanted)


def test_so_are_programs_of_many_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MOST_INSTRUCTIONS", 10)
    with pytest.raises(TvmtuneError, match="has 18 instructions, and this server takes at most 10"):
        SimulatedAccelerator(bounded=True).load(example()[0])
    SimulatedAccelerator().load(example()[0])


def test_a_signal_ends_the_server_while_a_program_runs(tmp_path: Path) -> None:
    """Here with a program that is as long as the reference simulator takes any: minutes."""
    program, given, _ = example()
    steps = [step for step, _ in small.steps()]
    assert program.decode() == steps
    gemm = dataclasses.replace(
        steps[4], iter_out=1 << 12, iter_in=1 << 12, dst_factor_in=0, src_factor_out=0
    )
    gemm = dataclasses.replace(gemm, wgt_factor_out=0, wgt_factor_in=0)
    changed = [
        (gemm if s is steps[4] else s, o) for s, o in zip(steps, program.operands, strict=True)
    ]
    long = Program.build(program.config, changed, program.uops, program.buffers)
    long = dataclasses.replace(long, contents=program.contents)
    assert work.operations(long) < simulated.MOST_REFERENCE_OPERATIONS
    with running(bare(tmp_path)) as (process, address):
        machine = RemoteAccelerator(address).load(long)
        thread = threading.Thread(target=_run, args=(machine, given), daemon=True)
        thread.start()
        time.sleep(1.0)
        process.terminate()
        assert process.wait(90) == 0
        thread.join(90)


def _run(machine: object, given: dict) -> None:
    with contextlib.suppress(TvmtuneError):
        machine.run(given)  # type: ignore[attr-defined]


def test_a_server_with_a_secret_serves_those_who_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    started = server.AcceleratorServer(Address("127.0.0.1", 0), SimulatedAccelerator(), SECRET)
    thread = threading.Thread(target=started.serve_forever, args=(0.05,))
    thread.start()
    try:
        program, given, wanted = example()
        address = str(started.where)
        monkeypatch.delenv(access.SECRET, raising=False)
        with pytest.raises(TvmtuneError, match=f"at {address} has a secret: give its own with"):
            RemoteAccelerator(address)
        monkeypatch.setenv(access.SECRET, "another secret that is long")
        with pytest.raises(TvmtuneError, match=f"at {address} has another secret"):
            RemoteAccelerator(address)
        for method, path in (("PUT", path_of(program)), ("POST", path_of(program)), ("GET", "/")):
            assert ask(started, method, path, b"")[0] == 401
        monkeypatch.setenv(access.SECRET, SECRET.decode())
        assert np.array_equal(RemoteAccelerator(address).load(program).run(given)[Y], wanted)
        token = protocol.token(SECRET)
        assert SECRET.decode() not in token
        assert ask(started, "GET", "/", Authorization=f"Bearer {token}")[0] == 200
    finally:
        started.shutdown()
        thread.join()
        started.server_close()


def test_other_machines_are_not_served_without_a_secret(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert server.main(["--host", "0.0.0.0", "--port", "0"]) == UsageError.exit_code
    message = capfd.readouterr().err
    assert "--secret-file" in message and "--insecure" in message and "SSH" in message
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o644)
    words = ["--host", "0.0.0.0", "--port", "0", "--secret-file", str(secret)]
    assert server.main(words) == UsageError.exit_code
    assert "every user of this machine can read" in capfd.readouterr().err
    secret.chmod(0o600)
    command = [*bare(tmp_path), "--host", "0.0.0.0", "--port", "0"]
    for more in (["--secret-file", str(secret)], ["--insecure"]):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TVMTUNE_SECRET")}
        with subprocess.Popen(
            [*command, *more], stderr=subprocess.PIPE, text=True, env=environment
        ) as process:
            assert process.stderr is not None
            said = process.stderr.readline() + process.stderr.readline()
            process.terminate()
        assert "warning: anyone who" in said and "not encrypted" in said
        assert "simulates VTA at http://0.0.0.0" in said
