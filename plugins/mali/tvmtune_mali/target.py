"""What an OpenCL device is, in TVM's words: one of this machine, of a board, or one known by name."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any

from tvmtune import attributes, system, threads
from tvmtune.boards import BOARDS, Board, find, host_target, named, triple_of
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.farm import devices as boards_devices
from tvmtune.farm import protocol
from tvmtune.types import Device
from tvmtune.workers import Workers
from tvmtune_mali import devices

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
OTHERWISE = "mtriple=TRIPLE of its CPU"
UNNAMED = Board("a board", "generic", 4, gpu="an OpenCL GPU", gpu_cores=4)
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

    @staticmethod
    def of(device: dict[str, Any], machine: str, cpus: int) -> Found:
        """``device`` as :func:`tvmtune_opencl.describe` describes it."""
        return Found(
            name=device["name"],
            cores=device["compute_units"],
            threads=device["work_group"] or THREADS,
            local_memory=device["local_memory_bytes"],
            memory=device["memory_bytes"],
            machine=machine,
            cpus=cpus,
            extensions=device["extensions"],
            kind=device["kind"],
        )

    def is_of(self, board: Board) -> bool:
        """Whether it is the GPU that such a board has, not another one under its key."""
        return board.gpu.split("-")[0].lower() in self.name.lower()


def describe_device(name: str, attrs: dict[str, Any], remote: str | None) -> Device:
    """The device for ``--target mali`` or ``opencl``.

    It is the first one of this machine, or with ``remote`` that of a board, which is asked; what
    cannot be asked is known from ``board``, or from the key, and compiled for. ``mtriple`` and
    ``mcpu`` (of the CPU beside it), ``threads`` (of that CPU) and the device's limits win over
    that. Raises :class:`UsageError` for unknown names, :class:`TvmtuneError` where there is no device.
    """
    attributes.check(attrs, ATTRIBUTES)
    key = protocol.find(remote)[0] if remote else None
    name_of = named(str(attrs["board"]), OTHERWISE) if attrs.get("board") else find(key or "")
    if name_of is not None and not BOARDS[name_of].gpu:
        if attrs.get("board"):
            raise UsageError(f"the board '{name_of}' has no GPU that runs OpenCL.")
        name_of = None
    board = BOARDS[name_of] if name_of else UNNAMED
    found: Found | None = None
    if remote is not None:
        found = _of_the_board(remote, needed=name_of is None and "mtriple" not in attrs)
    elif not attrs.get("board") and not attrs.get("mtriple"):
        found = _of_this_machine()
    if found is not None and not found.is_of(board):
        name_of, board = None, UNNAMED
    mtriple = _triple(attrs.get("mtriple"), board, found, remote)
    target = {
        "kind": "opencl",
        **({"device": "mali"} if name == "mali" else {}),
        **_limits(attrs, found),
        "thread_warp_size": 1,
        "host": host_target(attrs.get("mcpu"), mtriple),
    }
    # What TVM's own kernels for GPUs, such as its sorts, take for the limit.
    target["max_num_threads"] = target["max_threads_per_block"]
    model = found.name if found else board.gpu
    return Device(
        backend=name,
        target=target,
        threads=_threads(attrs.get("threads"), board, found, here=remote is None and not mtriple),
        attrs={"board": name_of} if name_of else {},
        params=_parameters(target, board, found),
        remote=remote,
        runtime="opencl",
        # The same for a board that was asked and for one that could not be: so are its logs.
        model=f"{board.gpu} ({board.model})" if name_of else model,
    )


def _of_this_machine() -> Found:
    import tvm  # noqa: F401 - loads the add-on where it is there

    import tvmtune_opencl

    try:
        if not tvmtune_opencl.active():
            tvmtune_opencl.build()  # may take longer than a look
        device = devices.check(_look())
    except TvmtuneError as error:
        raise TvmtuneError(
            f"{str(error).removesuffix('.')}. Or measure on a board: --remote KEY (tvmtune devices "
            "lists them); or only compile for one: --target-attr board=NAME."
        ) from None
    return Found.of(device, platform.machine(), system.usable_cpus())


def _look() -> dict[str, Any]:
    """What :func:`tvmtune_opencl.describe` says, in a process of its own: a driver may crash, and a
    process that has used OpenCL must not be forked."""
    call = (devices.environment(),)
    with Workers(1) as workers:
        outcome = workers.map("tvmtune_mali.devices:describe", [call], deadline=LOOK, stage="run")[
            0
        ]
    if not outcome.ok:
        raise TvmtuneError(f"the OpenCL devices cannot be listed: {outcome.message}")
    found: dict[str, Any] = outcome.value
    return found


def _of_the_board(remote: str, *, needed: bool) -> Found | None:
    """None where the board cannot be asked, and that is not ``needed``."""
    import tvmtune_opencl

    key = protocol.find(remote)[0]
    told = boards_devices.ask(remote) if needed else boards_devices.ask_if_there(remote)
    if told is None:
        if needed:
            raise UsageError(
                f"TVM's own server serves the board '{key}', which says nothing of itself: give "
                "--target-attr board=NAME or mtriple=TRIPLE, or serve it with tvmtune serve."
            )
        return None
    if trouble := boards_devices.version_trouble(told):
        raise TvmtuneError(f"the board '{key}' cannot be used: {trouble}.")
    rows = [
        row.get("details") or tvmtune_opencl.from_attributes(row["index"], row)
        for row in told.get("gpus", ())
        if row["kind"] == "opencl"
    ]
    if not rows:
        raise TvmtuneError(
            f"the board '{key}' has {boards_devices.no_device('opencl', 'mali')}. On it, python -m "
            "tvmtune_opencl says what is missing."
        )
    device = devices.check({"problem": "", "devices": rows})
    return Found.of(device, str(told["machine"]), int(told["cpus"]))


def _triple(given: Any, board: Board, found: Found | None, remote: str | None) -> str:
    """LLVM's triple of the machine that calls the kernels; empty for this one."""
    if found is None:
        return str(given or board.mtriple)
    if given:
        if not system.runs_on(str(given), found.machine):
            raise UsageError(f"mtriple={given}: the machine of {found.name} is {found.machine}.")
        return str(given)
    return triple_of(found.machine) if remote is not None else ""


