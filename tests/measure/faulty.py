"""Build functions that fail on purpose or record calls; workers import them by name."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path
from typing import Any

from measure import calls
from tvmtune.machine import faults
from tvmtune.measure import local

MARK = "test.spoil"
"""Annotation of a block by which a schedule asks :func:`build` for one of :data:`KERNELS`."""

KERNELS = {
    "wrong": "y[v] = x[v] * T.float32(3.0)",
    "partial": "y[v // 2] = x[v // 2] * T.float32(2.0)",
    "endless": "y[0] = y[0] * T.float32(0.5) + x[0]",
    "crashing": "y[v + T.int64(1099511627776)] = x[v]",
}

PROGRAM = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((1024,), "float32"), y: T.Buffer((1024,), "float32")):
        for i in range(T.int64({extent})):
            with T.sblock("y"):
                v = T.axis.opaque(T.int64({extent}), i)
                T.reads(x[0:1024])
                T.writes(y[0:1024])
                {kernel}
"""


def refuse(mod: Any, target: dict[str, Any], options: dict[str, Any], directory: str) -> str:
    """Builds nothing."""
    raise RuntimeError("no kernel today")


def die(mod: Any, target: dict[str, Any], options: dict[str, Any], directory: str) -> str:
    """Takes its process down."""
    os.abort()


def sleep(mod: Any, target: dict[str, Any], options: dict[str, Any], directory: str) -> str:
    """Never ends."""
    import time

    while True:
        time.sleep(1)


def build(mod: Any, target: dict[str, Any], options: dict[str, Any], directory: str) -> str:
    """The real thing, unless the schedule carries :data:`MARK`."""
    from tvm.script import from_source

    text = mod.script()
    for name, kernel in KERNELS.items():
        if f'"{MARK}": "{name}"' in text:
            extent = 2**50 if name == "endless" else 1024
            mod = from_source(PROGRAM.format(extent=extent, kernel=kernel))
    return local.build(mod, target, options, directory)


NOTES = "notes.txt"
"""Lines ``WHAT BEGIN END`` in the measurer's directory: what was built or run, and when."""


def build_and_note(
    mod: Any, target: dict[str, Any], options: dict[str, Any], directory: str
) -> str:
    """The real thing; notes whether it was built as it will be shipped."""
    began = time.monotonic()
    path = local.build(mod, target, options, directory)
    _note(directory, "shipped" if options.get("shipped") else "built", began)
    return path


def run_and_note(artifact: str, args: Any, timing: Any, options: dict[str, Any]) -> list[float]:
    """The real thing, some 50 ms longer."""
    began = time.monotonic()
    time.sleep(0.05)
    seconds = local.run(artifact, args, timing, options)
    _note(str(Path(artifact).parent), "run", began)
    return seconds


def _note(directory: str, what: str, began: float) -> None:
    with (Path(directory) / NOTES).open("a") as file:
        file.write(f"{what} {began} {time.monotonic()}\n")


SPOILT = "spoilt.txt"
"""In the measurer's directory: a character for each build or run that was spoilt."""


def _spoil(directory: str, times: int) -> bool:
    """Whether this call should fail; only the first ``times`` of a measurer do."""
    path = Path(directory) / SPOILT
    if (path.stat().st_size if path.exists() else 0) >= times:
        return False
    with path.open("a") as file:
        file.write("1")
    return True


def _marked(mod: Any) -> bool:
    return MARK in mod.script()


def _build(mod: Any, target: Any, options: Any, directory: str) -> str:
    """The real thing, of the workload whatever the mark says."""
    return local.build(mod, target, options, directory)


def build_without_disk(mod: Any, target: Any, options: Any, directory: str) -> str:
    """Meets a full disk three times, if the schedule is marked."""
    if _marked(mod) and _spoil(directory, 3):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return _build(mod, target, options, directory)


def build_without_files(mod: Any, target: Any, options: Any, directory: str) -> str:
    """Leaks files three times, if the schedule is marked."""
    if _marked(mod) and _spoil(directory, 3):
        calls.run_out_of_files()
    return _build(mod, target, options, directory)


def build_without_linker(mod: Any, target: Any, options: Any, directory: str) -> str:
    """Has its linker fail on a full disk three times, if the schedule is marked."""
    if _marked(mod) and _spoil(directory, 3):
        calls.link_in_vain()
    return _build(mod, target, options, directory)


def build_without_space(mod: Any, target: Any, options: Any, directory: str) -> str:
    """Meets a full disk each time, if the schedule is marked."""
    if _marked(mod):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return _build(mod, target, options, directory)


def build_killed_once(mod: Any, target: Any, options: Any, directory: str) -> str:
    """Is killed the first time."""
    if _spoil(directory, 1):
        os.kill(os.getpid(), signal.SIGKILL)
    return _build(mod, target, options, directory)


def build_or_die_on_a_full_disk(mod: Any, target: Any, options: Any, directory: str) -> str:
    """As a compiler that ends without a word when it cannot write."""
    if faults.present(Path(directory))[0]:
        os._exit(1)
    return _build(mod, target, options, directory)


def run_killed_once(artifact: str, args: Any, timing: Any, options: dict[str, Any]) -> list[float]:
    if _spoil(str(Path(artifact).parent), 1):
        os.kill(os.getpid(), signal.SIGKILL)
    return local.run(artifact, args, timing, options)


def run_killed(artifact: str, args: Any, timing: Any, options: dict[str, Any]) -> list[float]:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def init_after_failures(options: dict[str, Any]) -> None:
    """As a driver that needs some time: fails four times, then sets the run worker up."""
    if _spoil(options["directory"], 4):
        raise OSError("the device does not answer")
    local.init(options)


def check_killed_once(artifact: str, reference: str, args: Any, options: dict[str, Any]) -> float:
    if _spoil(str(Path(artifact).parent), 1):
        os.kill(os.getpid(), signal.SIGKILL)
    return local.check(artifact, reference, args, options)


def check_killed_always(artifact: str, reference: str, args: Any, options: dict[str, Any]) -> float:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
