"""TVM targets for OpenCL devices: this machine's, a board's, or one known by name."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any

from tvmtune import target_attrs
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.machine import cpu_count, threads, triples
from tvmtune.machine.known_boards import (
    BOARDS,
    KnownBoard,
    board_name,
    host_target,
    require_board,
    triple_of,
)
from tvmtune.remote import protocol
from tvmtune.remote.client import boards
from tvmtune.types import Device
from tvmtune.workers import Workers
from tvmtune_mali import devices

LIMITS = ("max_threads_per_block", "max_shared_memory_per_block")
ATTRIBUTES = ("board", "mcpu", "mtriple", "threads", *LIMITS)
THREADS, LOCAL_MEMORY = 256, 32 << 10
"""Default work-items per group and bytes of local memory. Mali GPUs have as many; drivers for CPUs
report more than is efficient."""
REGISTERS = 2**31 - 1
"""Bytes of private memory per work-item: OpenCL reports no limit, and beyond its registers a kernel
only gets slower."""
DRIVER_TIMEOUT = 60.0
"""Deadline in seconds for this machine's driver to list its devices."""
CPU_ATTRIBUTES = "mtriple=TRIPLE of its CPU"
UNNAMED = KnownBoard("a board", "generic", 4, gpu="an OpenCL GPU", gpu_cores=4)
"""Assumed if only the system of a board is known."""


@dataclass(frozen=True)
class OpenClDevice:
    """An OpenCL device and its machine."""

    name: str
    cores: int
    threads: int
    """Maximum work-items per group."""
    local_memory: int
    memory: int
    machine: str
    cpus: int
    extensions: str = ""
    kind: str = "gpu"

    @staticmethod
    def of(device: dict[str, Any], machine: str, cpus: int) -> OpenClDevice:
        """``device`` as :func:`tvmtune_opencl.describe` describes it."""
        return OpenClDevice(
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

    def is_of(self, board: KnownBoard) -> bool:
        """Whether this is the GPU of that kind of board, and not another device under the same key."""
        return board.gpu.split("-")[0].lower() in self.name.lower()


def describe_device(name: str, attrs: dict[str, Any], remote: str | None) -> Device:
    """The device for ``--target mali`` or ``opencl``.

    The first device of this machine, or with ``remote`` a board's. An offline board can only be
    compiled for, and is known by ``board`` or by its key. ``mtriple``, ``mcpu`` and ``threads``
    (of the host's CPU) and the device's limits override that. Raises :class:`UsageError` for
    unknown names, :class:`TvmtuneError` if a board has no device. If this machine has none, the
    result is an ``assumed`` one.
    """
    target_attrs.check(attrs, ATTRIBUTES)
    key = protocol.split_remote(remote)[0] if remote else None
    name_of = (
        require_board(str(attrs["board"]), CPU_ATTRIBUTES)
        if attrs.get("board")
        else board_name(key or "")
    )
    if name_of is not None and not BOARDS[name_of].gpu:
        if attrs.get("board"):
            raise UsageError(f"the board '{name_of}' has no GPU that runs OpenCL")
        name_of = None
    board = BOARDS[name_of] if name_of else UNNAMED
    found: OpenClDevice | None = None
    assumed = ""
    if remote is not None:
        found = _of_the_board(remote, needed=name_of is None and "mtriple" not in attrs)
    elif not attrs.get("board") and not attrs.get("mtriple"):
        try:
            found = _of_this_machine()
        except TvmtuneError as error:
            assumed = str(error)
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
    # The limit in TVM's hand-written GPU kernels, such as its sorts.
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
        # The same whether the board was reachable or not, so that logs match.
        model=f"{board.gpu} ({board.model})" if name_of else model,
        absent=bool(assumed),
        assumed=assumed,
    )


