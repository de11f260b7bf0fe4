"""Libraries on boards: real trackers and servers on this machine, and their failures."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import processes
from cli.commands import command, complaint, tvmtune
from disks import NO_BYTECODE
from libraries import make_library
from models import tiny_encoder
from remote.served import Farm, Running, free_port
from tvmtune import api, networks
from tvmtune.bench import bench, peers
from tvmtune.bench.peers import remote_peer
from tvmtune.bench.verify import run_check
from tvmtune.compiling.compile import Compiled
from tvmtune.compiling.ship import check_on_board
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.library import metadata
from tvmtune.machine import triples
from tvmtune.remote.client import boards, lease
from tvmtune.remote.client.lease import BoardLease
from tvmtune.remote.protocol import Address, Tracker
from tvmtune.runtime.library import Library
from tvmtune.types import Device

pytestmark = pytest.mark.slow

STOCK = Path(__file__).parents[1] / "measure" / "stock.py"
LIMIT = 60.0
"""Seconds after which something that a test waits for counts as hanging."""


class Shelf:
    """A tracker with one board, ``shelf``."""

    def __init__(self, farm: Farm, *before: str, **env: str) -> None:
        self.tracker: Address
        _, self.tracker = farm.tracker()
        serve = command("serve", "--key", "shelf", "--tracker", self.tracker, "--port", free_port())
        self.board: Running = farm.start([*before, *serve], env)
        self.board.expect("registered")

    @property
    def key(self) -> str:
        return f"shelf@{self.tracker}"

    def free(self) -> bool:
        with Tracker(self.tracker) as line:
            return any(row.free for row in boards.queues(line))

    def session(self) -> int:
        """The process that serves the client of the moment: the youngest."""
        return max(self.board.children(), key=lambda pid: psutil.Process(pid).create_time())

    def strike(self, number: int) -> None:
        """Have a signal end that process, as a fault in a kernel would. LLVM, which OpenCL drivers
        bring with them, lets the first one pass that was sent; a fault comes again."""
        victim = psutil.Process(self.session())
        with contextlib.suppress(psutil.NoSuchProcess):
            while victim.is_running():
                victim.send_signal(number)
                with contextlib.suppress(psutil.TimeoutExpired):
                    victim.wait(0.2)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    """For tests that leave the board unchanged."""
    farm = Farm(tmp_path_factory.mktemp("farm"))
    try:
        yield Shelf(farm)
    finally:
        farm.close()


@pytest.fixture
def board(shared: Shelf) -> Iterator[BoardLease]:
    with BoardLease(shared.key) as lent:
        yield lent


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several inputs, of integers, and several outputs."""
    return make_library(tiny_encoder(), tmp_path_factory.mktemp("encoder"), threads=1)


