"""The device of ``--target vta``: a hardware configuration and the CPU beside it."""

from __future__ import annotations

from typing import Any

from tvmtune import target_attrs
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.machine import cpu_count, processor, threads, triples
from tvmtune.machine.known_boards import (
    BOARDS,
    KnownBoard,
    board_name,
    cpu_target,
    require_board,
    triple_of,
)
from tvmtune.remote import protocol
from tvmtune.remote.client import boards
from tvmtune.types import Device
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.timing.time_model import TimingConstants

ATTRIBUTES = ("config", "start-op", "stop-op", "board", "mtriple", "mcpu", "threads")
SIMULATOR = "sim"
CPU_ATTRIBUTES = "mtriple=TRIPLE and mcpu=NAME of its CPU"


def describe_device(name: str, attrs: dict[str, Any], remote: str | None) -> Device:
    """The device of ``--target vta``.

    Attributes: ``config``, a published configuration's name or the path of a ``vta_config.json``;
    ``start-op`` and ``stop-op``, the operators between which layers run on the accelerator; for the
    CPU ``board``, a board's name, or ``mtriple``, and ``mcpu`` and ``threads``. By default the CPU
    is this machine's, or with ``remote`` the board's, which is asked. Raises :class:`UsageError`
    for unknown attributes and invalid values.
    """
    target_attrs.check(attrs, ATTRIBUTES)
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
            # modelled times mean nothing without them
            "constants": TimingConstants.default().to_json(),
        },
        params=parameters(config),
        remote=remote,
        needs_init=True,
        model=f"VTA {config.bitstream} ({config.target}, times modelled)",
    )


def _cpu(attrs: dict[str, Any], remote: str | None) -> dict[str, Any]:
    """TVM's target for the CPU beside the accelerator."""
    name = require_board(str(attrs["board"]), CPU_ATTRIBUTES) if attrs.get("board") else None
    board, reported = BOARDS[name] if name else None, None
    if remote and not name and not attrs.get("mtriple"):
        board, reported = _remote_cpu(remote)
    here = not remote and not board and not attrs.get("mtriple")
    mtriple, mcpu, count = "", "", cpu_count.usable_cpus()
    if board:
        mtriple, mcpu, count = board.mtriple, board.mcpu, board.cores
    elif reported:
        machine = str(reported["machine"])
        mtriple = "" if triples.runs_here(machine) else triple_of(machine)
        mcpu, count = str(reported.get("mcpu") or ""), int(reported["cpus"])
    elif here:
        mcpu = processor.name()
    mtriple = str(attrs.get("mtriple") or mtriple)
    mcpu = str(attrs.get("mcpu") or mcpu)
    if mcpu:
        triples.check_processor(mcpu, mtriple)
    else:  # the baseline of the architecture
        mcpu = "generic" if mtriple and not mtriple.startswith("x86_64") else "x86-64"
    if "threads" in attrs:
        count = threads.parse(attrs["threads"], here=here)
    return cpu_target(mcpu, mtriple, count, board.mattr if board else ())


def _remote_cpu(remote: str) -> tuple[KnownBoard | None, dict[str, Any] | None]:
    """The known board that the key of ``remote`` names, or else what it reports about itself; a
    board may be served by a machine in front of it."""
    key = protocol.split_remote(remote)[0]
    name = board_name(key)
    reported = boards.ask_if_there(remote) if name else boards.ask(remote)
    if reported and (trouble := boards.version_trouble(reported)):
        raise TvmtuneError(f"the board '{key}' cannot be used: {trouble}")
    if name and (
        reported is None or triples.runs_on(BOARDS[name].mtriple, str(reported["machine"]))
    ):
        return BOARDS[name], None
    if reported is None:
        raise UsageError(
            f"the board '{key}' is served by TVM's own server, which reports no CPU: give "
            f"--target-attr board=NAME or {CPU_ATTRIBUTES}, or serve it with tvmtune serve"
        )
    return None, reported


def of(device: Device) -> Config:
    """The hardware configuration of a device."""
    return Config.parse(device.attrs["config"], "the device's configuration")


def parameters(config: Config) -> dict[str, Any]:
    """Hardware parameters: the core's shape, the memories' depths, and the time model's
    constants."""
    from tvmtune_vta.hardware.config import Memory

    memories = (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC, Memory.OUT)
    return {
        "bitstream": config.bitstream,
        "batch": config.batch,
        "block": config.block,
        **{f"{m.name.lower()}_depth": config.depth(m) for m in memories},
        **{f"model_{k}": v for k, v in TimingConstants.default().to_json().items()},
    }
