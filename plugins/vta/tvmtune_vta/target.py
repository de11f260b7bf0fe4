"""What ``--target vta`` means: a configuration of the hardware, and the CPU beside it."""

from __future__ import annotations

from typing import Any

from tvmtune import attributes, system, threads
from tvmtune.boards import BOARDS, Board, cpu_target, find, named, triple_of
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.farm import devices, protocol
from tvmtune.types import Device
from tvmtune_vta.clock import Constants
from tvmtune_vta.config import Config

ATTRIBUTES = ("config", "start-op", "stop-op", "board", "mtriple", "mcpu", "threads")
SIMULATOR = "sim"
OTHERWISE = "mtriple=TRIPLE and mcpu=NAME of its CPU"


def describe(name: str, attrs: dict[str, Any], remote: str | None) -> Device:
    """The device for ``--target vta``.

    Attributes: ``config``, the name of a published sample or the path of a ``vta_config.json``;
    ``start-op`` and ``stop-op``, between which layers go to the accelerator; of the CPU that does the
    rest ``board``, a board's name, or ``mtriple``, and ``mcpu`` and ``threads``. Without these it is
    this machine's, or with ``remote`` that of the boards, which are asked. Raises :class:`UsageError`
    for others and for values that cannot be.
    """
    attributes.check(attrs, ATTRIBUTES)
    config = Config.find(str(attrs.get("config", SIMULATOR)))
    target = _cpu(attrs, remote)
    return Device(
        backend="vta",
        target=target,
        threads=int(target["num-cores"]),
        attrs={
            "config": config.as_dict(),
            "start_op": attrs.get("start-op"),
            "stop_op": attrs.get("stop-op"),
            # a time is worth nothing without what the model took for granted
            "constants": Constants.published().to_json(),
        },
        params=parameters(config),
        remote=remote,
        needs_init=True,
        model=f"VTA {config.bitstream} ({config.target}, times modelled)",
    )


def _cpu(attrs: dict[str, Any], remote: str | None) -> dict[str, Any]:
    """TVM's target of the CPU beside the accelerator."""
    import tvm

    name = named(str(attrs["board"]), OTHERWISE) if attrs.get("board") else None
    board, told = BOARDS[name] if name else None, None
    if remote and not name and not attrs.get("mtriple"):
        board, told = _boards_cpu(remote)
    here = not remote and not board and not attrs.get("mtriple")
    mtriple, mcpu, count = "", "", system.usable_cpus()
    if board:
        mtriple, mcpu, count = board.mtriple, board.mcpu, board.cores
    elif told:
        there = str(told["machine"])
        mtriple = "" if system.runs_here(there) else triple_of(there)
        mcpu, count = str(told.get("mcpu") or ""), int(told["cpus"])
    elif here:
        mcpu = str(tvm.get_global_func("target.llvm_get_system_cpu")())
    mtriple = str(attrs.get("mtriple") or mtriple)
    mcpu = str(attrs.get("mcpu") or mcpu)
    if mcpu:
        system.check_processor(mcpu, mtriple)
    else:  # any of the kind will do
        mcpu = "generic" if mtriple and not mtriple.startswith("x86_64") else "x86-64"
    if "threads" in attrs:
        count = threads.parse(attrs["threads"], here=here)
    return cpu_target(mcpu, mtriple, count, board.mattr if board else ())


def _boards_cpu(remote: str) -> tuple[Board | None, dict[str, Any] | None]:
    """The board that the key of ``remote`` names, or else what it says of itself, if it is another
    machine: one may stand in front of the board."""
    key = protocol.find(remote)[0]
    name = find(key)
    told = devices.ask_if_there(remote) if name else devices.ask(remote)
    if told and (trouble := devices.version_trouble(told)):
        raise TvmtuneError(f"the board '{key}' cannot be used: {trouble}.")
    if name and (told is None or system.runs_on(BOARDS[name].mtriple, str(told["machine"]))):
        return BOARDS[name], None
    if told is None:
        raise UsageError(
            f"TVM's own server serves the board '{key}', which says nothing of itself: give "
            f"--target-attr board=NAME or {OTHERWISE}, or serve it with tvmtune serve."
        )
    return None, told


def of(device: Device) -> Config:
    """The configuration that a device has."""
    return Config.parse(device.attrs["config"], "the device's configuration")


def parameters(config: Config) -> dict[str, Any]:
    """What there is on the chip: shape of the core, elements and bytes of each memory, and the
    model's constants."""
    from tvmtune_vta.config import Memory

    memories = (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC, Memory.OUT)
    return {
        "bitstream": config.bitstream,
        "batch": config.batch,
        "block": config.block,
        **{f"{m.name.lower()}_depth": config.depth(m) for m in memories},
        **{f"model_{k}": v for k, v in Constants.published().to_json().items()},
    }