def within(function: Callable[..., Any], *arguments: Any, seconds: float = LIMIT) -> Any:
    """What the function returns or raises, if it does so in time."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(function, *arguments).result(timeout=seconds)
    finally:
        pool.shutdown(wait=False)


def refusal(function: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(TvmtuneError) as raised:
        within(function, *arguments)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def known(port: int) -> set[str]:
    """The keys of the boards that a tracker of this machine has."""
    with Tracker(Address("127.0.0.1", port)) as line:
        return {row.key for row in boards.queues(line) if row.total}


def test_outputs_equal_those_of_this_machine(tiny_library, opened, board):
    library = Library.open(tiny_library, board=board)
    inputs = opened.random_inputs(3)
    for got, want in zip(library.run(inputs), opened.run(inputs), strict=True):
        np.testing.assert_array_equal(got, want)
    assert library.threads == opened.threads
    assert run_check(library, library.metadata["check"]).passed
    assert library.invoke(3) > 0


def test_several_libraries_share_a_board(tiny_library, encoder, opened, board):
    first, second = Library.open(tiny_library, board=board), Library.open(encoder, board=board)
    inputs = opened.random_inputs()
    first.set_inputs(inputs)
    assert run_check(second, second.metadata["check"]).passed
    first.invoke()
    np.testing.assert_array_equal(first.session.outputs()[0], opened.run(inputs)[0])
    assert len(second.outputs) == len(second.session.outputs()) > 1


def test_a_board_keeps_the_state(board, tmp_path):
    torch = pytest.importorskip("torch")
    from networks.torch_models import Accumulator
    from tvmtune.networks.torch.network import TorchNetwork

    program = torch.export.export(Accumulator(), (torch.zeros(3),))
    plan = api.plan(TorchNetwork(program, name="sum"))
    api.compile_untuned(plan, tmp_path / "sum.so")
    library = Library.open(tmp_path / "sum.so", board=board)
    feed = {"x": np.float32([1, 2, 3])}
    assert [library.step(feed)[0][2] for _ in range(3)] == [6, 12, 18]
    assert library.run(feed)[1].tolist() == [1, 2, 3]
    assert library.get_state()["total"].tolist() == [3, 6, 9]
    library.set_state({"total": np.float32([1, 1, 1])})
    assert library.step(feed)[0].tolist() == [4, 6, 8]


def test_a_wrong_library_fails_the_check(wrong, board):
    library = Library.open(wrong, board=board)
    verdict = run_check(library, library.metadata["check"])
    assert not verdict.passed
    assert "is off by" in str(verdict)


def test_peers_run_on_the_board(tiny_library, board):
    library = Library.open(tiny_library, board=board)
    others = remote_peer.parse("ort", board)
    result = bench.bench(library, repeat=2, peers=others)
    assert result.notes == [note for note in result.notes if "vary" in note]
    assert [run.runtime for run in result.runs] == ["tvmtune", "onnxruntime"]
    own, ort = result.runs
    assert ort.version
    assert ort.threads == own.threads
    assert ort.error is not None
    assert ort.error < 1e-5
    assert len(ort.seconds) == 2
    assert result.board is not None
    assert result.board["key"] == "shelf"
    assert result.to_json()["board"]["machine"]


def test_all_means_the_peers_that_the_board_has(board):
    found = {peer.name for peer in remote_peer.parse("all", board)}
    assert "onnxruntime" in found
    with pytest.raises(UsageError, match="Did you mean onnxruntime"):
        remote_peer.parse("onxruntime", board)


def test_a_failing_peer_is_skipped(tiny_library, board, tmp_path):
    """The network's file is gone."""
    copy = Path(shutil.copy(tiny_library, tmp_path / "copy.so"))
    found = metadata.read(copy)
    found["network"]["source"] = {"file": str(tmp_path / "none.onnx"), "batch": 1}
    metadata.append(copy, found)
    result = bench.bench(
        Library.open(copy, board=board), repeat=1, peers=remote_peer.parse("ort", board)
    )
    assert [run.runtime for run in result.runs] == ["tvmtune"]
    assert "onnxruntime is skipped" in result.notes[0]


def test_more_threads_than_the_board_has_is_an_error(tiny_library, board):
    assert "the number of threads must be from 1 to " in refusal(
        lambda: Library.open(tiny_library, 4096, board=board)
    )
    assert Library.open(tiny_library, 1, board=board).threads == 1


def test_profiling_on_a_board_is_an_error(tiny_library, board):
    library = Library.open(tiny_library, board=board)
    assert "cannot be profiled" in refusal(library.profile, library.random_inputs())


def test_ship_checks_and_times_on_the_board(tiny_library, shared, tmp_path):
    network = networks.load(str(tiny_library.parent / "model.onnx"))
    plan = api.plan(network, "cpu", attrs={"threads": 1}, remote=shared.key)
    untuned = api.compile_untuned(plan, tmp_path / "untuned.so")
    shipped = api.ship(
        plan, tmp_path / "lib.so", [], untuned=untuned, peers=[peers.peer("onnxruntime")]
    )
    assert shipped.verdict.passed
    assert shipped.bench.board is not None
    assert shipped.bench.board["key"] == "shelf"
    assert [run.runtime for run in shipped.bench.runs] == ["tvmtune", "untuned", "onnxruntime"]
    assert metadata.read(tmp_path / "lib.so")["device"]["remote"] == shared.key


def test_a_wrong_untuned_library_is_an_error(wrong, shared):
    compiled = Compiled(wrong, metadata.read(wrong))
    device = replace(Device.from_json(compiled.metadata["device"]), remote=shared.key)
    text = refusal(check_on_board, compiled, device)
    assert "on the board 'shelf' the output is wrong: output 'logits' is off by" in text


def test_an_unknown_key_is_an_error(shared):
    text = refusal(BoardLease, f"shelve@{shared.tracker}")
    assert f"the tracker at {shared.tracker} has no board 'shelve': it has shelf" in text


