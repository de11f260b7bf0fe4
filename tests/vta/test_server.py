"""The HTTP server of an accelerator, and its client."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import tvmtune
import tvmtune_vta
from quantize import cnn
from remote.served import Farm, free_port
from tvmtune import api
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.inputs import random_inputs
from tvmtune.remote.client.lease import BoardLease
from tvmtune.remote.protocol import Address
from tvmtune.runtime.library import Library
from tvmtune_vta.device import bitstream, contiguous_memory, fpga, server
from tvmtune_vta.device.accelerator import Accelerator
from tvmtune_vta.device.client import RemoteAccelerator
from tvmtune_vta.device.fpga import FpgaAccelerator
from tvmtune_vta.device.simulated import SimulatedAccelerator
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.hardware.program import Buffer, Program, digest
from tvmtune_vta.simulator import fast
from vta import small
from vta.device import Device
from vta.small import W, X, Y
from vta.test_bitstream import bitstream_file


def bare(folder: Path) -> list[str]:
    """The command of a Python with NumPy, tvmtune and the backend, but no other package."""
    site = Path(np.__file__).parents[1]
    for package in (np.__file__, tvmtune.__file__, tvmtune_vta.__file__):
        source = Path(str(package)).parent
        (folder / source.name).symlink_to(source)
    for libraries in site.glob("numpy.libs"):
        (folder / libraries.name).symlink_to(libraries)
    code = f"import sys, runpy; sys.path.insert(0, {str(folder)!r}); "
    code += "runpy.run_module('tvmtune_vta.server', run_name='__main__', alter_sys=True)"
    return [sys.executable, "-I", "-S", "-c", code]


@contextlib.contextmanager
def running(words: list[str], *more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its address; it is killed at the end."""
    with subprocess.Popen(
        [*words, "--port", "0", *more], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            yield process, process.stderr.readline().rpartition("http://")[2].strip()
        finally:
            process.kill()


@contextlib.contextmanager
def serving(what: Accelerator, port: int = 0) -> Iterator[server.AcceleratorServer]:
    started = server.AcceleratorServer(Address("127.0.0.1", port), what)
    thread = threading.Thread(target=started.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield started
    finally:
        started.shutdown()
        thread.join()
        started.server_close()


@pytest.fixture
def simulated() -> Iterator[server.AcceleratorServer]:
    with serving(SimulatedAccelerator()) as started:
        yield started


def ask(
    where: server.AcceleratorServer, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple:
    line = http.client.HTTPConnection(where.where.host, where.where.port, timeout=60)
    line.request(method, path, body, headers)
    answer = line.getresponse()
    return answer.status, answer.read(), answer.headers


def path_of(program: Program) -> str:
    return f"/programs/{digest(program.to_bytes()).hex()}"


def example(on: Config | None = None) -> tuple[Program, dict, np.ndarray]:
    """A program with its weights, its input, and the expected output."""
    held = small.memory()
    program = dataclasses.replace(small.program(), contents={W: held[W]})
    if on is not None:
        program = dataclasses.replace(program, config=on)
    return program, {X: held[X]}, small.expected(held)


def test_python_and_numpy_are_enough(tmp_path):
    """It then serves the reference simulator."""
    with running(bare(tmp_path), "config=sim") as (process, address):
        there = RemoteAccelerator(address)
        assert there.config == Config.named("sim")
        program, given, wanted = example()
        machine = there.load(program)
        assert np.array_equal(machine.run(given)[Y], wanted)
        given[X] = np.zeros_like(given[X])
        assert not machine.run(given)[Y].any()
        machine.close()
        process.terminate()
        assert process.wait(30) == 0


def test_it_serves_an_fpga(tmp_path, monkeypatch):
    monkeypatch.setattr(fpga, "SETTLE", 30.0)
    device = Device(tmp_path, Config.named("pynq"))
    monkeypatch.setattr(contiguous_memory, "SYSFS", device.sysfs)
    try:
        with serving(FpgaAccelerator(device.board(), trusted=True, check_programs=True)) as started:
            there = RemoteAccelerator(str(started.where), Config.named("pynq"))
            assert there.describe()["device"] == "fpga"
            program, given, wanted = example(Config.named("pynq"))
            assert np.array_equal(there.load(program).run(given)[Y], wanted)
            assert device.runs == 1
            with pytest.raises(TvmtuneError, match="instruction 2"):
                there.load(wild(program))
            before = device.runs
            Path(bitstream_file(tmp_path)).rename(tmp_path / "other.bit")
            with pytest.raises(TvmtuneError, match="the bitstream is other"):
                there.program_fpga(str(tmp_path / "other.bit"))
            assert started.cache.programs(), "what is refused changes nothing"
            monkeypatch.setitem(sys.modules, "pynq", types.ModuleType("pynq"))
            sys.modules["pynq"].Bitstream = Loaded  # type: ignore[attr-defined]
            monkeypatch.setattr(bitstream, "STATE", tmp_path / "state.json")
            there.program_fpga(str(bitstream_file(tmp_path)))
            assert Loaded.names == [Path(bitstream_file(tmp_path)).name]
            assert not started.cache.programs()
            assert there.describe()["loaded"]["name"] == Config.named("pynq").bitstream
            assert device.runs == before
    finally:
        device.close()


class Loaded:
    """A stand-in for PYNQ's class that records the bitstreams it loads."""

    names: ClassVar[list[str]] = []

    def __init__(self, path: str) -> None:
        self.names.append(Path(path).name)

    def download(self) -> None:
        pass


@pytest.mark.slow
def test_the_server_times_runs(simulated):
    program, given, wanted = example()
    assert ask(simulated, "PUT", path_of(program), program.to_bytes())[0] == 204
    status, data, headers = ask(simulated, "POST", path_of(program), program.join(given, "input"))
    assert status == 200
    assert data == wanted.tobytes()
    assert float(headers["Server-Timing"].removeprefix("run;dur=")) > 0


@pytest.mark.slow
def test_a_restarted_server_gets_its_programs_again(tmp_path):
    program, given, wanted = example()
    words = bare(tmp_path)
    with running(words) as (_, address):
        machine = RemoteAccelerator(address).load(program)
    with running(words, "--port", address.rpartition(":")[2]):
        assert np.array_equal(machine.run(given)[Y], wanted)
    with pytest.raises(TvmtuneError, match="no VTA server answers"):
        machine.run(given)


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "message"),
    [
        ("GET", "/programs", b"", {}, 404, "nothing at /programs"),
        ("PUT", "/other", b"x", {}, 404, "nothing at"),
        ("POST", f"/programs/{'0' * 64}", b"", {}, 404, "nothing at"),
        ("DELETE", f"/programs/{'0' * 64}", b"", {}, 204, ""),
        ("PUT", f"/programs/{'0' * 64}", b"x", {}, 400, "program is damaged"),
        ("PUT", "/fpga/../../etc/x.bit", b"x", {}, 404, "nothing at"),
        ("PUT", "/fpga/x.bit", b"x", {}, 400, "simulates VTA and has no FPGA to program"),
        (
            "PUT",
            "/",
            b"",
            {"Content-Length": str(1 << 40)},
            413,
            "a request needs a Content-Length",
        ),
        ("PUT", "/", b"", {"Content-Length": "-3"}, 413, "a request needs a Content-Length"),
        ("PUT", "/", b"", {"Content-Length": "9" * 5000}, 413, "a request needs a Content-Length"),
        (
            "PUT",
            "/fpga/x.bit",
            b"x",
            {"Origin": "http://there"},
            403,
            "from browsers are refused",
        ),
        ("PATCH", "/", b"", {}, 501, "Unsupported method"),
    ],
)
def test_invalid_requests_are_rejected(simulated, method, path, body, headers, status, message):
    got, data, _ = ask(simulated, method, path, body, **headers)
    assert got == status
    assert message in data.decode()
    assert ask(simulated, "GET", "/")[0] == 200


@pytest.mark.slow
def test_invalid_inputs_and_programs_are_rejected(simulated):
    program, given, _ = example()
    there = RemoteAccelerator(str(simulated.where))
    machine = there.load(program)
    with pytest.raises(TvmtuneError, match=r"the inputs of '.*' have \d+ bytes, not \d+"):
        there.checked_request("POST", path_of(program), program.join(given, "input")[1:])
    assert machine.run(given)
    with pytest.raises(TvmtuneError, match="instruction 2"):
        there.load(wild(program))


def wild(program: Program) -> Program:
    """A program with a load that starts far beyond its buffer."""
    words = program.instructions.copy()
    words[2, 0] += np.uint64(1 << 40)
    return dataclasses.replace(program, instructions=words)


@pytest.mark.parametrize("shape", [(4096, 3 * 5 * 53 * 157 * 1613, 2731 * 8191), (1 << 40,)])
def test_a_buffer_beyond_any_memory_is_rejected(simulated, shape):
    """Also one whose size in bytes overflows 64 bits."""
    program, _, _ = example()
    more = Buffer("more", "scratch", "int8", shape)
    huge = dataclasses.replace(program, buffers=(*program.buffers, more))
    status, data, _ = ask(simulated, "PUT", path_of(huge), huge.to_bytes())
    assert status == 400
    assert "the shape of buffer 'more'" in data.decode()


def test_a_decompression_bomb_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr("tvmtune_vta.hardware.program._LARGEST", 1 << 20)
    np.savez_compressed(tmp_path / "bomb.npz", contents_0=np.zeros(1 << 21, np.int8))
    assert (tmp_path / "bomb.npz").stat().st_size < 1 << 14
    with pytest.raises(TvmtuneError, match="it unpacks to 2 MB"):
        Program.load(tmp_path / "bomb.npz")


def test_internal_errors_are_answered(simulated, monkeypatch):
    program, given, _ = example()
    there = RemoteAccelerator(str(simulated.where))
    machine = there.load(program)
    monkeypatch.setattr(fast.FastSimulator, "run", lambda *_: 1 // 0)
    with pytest.raises(TvmtuneError, match="ZeroDivisionError: integer division"):
        machine.run(given)
    assert there.describe()["device"] == "sim"


def test_invalid_and_idle_connections_do_not_block_others(simulated):
    where = (simulated.where.host, simulated.where.port)
    lines = [socket.create_connection(where, 10) for _ in range(20)]
    for line, words in zip(lines, [b"\0" * 9, b"GET", b"PUT / HTTP/1.1\r\n"], strict=False):
        line.sendall(words)
    assert ask(simulated, "GET", "/")[0] == 200
    for line in lines:
        line.close()


def test_another_configuration_is_rejected_by_name(simulated):
    with serving(SimulatedAccelerator(Config.named("sim"))) as started:
        wide = Config.parse(Config().as_dict() | {"LOG_UOP_BUFF_SIZE": 14}, "test")
        with pytest.raises(TvmtuneError, match=r"has 1x16_.*15_15_18_17, not .*LOG_UOP_BUFF_SIZE"):
            RemoteAccelerator(str(started.where), wide)
        there = RemoteAccelerator(str(started.where))
        with pytest.raises(TvmtuneError, match="for another configuration"):
            there.load(example(wide)[0])
    assert RemoteAccelerator(str(simulated.where), wide).config == wide


def test_an_address_without_a_vta_server_is_rejected():
    with pytest.raises(UsageError, match="is not an address"):
        RemoteAccelerator("host:port")
    with pytest.raises(TvmtuneError, match="no VTA server answers at 127.0.0.1"):
        RemoteAccelerator(f"127.0.0.1:{free_port()}")
    other = ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
    thread = threading.Thread(target=other.serve_forever, args=(0.05,))
    thread.start()
    try:
        with pytest.raises(TvmtuneError, match="is not a VTA server, or runs another version"):
            RemoteAccelerator(f"127.0.0.1:{other.server_port}")
    finally:
        other.shutdown()
        thread.join()
        other.server_close()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["konfig=sim"], 2, "option 'konfig' is not known. Did you mean config"),
        (["config"], 2, "'config' is not OPTION=VALUE"),
        (["--port", "TAKEN"], 1, "cannot listen on port"),
        (["--port", "70000"], 2, "'70000' is not a port"),
        (["device=fpga"], 2, "an FPGA has one configuration"),
        (["device=fpga", "config=pynq", "loaded=true"], 2, "loaded=true: must be yes or no"),
    ],
)
def test_invalid_command_lines_are_rejected(words, code, message, capfd, simulated):
    words = [str(simulated.where.port) if word == "TAKEN" else word for word in words]
    try:
        ended: object = server.main(words)
    except SystemExit as exit:
        ended = exit.code
    assert ended == code
    assert message in capfd.readouterr().err


@pytest.mark.slow
def test_a_tvm_board_forwards_streams_to_it(farm: Farm, tmp_path):
    """A library then runs on a machine without TVM."""
    with pytest.warns(UserWarning, match="is calibrated with"):
        plan = api.plan(cnn.residual(), "vta")
        library = api.compile(plan, tmp_path / "lib.so").path
    words = [*bare(tmp_path), "--port", str(port := free_port())]
    farm.start(words).expect("simulates VTA at")
    _, tracker = farm.tracker()
    there = f"device=http://127.0.0.1:{port}"
    farm.board("pynq", tracker, "--target", "vta", "--target-attr", there)
    with BoardLease(f"pynq@{tracker}") as board:
        inputs = random_inputs(plan.network.inputs, 5)
        (got,) = Library.open(library, board=board).run(inputs)
    assert np.array_equal(got, plan.network.reference(inputs)[0])
