"""What an OpenCL device is, in TVM's words: one of this machine, of a board, or one known by name."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from typing import Any

from tvmtune import system, threads
from tvmtune.boards import BOARDS, LINUX64, Board, find, named
from tvmtune.errors import TvmtuneError, UsageError, nearest
from tvmtune.farm import devices, protocol
from tvmtune.types import Device
from tvmtune.workers import Workers

LIMITS = ("max_threads_per_block", "max_shared_memory_per_block")
ATTRIBUTES = ("board", "mcpu", "mtriple", "threads", *LIMITS)
THREADS, LOCAL_MEMORY = 256, 32 << 10
"""Threads in a group, and bytes of local memory, that are used unless more are asked for. Mali GPUs
have as many; drivers for CPUs claim more than does them good."""
REGISTERS = 2**31 - 1
"""Bytes of private memory that a thread may have: OpenCL tells no limit, and beyond its registers a
kernel only gets slower."""
LOOK = 60.0
"""Seconds that this machine's driver may take to list its devices."""
UNNAMED = Board("a board", "generic", 4, gpu="Mali", gpu_cores=4)
"""What is taken for granted of one of which nothing is known but its system."""


@dataclass(frozen=True)
class Found:
    """An OpenCL device, and the machine that it is in."""

    name: str
    cores: int
    threads: int
    """The most work-items in a group."""
    local_memory: int
    memory: int
    machine: str
    cpus: int
    extensions: str = ""
    kind: str = "gpu"


def describe_device(name: str, attrs: dict[str, Any], remote: str | None) -> Device:
    """The device for ``--target mali`` or ``opencl``.

    It is the first one of this machine, or with ``remote`` that of a board, which is asked; what
    cannot be asked is known from ``board``, or from the key, and compiled for. ``mtriple`` and
    ``mcpu`` (of the CPU beside it), ``threads`` (of that CPU) and the device's limits win over
    that. Raises :class:`UsageError` for unknown names, :class:`TvmtuneError` where there is no device.
    """
    for word in attrs:
        if word not in ATTRIBUTES:
            raise UsageError(
                f"target attribute '{word}' is not known.{nearest(word, [*ATTRIBUTES])}"
            )
    key = protocol.find(remote)[0] if remote else None
    board_name = named(str(attrs["board"])) if attrs.get("board") else find(key or "")
    if board_name is not None and not BOARDS[board_name].gpu:
        if attrs.get("board"):
            raise UsageError(f"the board '{board_name}' has no GPU that runs OpenCL.")
        board_name = None
    board = BOARDS[board_name] if board_name else UNNAMED
    found: Found | None
    if remote is not None:
        found = _of_the_board(remote, needed=board_name is None and "mtriple" not in attrs)
    elif attrs.get("board") or attrs.get("mtriple"):
        found = None
    else:
        found = _of_this_machine()
    mtriple = _triple(attrs.get("mtriple"), board, found, remote)
    host: dict[str, Any] = {"kind": "llvm", "mcpu": _cpu(attrs.get("mcpu"), mtriple)}
    if mtriple:
        host["mtriple"] = mtriple
    target: dict[str, Any] = {
        "kind": "opencl",
        **({"device": "mali"} if name == "mali" else {}),
        **_limits(attrs, found),
        "thread_warp_size": 1,
        "host": host,
    }
    return Device(
        backend=name,
        target=target,
        threads=_threads(attrs.get("threads"), board, found, here=remote is None and not mtriple),
        attrs={"board": board_name} if board_name else {},
        params=_parameters(target, board, found),
        remote=remote,
        runtime="opencl",
        model=found.name if found else f"{board.gpu} ({board.model})",
    )


def devices_here() -> dict[str, Any]:
    """What :func:`tvmtune_opencl.describe` says, found out in a process of its own: a driver may crash,
    and a process that has used OpenCL must not be forked.

    Raises :class:`TvmtuneError` if it takes the process down or gives no answer.
    """
    with Workers(1) as workers:
        outcome = workers.map("tvmtune_opencl:describe", [()], deadline=LOOK, stage="run")[0]
    if not outcome.ok:
        raise TvmtuneError(f"the OpenCL devices cannot be listed: {outcome.message}")
    found: dict[str, Any] = outcome.value
    return found


def check_device(found: dict[str, Any]) -> dict[str, Any]:
    """The first device of what :func:`tvmtune_opencl.describe` says.

    Raises :class:`TvmtuneError` if there is none, or none of OpenCL 1.2.
    """
    if found["problem"]:
        raise TvmtuneError(found["problem"].removesuffix("."))
    device: dict[str, Any] = found["devices"][0]
    version = re.match(r"OpenCL (\d+)\.(\d+)", device["version"])
    if version and (int(version[1]), int(version[2])) < (1, 2):
        raise TvmtuneError(f"{device['name']} has {version[0]}, and 1.2 is needed")
    return device