def test_a_missing_tracker_is_an_error():
    port = free_port()
    assert f"no tracker answers at 127.0.0.1:{port}" in refusal(
        BoardLease, f"shelf@127.0.0.1:{port}"
    )


def test_leasing_waits_for_a_busy_board(shared, board):
    heard: list[str] = []
    text = refusal(lambda: BoardLease(shared.key, wait=1.0, report=heard.append))
    assert "no board 'shelf' became free within 1 s: all are in use" in text
    assert "--wait" in text
    assert heard == ["all boards 'shelf' are in use: waiting up to 1 s"]
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(BoardLease, shared.key, wait=LIMIT)
        time.sleep(0.5)
        assert not second.done()
        board.close()
        second.result(timeout=LIMIT).close()


def test_a_library_for_another_architecture_is_refused(tiny_library, board, tmp_path):
    copy = Path(shutil.copy(tiny_library, tmp_path / "copy.so"))
    data = bytearray(copy.read_bytes())
    data[18:20] = (8).to_bytes(2, "little")
    copy.write_bytes(data)
    text = refusal(lambda: Library.open(copy, board=board))
    assert f"{copy} holds code for mips and the board is " in text
    assert "compile it for the board" in text


def test_a_missing_cpu_feature_is_refused(tiny_library, board, tmp_path):
    copy = Path(shutil.copy(tiny_library, tmp_path / "copy.so"))
    metadata.append(copy, metadata.read(copy) | {"cpu_features": ["sve2"]})
    assert "uses sve2, which the board's CPU lacks" in refusal(
        lambda: Library.open(copy, board=board)
    )


def test_a_library_larger_than_the_boards_memory_is_refused(tiny_library, board, monkeypatch):
    assert board.described is not None
    monkeypatch.setitem(board.described, "free_bytes", 1000)
    text = refusal(lambda: Library.open(tiny_library, board=board))
    assert text.startswith("the board 'shelf' has 0 MB of free memory, and ")


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (signal.SIGILL, "uses instructions that its CPU lacks: compile it for that board"),
        (signal.SIGKILL, "Its memory is probably too small: "),
        (signal.SIGABRT, ""),
    ],
)
def test_a_crash_of_the_boards_process_is_explained(tiny_library, shared, number, remedy):
    with BoardLease(shared.key) as board:
        library = Library.open(tiny_library, board=board)
        library.set_inputs(library.random_inputs())
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(library.invoke, 100_000_000)
            time.sleep(0.5)
            shared.strike(number)
            with pytest.raises(TvmtuneError) as raised:
                call.result(timeout=LIMIT)
    text = str(raised.value)
    assert f"on the board 'shelf', the board's process died: {number.name}" in text
    assert remedy in text
    with BoardLease(shared.key) as board:  # it serves the next
        assert Library.open(tiny_library, board=board).run(library.random_inputs())


def test_a_board_switched_off_is_lost(tiny_library, farm):
    shelf = Shelf(farm)
    with BoardLease(shelf.key) as board:
        library = Library.open(tiny_library, board=board)
        library.run(library.random_inputs())
        shelf.board.kill()
        assert not processes.after_a_while(shelf.board.mark)
        text = refusal(library.run, library.random_inputs())
    assert "the board 'shelf' at 127.0.0.1:" in text
    assert "was lost" in text
    assert "tvmtune devices --probe" in text
    for folder in farm.folder.glob("tvmtune-*"):  # the killed server cannot remove it
        shutil.rmtree(folder)


def test_a_frozen_board_is_lost(tiny_library, farm, monkeypatch):
    """Nobody closes a connection; the deadline of the call itself would be five minutes."""
    monkeypatch.setattr(lease, "POLL_INTERVAL", 0.5)
    monkeypatch.setattr(lease, "MAX_FAILED_CHECKS", 2)
    shelf = Shelf(farm)
    frozen = [shelf.board.pid, *shelf.board.children()]
    with BoardLease(shelf.key) as board:
        library = Library.open(tiny_library, board=board)
        library.set_inputs(library.random_inputs())
        frozen.append(shelf.session())
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            text = refusal(library.invoke)
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
    assert "was lost: it does not answer any more" in text


def test_a_full_disk_on_the_board_is_reported(tiny_library, farm):
    shelf = Shelf(farm, "sh", "-c", 'ulimit -f 8; exec "$@"', "sh", **NO_BYTECODE)
    with BoardLease(shelf.key) as board:
        text = refusal(lambda: Library.open(tiny_library, board=board))
    assert "on the board 'shelf': " in text
    assert "Make room on its disk" in text


