"""Functions that workers call in these tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_ready: dict[str, Any] = {}


def init(options: dict[str, Any]) -> None:
    _ready.update(options)


def initial(name: str) -> Any:
    return _ready[name]


def double(value: int) -> int:
    return 2 * value


def process(*_: int) -> int:
    return os.getpid()


def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def temporary_places() -> list[str]:
    """Where Python, C, and the processes that it starts put temporary files."""
    child = subprocess.run(["/bin/sh", "-c", "echo $TMPDIR"], capture_output=True, text=True)
    return [tempfile.gettempdir(), os.environ.get("TMPDIR", ""), child.stdout.strip()]


def surroundings(*names: str) -> tuple[str, list[str | None], list[str]]:
    """The working directory, and environment variables here and in a process that this one starts."""
    script = "; ".join(f'echo "${name}"' for name in names)
    child = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True)
    return str(Path.cwd()), [os.environ.get(name) for name in names], child.stdout.splitlines()


def take_all_memory() -> None:
    held = []
    while True:
        held.append(b"x" * (1 << 24))


def link_until_memory_ends() -> None:
    """As a linker that needs more memory than there is."""
    script = "held = []\nwhile True: held.append(b'x' * (1 << 24))"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def complain(message: str) -> None:
    raise ValueError(message)


def abort() -> None:
    os.write(2, b"the heap is in pieces\n")
    os.abort()


def touch_address_zero() -> None:
    import ctypes

    ctypes.string_at(0)


def die_by(name: str) -> None:
    os.kill(os.getpid(), getattr(signal, name))


def leave(code: int) -> None:
    os._exit(code)


def chatter() -> None:
    print("on standard output")
    print("on standard error", file=sys.stderr)
    os.write(1, b"straight to the terminal\n")
    sys.stdout.flush()


def start_child_and_wait(note: str) -> None:
    """Keep busy as a builder does whose compiler's driver waits for the compiler; note the numbers of
    their processes, the worker's first."""
    driver = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    compiler = int(driver.stdout.readline())
    Path(note).write_text(f"{os.getpid()} {driver.pid} {compiler}")
    time.sleep(600)


def start_child_unwatched(note: str, dies: bool) -> None:
    """:func:`start_child_and_wait` in a worker that has lost the shell that ends its children, as at a
    limit of processes or memory; dies at once if ``dies``."""
    from tvmtune.workers import worker_process

    shell = worker_process._child_reaper
    assert shell is not None
    shell.kill()
    shell.wait()
    child = subprocess.Popen(["sleep", "600"])
    Path(note).write_text(f"{os.getpid()} {child.pid}")
    if dies:
        os.abort()
    time.sleep(600)


class Unreadable:
    """A value that arrives, but cannot be made again there."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def answer_in_vain() -> Unreadable:
    return Unreadable()


def answer_with_noise() -> None:
    """Write into every socket, as code that mixes up its descriptors."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if entry.readlink().name.startswith("socket:"):
                os.write(int(entry.name), b"\x05" + bytes(7) + b"noise")
        except OSError:
            continue


def leave_behind() -> tuple[int, int]:
    """Start a process that breaks away from this worker's; its number, and the worker's parent's."""
    daemon = subprocess.Popen(["sleep", "600"], start_new_session=True)
    return daemon.pid, os.getppid()


def hang_if_wanted(options: dict[str, Any]) -> None:
    """An initialization that never ends while there is a file ``options["hang"]``."""
    while Path(options["hang"]).exists():
        time.sleep(0.1)


def fill_file(path: str) -> None:
    """Write until the disk is full."""
    with Path(path).open("wb") as file:
        while True:
            file.write(bytes(1 << 16))


def run_out_of_files() -> None:
    held = []
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))


def link_in_vain() -> None:
    """As a linker on a full disk."""
    script = "echo 'ld: final link failed: No space left on device' >&2; exit 1"
    subprocess.run(["sh", "-c", script], check=True, capture_output=True)


def start_and_sleep(note: str, seconds: float) -> int:
    """Note the worker's number, then sleep."""
    Path(note).write_text(str(os.getpid()))
    time.sleep(seconds)
    return os.getpid()


def size_of(data: bytes) -> int:
    return len(data)


def parent() -> tuple[int, int]:
    return os.getpid(), os.getppid()


def imported(module: str) -> bool:
    return module in sys.modules