def _of_this_machine() -> OpenClDevice:
    import tvm  # noqa: F401 - loads the add-on if it is built

    import tvmtune_opencl

    try:
        if not tvmtune_opencl.active():
            tvmtune_opencl.build()  # may take longer than DRIVER_TIMEOUT
        device = devices.check(_describe_in_worker())
    except TvmtuneError as error:
        raise TvmtuneError(
            f"{str(error).removesuffix('.')}. Or measure on a board: --remote KEY (tvmtune devices "
            "lists them); or only compile for one: --target-attr board=NAME."
        ) from None
    return OpenClDevice.of(device, platform.machine(), cpu_count.usable_cpus())


def _describe_in_worker() -> dict[str, Any]:
    """The result of :func:`tvmtune_opencl.describe`, from a separate process: a driver may crash, and a
    process that has used OpenCL must not be forked."""
    call = (devices.environment(),)
    with Workers(1) as workers:
        outcome = workers.map(
            "tvmtune_mali.devices:describe", [call], deadline=DRIVER_TIMEOUT, stage="run"
        )[0]
    if not outcome.ok:
        raise TvmtuneError(f"the OpenCL devices cannot be listed: {outcome.message}")
    found: dict[str, Any] = outcome.value
    return found


def _of_the_board(remote: str, *, needed: bool) -> OpenClDevice | None:
    """The board's device; None if the board cannot be asked and that is not ``needed``."""
    import tvmtune_opencl

    key = protocol.split_remote(remote)[0]
    reported = boards.ask(remote) if needed else boards.ask_if_there(remote)
    if reported is None:
        if needed:
            raise UsageError(
                f"TVM's own server serves the board '{key}' and cannot describe it: give "
                "--target-attr board=NAME or mtriple=TRIPLE, or serve it with tvmtune serve"
            )
        return None
    if trouble := boards.version_trouble(reported):
        raise TvmtuneError(f"the board '{key}' cannot be used: {trouble}")
    rows = [
        row.get("details") or tvmtune_opencl.from_attributes(row["index"], row)
        for row in reported.get("gpus", ())
        if row["kind"] == "opencl"
    ]
    if not rows:
        raise TvmtuneError(
            f"the board '{key}' has {boards.no_device('opencl', 'mali')}. On it, python -m "
            "tvmtune_opencl reports what is missing."
        )
    device = devices.check({"problem": "", "devices": rows})
    return OpenClDevice.of(device, str(reported["machine"]), int(reported["cpus"]))


def _triple(given: Any, board: KnownBoard, found: OpenClDevice | None, remote: str | None) -> str:
    """LLVM's triple of the machine that launches the kernels; empty for this one."""
    if found is None:
        return str(given or board.mtriple)
    if given:
        if not triples.runs_on(str(given), found.machine):
            raise UsageError(f"mtriple={given}: the machine of {found.name} is {found.machine}")
        return str(given)
    return triple_of(found.machine) if remote is not None else ""


def _limits(attrs: dict[str, Any], found: OpenClDevice | None) -> dict[str, int]:
    most = (found.threads, found.local_memory) if found else (THREADS, LOCAL_MEMORY)
    limits = {}
    for name, there, usual in zip(LIMITS, most, (THREADS, LOCAL_MEMORY), strict=True):
        limits[name] = min(there, usual)
        if name in attrs:
            limits[name] = target_attrs.number(name, attrs[name])
            if found and limits[name] > there:
                raise UsageError(f"{name}={attrs[name]}: {found.name} has {there}")
    return limits


def _threads(given: Any, board: KnownBoard, found: OpenClDevice | None, *, here: bool) -> int:
    if given is None:
        return found.cpus if found and board is UNNAMED else board.cores
    return threads.parse(given, here=here)


def _parameters(
    target: dict[str, Any], board: KnownBoard, found: OpenClDevice | None
) -> dict[str, Any]:
    """Hardware parameters, read from the device or known by its name, under the names of TVM's
    auto_scheduler; memory in bytes."""
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
