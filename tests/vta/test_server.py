"""An accelerator served to other machines, on boards that have Python and NumPy alone."""

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
from farm.served import Farm, free_port
from quantise import cnn
from tvmtune import api
from tvmtune.deploy.library import Library
from tvmtune.deploy.remote import Borrowed
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.farm.protocol import Address
from tvmtune.networks.inputs import random_inputs
from tvmtune_vta import accelerator, bitstream, fpga, quick, server
from tvmtune_vta.accelerator import Accelerator, InFpga, Simulated
from tvmtune_vta.config import Config
from tvmtune_vta.program import Buffer, Program
from tvmtune_vta.served import Served
from vta import small
from vta.device import Device
from vta.small import W, X, Y
from vta.test_bitstream import made as made_bitstream


def bare(folder: Path) -> list[str]:
    """A Python that finds NumPy, tvmtune and the backend, and no other package."""
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
    """The process, and where it listens; it is killed at the end."""
    with subprocess.Popen(
        [*words, "--port", "0", *more], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            yield process, process.stderr.readline().rpartition("http://")[2].strip()
        finally:
            process.kill()


@contextlib.contextmanager
def serving(what: Accelerator, port: int = 0) -> Iterator[server.Server]:
    made = server.Server(Address("127.0.0.1", port), what)
    thread = threading.Thread(target=made.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


@pytest.fixture
def simulated() -> Iterator[server.Server]:
    with serving(Simulated()) as made:
        yield made


def ask(where: server.Server, method: str, path: str, body: bytes = b"", **headers: str) -> tuple:
    line = http.client.HTTPConnection(where.where.host, where.where.port, timeout=60)
    line.request(method, path, body, headers)
    answer = line.getresponse()
    return answer.status, answer.read(), answer.headers


def path_of(program: Program) -> str:
    return f"/programs/{accelerator.digest(program.to_bytes()).hex()}"


def whole(on: Config | None = None) -> tuple[Program, dict, np.ndarray]:
    """A stream with its weights, its input, and what has to come of that."""
    held = small.memory()
    program = dataclasses.replace(small.program(), contents={W: held[W]})
    if on is not None:
        program = dataclasses.replace(program, config=on)
    return program, {X: held[X]}, small.expected(held)


def test_python_and_numpy_are_enough(tmp_path):
    """What it serves then is the reference simulator, to the bit."""
    with running(bare(tmp_path), "config=sim") as (process, address):
        there = Served(address)
        assert there.config == Config.named("sim")
        program, given, wanted = whole()
        machine = there.machine(program)
        assert np.array_equal(machine.run(given)[Y], wanted)
        given[X] = np.zeros_like(given[X])
        assert not machine.run(given)[Y].any()
        machine.close()
        process.terminate()
        assert process.wait(30) == 0


def test_an_fpga_is_served(tmp_path, monkeypatch):
    monkeypatch.setattr(fpga, "SETTLE", 30.0)
    device = Device(tmp_path, Config.named("pynq"))
    monkeypatch.setattr(fpga, "SYSFS", device.sysfs)
    try:
        with serving(InFpga(device.board(), trusted=True, careful=True)) as made:
            there = Served(str(made.where), Config.named("pynq"))
            assert there.describe()["device"] == "fpga"
            program, given, wanted = whole(Config.named("pynq"))
            assert np.array_equal(there.machine(program).run(given)[Y], wanted)
            assert device.runs == 1
            with pytest.raises(TvmtuneError, match="instruction 2"):
                there.machine(wild(program))
            before = device.runs
            Path(made_bitstream(tmp_path)).rename(tmp_path / "other.bit")
            with pytest.raises(TvmtuneError, match="the bitstream is other"):
                there.program_fpga(str(tmp_path / "other.bit"))
            assert made.shelf.programs(), "what is refused changes nothing"
            monkeypatch.setitem(sys.modules, "pynq", types.ModuleType("pynq"))
            sys.modules["pynq"].Bitstream = Loaded  # type: ignore[attr-defined]
            monkeypatch.setattr(bitstream, "STATE", tmp_path / "state.json")
            there.program_fpga(str(made_bitstream(tmp_path)))
            assert Loaded.names == [Path(made_bitstream(tmp_path)).name]
            assert not made.shelf.programs()
            assert there.describe()["loaded"]["name"] == Config.named("pynq").bitstream
            assert device.runs == before
    finally:
        device.close()


class Loaded:
    """Stands in for PYNQ's class: notes what it was to load."""

    names: ClassVar[list[str]] = []

    def __init__(self, path: str) -> None:
        self.names.append(Path(path).name)

    def download(self) -> None:
        pass


def test_a_run_is_timed_where_it_happens(simulated):
    program, given, wanted = whole()
    assert ask(simulated, "PUT", path_of(program), program.to_bytes())[0] == 204
    status, data, headers = ask(simulated, "POST", path_of(program), program.join(given, "input"))
    assert status == 200
    assert data == wanted.tobytes()
    assert float(headers["Server-Timing"].removeprefix("run;dur=")) > 0


def test_a_server_that_was_started_again_gets_its_programs_anew(tmp_path):
    program, given, wanted = whole()
    words = bare(tmp_path)
    with running(words) as (_, address):
        machine = Served(address).machine(program)
    with running(words, "--port", address.rpartition(":")[2]):
        assert np.array_equal(machine.run(given)[Y], wanted)
    with pytest.raises(TvmtuneError, match="no server of VTA's answers"):
        machine.run(given)


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "told"),
    [
        ("GET", "/programs", b"", {}, 404, "there is nothing at /programs"),
        ("PUT", "/other", b"x", {}, 404, "there is nothing"),
        ("POST", f"/programs/{'0' * 64}", b"", {}, 404, "there is nothing"),
        ("DELETE", f"/programs/{'0' * 64}", b"", {}, 204, ""),
        ("PUT", f"/programs/{'0' * 64}", b"x", {}, 400, "program is damaged"),
        ("PUT", "/fpga/../../etc/x.bit", b"x", {}, 404, "there is nothing"),
        ("PUT", "/fpga/x.bit", b"x", {}, 400, "simulates VTA, and has nothing to load"),
        ("PUT", "/", b"", {"Content-Length": str(1 << 40)}, 413, "a body has a Content-Length"),
        ("PUT", "/", b"", {"Content-Length": "-3"}, 413, "a body has a Content-Length"),
        ("PUT", "/", b"", {"Content-Length": "9" * 5000}, 413, "a body has a Content-Length"),
        ("PUT", "/fpga/x.bit", b"x", {"Origin": "http://there"}, 403, "browsers are not served"),
        ("PATCH", "/", b"", {}, 501, "Unsupported method"),
    ],
)
def test_what_makes_no_sense_is_refused(simulated, method, path, body, headers, status, told):
    got, data, _ = ask(simulated, method, path, body, **headers)
    assert got == status
    assert told in data.decode()
    assert ask(simulated, "GET", "/")[0] == 200


