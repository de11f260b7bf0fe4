"""Start trackers, boards and clients as processes; build candidates that misbehave."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import processes
from cli.commands import command
from remote import emulated
from tvmtune.remote.protocol import Address

LIMIT = 90.0
"""Seconds after which anything that a test waits for counts as hanging."""


class Running:
    """A running command; collects its output lines."""

    def __init__(self, words: list[str], mark: str, folder: Path, env: dict[str, str]) -> None:
        self.mark = mark
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._seen = 0
        settings = {processes.MARK: mark, "TMPDIR": str(folder)}
        self.process = subprocess.Popen(
            words,
            env=os.environ | settings | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def expect(self, pattern: str, within: float = LIMIT) -> re.Match[str]:
        """Wait for a line that matches; each line is matched once, earlier ones are skipped."""
        end = time.monotonic() + within
        with self._news:
            while True:
                while self._seen < len(self.lines):
                    self._seen += 1
                    if found := re.search(pattern, self.lines[self._seen - 1]):
                        return found
                left = end - time.monotonic()
                assert left > 0, f"no '{pattern}' within {within:g} s in\n" + "".join(self.lines)
                self._news.wait(left)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code; checks that no process is left."""
        self.process.send_signal(number)
        code = self.process.wait(LIMIT)
        assert not processes.after_a_while(self.mark)
        self._listener.join(LIMIT)
        return code

    def children(self, module: str = "") -> list[int]:
        """Process ids of its descendants that run ``module``."""
        found = processes.marked(self.mark)
        return sorted(pid for pid, words in found.items() if module in words and pid != self.pid)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()


class Farm:
    """Starts trackers and boards for a test, and ends them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[Running] = []

    def tracker(self, port: int | None = None, *words: str) -> tuple[Running, Address]:
        address = Address("127.0.0.1", port or free_port())
        running = self.start(command("tracker", "--port", address.port, *words))
        running.expect("the tracker listens")
        return running, address

    def start_tracker(self, host: str, *words: str) -> tuple[Running, Address]:
        """A tracker that listens at ``host``, and its address from this machine."""
        address = Address("127.0.0.1", free_port())
        running = self.start(command("tracker", "--host", host, "--port", address.port, *words))
        running.expect("the tracker listens")
        return running, address

    def board(
        self, key: str, tracker: Address | None = None, *words: str, port: int | None = None
    ) -> tuple[Running, Address]:
        address = Address("127.0.0.1", port or free_port())
        running = self.start(self.serving(key, tracker, *words, port=address.port))
        running.expect("serving ")
        if tracker:
            running.expect("registered")
        return running, address

    @staticmethod
    def serving(
        key: str, tracker: Address | None = None, *words: str, port: int | None = None
    ) -> list[str]:
        """The command line of :meth:`board`."""
        where = ["--tracker", str(tracker)] if tracker else []
        return command("serve", "--key", key, "--port", port or free_port(), *where, *words)

    def emulated(
        self,
        key: str,
        tracker: Address | None = None,
        *words: str,
        cpu: str = "cortex-a72",
        path: Sequence[Path] = (),
    ) -> tuple[Running, Address]:
        """As :meth:`board`, for 64-bit ARM; ``path`` is added to its ``PYTHONPATH``."""
        address = Address("127.0.0.1", free_port())
        where = ["--tracker", str(tracker)] if tracker else []
        serve = [str(emulated.board()), "-m", "tvmtune.cli", "serve", "--key", key]
        serve += ["--port", str(address.port), *where, *words]
        env = emulated.environment(cpu)
        env["PYTHONPATH"] = os.pathsep.join([env["PYTHONPATH"], *map(str, path)])
        running = self.start(serve, env)
        running.expect("serving ")
        if tracker:
            running.expect("registered")
        return running, address

    def start(self, words: list[str], env: dict[str, str] | None = None) -> Running:
        mark = f"{self.folder}-{len(self._running)}"
        self._running.append(Running(words, mark, self.folder, env or {}))
        return self._running[-1]

    def close(self) -> None:
        """End everything that still runs; raises if a process or a file is left."""
        for running in reversed(self._running):
            if running.process.poll() is None:
                running.end()
            assert not processes.after_a_while(running.mark)
        left = [path for path in self.folder.iterdir() if path.name.startswith("tvmtune-")]
        assert not left


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


WITHOUT_TORCH = "from tvmtune import block_torch_import; block_torch_import.install()"
"""A line before ``import tvm``: without PyTorch it takes a third of the time."""

PRELUDE = """
import os, sys, time
{without_torch}
import numpy as np
import tvm
from tvm import rpc
def connect(timeout=0):
    return {connect}