def _of_this_machine() -> Found:
    import tvmtune_opencl

    tvmtune_opencl.build()  # may take longer than a look
    try:
        device = check_device(devices_here())
    except TvmtuneError as error:
        raise TvmtuneError(
            f"{error}. Or measure on a board: --remote KEY (tvmtune devices lists them); or only "
            "compile for one: --target-attr board=NAME."
        ) from None
    return _found(device, platform.machine(), len(threads.quick_cpus()))


def _of_the_board(remote: str, *, needed: bool) -> Found | None:
    """None where the board says nothing of itself, and that is not ``needed``."""
    told = devices.ask(remote)
    key = protocol.find(remote)[0]
    if told is None:
        if needed:
            raise UsageError(
                f"TVM's own server serves the board '{key}', which says nothing of itself: give "
                "--target-attr board=NAME or mtriple=TRIPLE, or serve it with tvmtune serve."
            )
        return None
    trouble = devices.version_trouble(told)
    if trouble:
        raise TvmtuneError(f"the board '{key}' cannot be used: {trouble}.")
    rows = [row["details"] for row in told.get("gpus", ()) if row.get("details")]
    if not any(row["kind"] == "opencl" for row in told.get("gpus", ())) or not rows:
        raise TvmtuneError(
            f"the board '{key}' has no OpenCL device that TVM can use. There, run tvmtune doctor "
            "--build, which says what is missing, and serve it with tvmtune serve --target mali."
        )
    device = check_device({"problem": "", "devices": rows})
    return _found(device, str(told["machine"]), int(told["cpus"]))


def _found(device: dict[str, Any], machine: str, cpus: int) -> Found:
    return Found(
        name=device["name"],
        cores=device["compute_units"],
        threads=device["work_group"],
        local_memory=device["local_memory_bytes"],
        memory=device["memory_bytes"],
        machine=machine,
        cpus=cpus,
        extensions=device["extensions"],
        kind=device["kind"],
    )


def _triple(given: Any, board: Board, found: Found | None, remote: str | None) -> str:
    """LLVM's triple of the machine that calls the kernels; empty for this one."""
    if found is None:
        return str(given or board.mtriple)
    if given:
        if not system.runs_on(str(given), found.machine):
            raise UsageError(f"mtriple={given}: the machine of {found.name} is {found.machine}.")
        return str(given)
    if remote is None:
        return ""
    return LINUX64 if system.runs_on(LINUX64, found.machine) else f"{found.machine}-linux-gnu"


def _cpu(given: Any, mtriple: str) -> str:
    """The host's part only launches kernels: any processor of the family will do."""
    import tvm

    triple = mtriple or str(tvm.get_global_func("target.llvm_get_system_triple")())
    if given is None:
        return "x86-64" if triple.startswith("x86_64") else "generic"
    if not tvm.get_global_func("target.llvm_is_valid_cpu")(str(given), triple):
        raise UsageError(f"LLVM knows no processor '{given}' for {triple}.")
    return str(given)


def _limits(attrs: dict[str, Any], found: Found | None) -> dict[str, int]:
    most = (found.threads, found.local_memory) if found else (THREADS, LOCAL_MEMORY)
    limits = {}
    for name, there, usual in zip(LIMITS, most, (THREADS, LOCAL_MEMORY), strict=True):
        limits[name] = min(there, usual)
        if name in attrs:
            limits[name] = _number(name, attrs[name])
            if found and limits[name] > there:
                raise UsageError(f"{name}={attrs[name]}: {found.name} has {there}.")
    return limits


def _threads(given: Any, board: Board, found: Found | None, *, here: bool) -> int:
    if given is None:
        return found.cpus if found else board.cores
    count = _number("threads", given)
    return threads.choose(count, count) if here else count


def _number(name: str, given: Any) -> int:
    try:
        count = int(given)
    except ValueError:
        raise UsageError(f"{name}={given} is not a number.") from None
    if count < 1:
        raise UsageError(f"{name}={given}: at least 1 is needed.")
    return count


def _parameters(target: dict[str, Any], board: Board, found: Found | None) -> dict[str, Any]:
    """Read from the device, or known of it by its name; under the names that TVM's auto_scheduler had
    for them, memory in bytes."""
    return {
        "num_cores": found.cores if found else board.gpu_cores,
        "vector_unit_bytes": 16,
        "cache_line_bytes": 64,
        "max_shared_memory_per_block": target["max_shared_memory_per_block"],
        "max_local_memory_per_block": REGISTERS,
        "max_threads_per_block": target["max_threads_per_block"],
        "max_vthread_extent": 1,
        "warp_size": 1,
        "memory_bytes": found.memory if found else 0,
        "extensions": sorted(found.extensions.split()) if found else [],
        "kind": found.kind if found else "gpu",
    }