def _limits(attrs: dict[str, Any], found: Found | None) -> dict[str, int]:
    most = (found.threads, found.local_memory) if found else (THREADS, LOCAL_MEMORY)
    limits = {}
    for name, there, usual in zip(LIMITS, most, (THREADS, LOCAL_MEMORY), strict=True):
        limits[name] = min(there, usual)
        if name in attrs:
            limits[name] = attributes.number(name, attrs[name])
            if found and limits[name] > there:
                raise UsageError(f"{name}={attrs[name]}: {found.name} has {there}.")
    return limits


def _threads(given: Any, board: Board, found: Found | None, *, here: bool) -> int:
    if given is None:
        return found.cpus if found and board is UNNAMED else board.cores
    return threads.parse(given, here=here)


def _parameters(target: dict[str, Any], board: Board, found: Found | None) -> dict[str, Any]:
    """Read from the device, or known of it by its name; under the names that TVM's auto_scheduler had
    for them, memory in bytes."""
    return {
        "num_cores": (found and found.cores) or board.gpu_cores,
        "vector_unit_bytes": 16,
        "cache_line_bytes": 64,
        "max_shared_memory_per_block": target["max_shared_memory_per_block"],
        "max_local_memory_per_block": REGISTERS,
        "max_threads_per_block": target["max_threads_per_block"],
        "max_vthread_extent": 1,
        "warp_size": 1,
        "memory_bytes": found.memory if found else 0,
        "extensions": sorted(found.extensions.split()) if found else [],
        "driver": found.name if found else "",
        "device_type": found.kind if found else "gpu",
    }