def load(remote, path):
    remote.upload(path)
    return remote.load_module(os.path.basename(path))
def doubles(remote, library):
    x = tvm.runtime.tensor(np.arange(8, dtype="float32"), remote.cpu())
    y = tvm.runtime.tensor(np.zeros(8, "float32"), remote.cpu())
    load(remote, library)["main"](x, y)
    assert (y.numpy() == 2 * np.arange(8)).all()
    print("doubled", flush=True)
"""


def client(
    board: Address, key: str, code: str, *arguments: object, tracked: bool = False, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run ``code`` as a client of TVM's own, of a board or, if ``tracked``, of the tracker at
    ``board``."""
    words = client_command(board, key, code, *arguments, tracked=tracked)
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, **more)


@contextlib.contextmanager
def busy(
    board: Address, key: str, code: str, *arguments: object, tracked: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """:func:`client` while it runs; it is killed at the end."""
    words = client_command(board, key, code, *arguments, tracked=tracked)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def client_command(
    board: Address, key: str, code: str, *arguments: object, tracked: bool = False
) -> list[str]:
    if tracked:
        how = f"rpc.connect_tracker({board.host!r}, {board.port}).request({key!r}, "
        how += "session_timeout=timeout)"
    else:
        how = f"rpc.connect({board.host!r}, {board.port}, {key!r}, session_timeout=timeout)"
    return [
        sys.executable,
        "-c",
        PRELUDE.format(without_torch=WITHOUT_TORCH, connect=how) + code,
        *map(str, arguments),
    ]


WORK = "y[i] = x[i] * T.float32(2)"
CANDIDATES = {
    "sound": WORK,
    "abort": 'T.evaluate(T.call_extern("int32", "abort"))',
    "sigill": 'T.evaluate(T.call_extern("int32", "raise", 4))',
    # writes to the server's output first
    "sleep": 'T.evaluate(T.call_extern("int32", "write", 2, "asleep\\n", T.int64(7)))\n            '
    'T.evaluate(T.call_extern("int32", "sleep", 3600))',
    # 50 MB each time, and touched: mmap(..., PROT_READ | PROT_WRITE, PRIVATE | ANONYMOUS | POPULATE)
    "leak": 'T.evaluate(T.call_extern("handle", "mmap", T.int64(0), T.int64(50000000), 3, 0x8022, '
    "-1, T.int64(0)))",
}
"""The body of each candidate's loop over eight elements."""

_PROGRAM = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        T.func_attr({{"global_symbol": "main", "tirx.noalias": True}})
        for i in range(8):
            {body}
"""


_BUILD = """
import subprocess, sys
{without_torch}
import tvm
from tvm.script import from_source
from tvmtune.machine import linkers
target = {target!r}
def link(out, objects, *_, **__):
    linker = linkers.find_linker(target.get("mtriple", ""))
    subprocess.run([*linker, "-shared", "-o", out, *objects], check=True)
for name, program in {programs!r}.items():
    made = tvm.compile(from_source(program), target=target)
    made.export_library(sys.argv[1] + "/" + name + ".so", fcompile=link)
"""


def build(
    folder: Path, bodies: dict[str, str] = CANDIDATES, target: dict[str, Any] | None = None
) -> dict[str, Path]:
    """Build candidate libraries in ``folder``; returns their paths by name."""
    programs = {name: _PROGRAM.format(body=body) for name, body in bodies.items()}
    code = _BUILD.format(
        without_torch=WITHOUT_TORCH, target=target or {"kind": "llvm"}, programs=programs
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, timeout=LIMIT)
    return {name: folder / f"{name}.so" for name in bodies}