def test_libraries_run_on_tvms_own_server(tiny_library, opened, farm, tmp_path):
    """It has no description and no peers; libraries still run."""
    network = networks.load(str(tiny_library.parent / "model.onnx"))
    foreign = None
    if shutil.which("ld.lld") and not triples.runs_here("aarch64-linux-gnu"):
        plan = api.plan(network, "arm", attrs={"board": "rk3399"})
        foreign = api.compile(plan, tmp_path / "foreign.so").path
    port = free_port()
    server = farm.start(
        [sys.executable, str(STOCK), str(port), "stock", str(free_port())],
        {"TVM_NUM_THREADS": str(opened.threads)},
    )
    server.expect("are up")
    end = time.monotonic() + LIMIT
    while not known(port):
        assert time.monotonic() < end
        time.sleep(0.1)
    with BoardLease(f"stock@127.0.0.1:{port}", wait=LIMIT) as board:
        assert board.described is None
        library = Library.open(tiny_library, board=board)
        inputs = opened.random_inputs()
        np.testing.assert_array_equal(library.run(inputs)[0], opened.run(inputs)[0])
        result = bench.bench(library, repeat=2, peers=remote_peer.parse("ort", board))
        if foreign is not None:
            text = refusal(lambda: Library.open(foreign, board=board))
            assert text.startswith("on the board 'stock': ")
            assert text.endswith("Compile it for the board")
        with pytest.raises(UsageError, match="there is no runtime to compare with"):
            remote_peer.parse("all", board)
    assert [run.runtime for run in result.runs] == ["tvmtune"]
    assert "on boards, peers need tvmtune serve" in result.notes[0]
    server.end()


class TestCommands:
    def test_bench(self, tiny_library, shared, tmp_path):
        done = tvmtune(
            *("bench", tiny_library, "--remote", "shelf", "--tracker", shared.tracker),
            *("--repeat", 2, "--check", "--vs", "onnxruntime", "--json", "report.json"),
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        assert "the output is right" in done.stderr
        assert "onnxruntime" in done.stdout
        assert (tmp_path / "report.json").read_text().count('"key": "shelf"') == 1

    def test_bench_of_a_wrong_library(self, wrong, shared, tmp_path):
        done = tvmtune(
            *("bench", wrong, "--remote", shared.key, "--repeat", 1, "--check"), cwd=tmp_path
        )
        assert done.returncode == 1
        assert "is wrong: output 'logits' is off by" in complaint(done.stderr)

    def test_run(self, tiny_library, shared, opened, tmp_path):
        done = tvmtune(
            "run", tiny_library, "--remote", shared.key, "--output", "y.npz", cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        want = opened.run(opened.random_inputs())[0]
        np.testing.assert_array_equal(np.load(tmp_path / "y.npz")["logits"], want)

    def test_complaints_are_one_line(self, tiny_library, shared, command_line):
        for words, code, text in [
            (("--remote", "none", "--tracker", shared.tracker), 1, "it has shelf"),
            (("--remote", f"a@{shared.tracker}", "--tracker", "b"), 2, "both name a tracker"),
            (("--remote", "a b"), 2, "cannot be the key of a board"),
            (("--remote", shared.key, "--wait", 0), 2, "--wait must be above 0"),
            (("--remote", shared.key, "--threads", 4096), 2, "the number of threads must be"),
        ]:
            ended, _, stderr = command_line("run", str(tiny_library), *map(str, words))
            assert ended == code, stderr
            assert text in complaint(stderr)

    def test_ctrl_c(self, tiny_library, shared, tmp_path):
        """Nothing is left of it here, and the board serves the next."""
        mark = str(tmp_path)
        process = subprocess.Popen(
            command("bench", tiny_library, "--remote", shared.key, "--repeat", 10_000_000),
            env=os.environ | {processes.MARK: mark},
            stderr=subprocess.PIPE,
            text=True,
        )
        end = time.monotonic() + LIMIT
        while shared.free():
            assert time.monotonic() < end
            time.sleep(0.1)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=LIMIT)
        assert process.returncode == 130, stderr
        assert stderr.strip() == "tvmtune: interrupted"
        assert not processes.after_a_while(mark)
        with BoardLease(shared.key, wait=LIMIT):
            pass