def test_inputs_that_do_not_fit_and_streams_that_break_rules_are_refused(simulated):
    program, given, _ = whole()
    there = Served(str(simulated.where))
    machine = there.machine(program)
    with pytest.raises(TvmtuneError, match=r"the inputs of '.*' have \d+ bytes, not \d+"):
        there.demand("POST", path_of(program), program.join(given, "input")[1:])
    assert machine.run(given)
    with pytest.raises(TvmtuneError, match="instruction 2"):
        there.machine(wild(program))


def wild(program: Program) -> Program:
    """Its load begins far behind its buffer."""
    words = program.instructions.copy()
    words[2, 0] += np.uint64(1 << 40)
    return dataclasses.replace(program, instructions=words)


@pytest.mark.parametrize("shape", [(4096, 3 * 5 * 53 * 157 * 1613, 2731 * 8191), (1 << 40,)])
def test_a_buffer_that_no_memory_holds_is_refused(simulated, shape):
    """Also one whose bytes, counted in 64 bits, are negative."""
    program, _, _ = whole()
    more = Buffer("more", "scratch", "int8", shape)
    huge = dataclasses.replace(program, buffers=(*program.buffers, more))
    status, data, _ = ask(simulated, "PUT", path_of(huge), huge.to_bytes())
    assert status == 400
    assert "the shape of buffer 'more'" in data.decode()


def test_a_stream_that_unpacks_to_more_than_any_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tvmtune_vta.program._LARGEST", 1 << 20)
    np.savez_compressed(tmp_path / "bomb.npz", contents_0=np.zeros(1 << 21, np.int8))
    assert (tmp_path / "bomb.npz").stat().st_size < 1 << 14
    with pytest.raises(TvmtuneError, match="its arrays are too large"):
        Program.load(tmp_path / "bomb.npz")


def test_what_goes_wrong_inside_is_answered_as_well(simulated, monkeypatch):
    program, given, _ = whole()
    there = Served(str(simulated.where))
    machine = there.machine(program)
    monkeypatch.setattr(quick.Machine, "run", lambda *_: 1 // 0)
    with pytest.raises(TvmtuneError, match="ZeroDivisionError: integer division"):
        machine.run(given)
    assert there.describe()["device"] == "sim"


def test_garbage_and_idle_connections_block_nobody(simulated):
    where = (simulated.where.host, simulated.where.port)
    lines = [socket.create_connection(where, 10) for _ in range(20)]
    for line, words in zip(lines, [b"\0" * 9, b"GET", b"PUT / HTTP/1.1\r\n"], strict=False):
        line.sendall(words)
    assert ask(simulated, "GET", "/")[0] == 200
    for line in lines:
        line.close()


def test_another_configuration_is_refused_by_name(simulated):
    with serving(Simulated(Config.named("sim"))) as made:
        wide = Config.parse(Config().as_dict() | {"LOG_UOP_BUFF_SIZE": 14}, "test")
        with pytest.raises(TvmtuneError, match=r"has 1x16_.*15_15_18_17, not .*LOG_UOP_BUFF_SIZE"):
            Served(str(made.where), wide)
        there = Served(str(made.where))
        with pytest.raises(TvmtuneError, match="for another configuration"):
            there.machine(whole(wide)[0])
    assert Served(str(simulated.where), wide).config == wide


def test_what_is_no_server_of_vtas():
    with pytest.raises(UsageError, match="is no address"):
        Served("host:port")
    with pytest.raises(TvmtuneError, match="no server of VTA's answers at 127.0.0.1"):
        Served(f"127.0.0.1:{free_port()}")
    other = ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
    thread = threading.Thread(target=other.serve_forever, args=(0.05,))
    thread.start()
    try:
        with pytest.raises(TvmtuneError, match="is no server of VTA's, or one of another version"):
            Served(f"127.0.0.1:{other.server_port}")
    finally:
        other.shutdown()
        thread.join()
        other.server_close()


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["konfig=sim"], 2, "option 'konfig' is not known. Did you mean config"),
        (["config"], 2, "'config' is no OPTION=VALUE"),
        (["--port", "TAKEN"], 1, "cannot listen on port"),
        (["--port", "70000"], 2, "'70000' is no port"),
        (["device=fpga"], 2, "an FPGA has one configuration"),
        (["device=fpga", "config=pynq", "loaded=true"], 2, "loaded=true: say yes or no"),
    ],
)
def test_a_wrong_command(words, code, told, capfd, simulated):
    words = [str(simulated.where.port) if word == "TAKEN" else word for word in words]
    try:
        ended: object = server.main(words)
    except SystemExit as exit:
        ended = exit.code
    assert ended == code
    assert told in capfd.readouterr().err


@pytest.mark.slow
def test_a_board_of_tvms_protocol_stands_before_it(farm: Farm, tmp_path):
    """So a library runs whose streams go on to a machine without TVM."""
    with pytest.warns(UserWarning, match="is calibrated with"):
        plan = api.plan(cnn.residual(), "vta")
        library = api.compile(plan, tmp_path / "lib.so").path
    words = [*bare(tmp_path), "--port", str(port := free_port())]
    farm.start(words).expect("simulates VTA at")
    _, tracker = farm.tracker()
    there = f"device=http://127.0.0.1:{port}"
    farm.board("pynq", tracker, "--target", "vta", "--target-attr", there)
    with Borrowed(f"pynq@{tracker}") as board:
        inputs = random_inputs(plan.network.inputs, 5)
        (got,) = Library.open(library, board=board).run(inputs)
    assert np.array_equal(got, plan.network.reference(inputs)[0])
