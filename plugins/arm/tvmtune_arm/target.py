"""What an ARM board's processor is, in TVM's words."""

from __future__ import annotations

from typing import Any

from tvmtune import attributes, system, threads
from tvmtune.boards import BOARDS, LINUX64, Board, cpu_target, find, named
from tvmtune.deploy import cpu_features
from tvmtune.errors import TvmtuneError, UsageError, nearest
from tvmtune.farm import describe, devices, protocol
from tvmtune.graph.spaces import RuleSpace
from tvmtune.types import Device

ATTRIBUTES = ("board", "mcpu", "mattr", "mtriple", "threads")
UNNAMED = Board("an aarch64 board", "generic", 4)
"""What is taken for granted of a board of which only some attributes are given."""


def describe_device(attrs: dict[str, Any], remote: str | None) -> Device:
    """The device for ``--target arm``.

    The board is the one that ``board`` names, else the one that the key of ``remote`` names, else this
    machine if it is an ARM one. ``mcpu``, ``mattr``, ``mtriple`` and ``threads`` win over what is known
    of it; ``mattr`` is added to it. Raises :class:`UsageError` for unknown names.
    """
    attributes.check(attrs, ATTRIBUTES)
    key = protocol.find(remote)[0] if remote else None
    name = _name(attrs, key)
    board = BOARDS[name] if name else UNNAMED
    mtriple = str(attrs.get("mtriple") or board.mtriple)
    if not mtriple.startswith(("aarch64", "arm64", "armv7", "armv8", "thumbv7")):
        raise UsageError(
            f"mtriple={mtriple} is no ARM system: give e.g. {LINUX64}, or another --target."
        )
    here = remote is None and name is None and system.runs_here(mtriple)
    count = _threads(attrs.get("threads"), board, here)
    given = [word for word in str(attrs.get("mattr") or "").split(",") if word]
    mcpu = _cpu(attrs.get("mcpu"), board, mtriple, here)
    target = cpu_target(mcpu, mtriple, count, [*board.mattr, *given])
    _check_features(target, given)
    return Device(
        backend="arm",
        target=target,
        threads=count,
        attrs={"board": name} if name else {},
        remote=remote,
        model=system.cpu_model() if here else board.model,
    )


def parameters(device: Device) -> dict[str, Any]:
    """``num_cores``, ``clusters`` (CPUs in each, the quickest first), ``features``, ``memory_bytes``.

    They are read from the board, or from this machine if it is one. Where the board cannot be reached
    there is a warning, and what is known by its name.
    """
    found: dict[str, Any] | None = None
    if device.remote is not None:
        found = devices.ask_if_there(device.remote)
    elif system.runs_here(str(device.target.get("mtriple", ""))):
        found = describe.describe()
    known = {"num_cores": device.threads, "clusters": [], "features": [], "memory_bytes": 0}
    if found is None:
        return known
    clusters = [len(group["cpus"]) for group in found.get("clusters", ())]
    told = {
        "num_cores": found.get("cpus"),
        "clusters": clusters,
        "features": found.get("features"),
        "memory_bytes": found.get("memory_bytes"),
    }
    return known | {name: value for name, value in told.items() if value}


def space(device: Device) -> RuleSpace:
    """TVM's rules for CPUs."""
    return RuleSpace(device.target)


def check_board(device: Device) -> None:
    """Raise :class:`TvmtuneError` if the board that is there cannot run code for the target.

    A board that is not there, or in use, is none: whoever waits for it will see.
    """
    if device.remote is None or (found := devices.ask_if_there(device.remote)) is None:
        return
    mtriple = str(device.target["mtriple"])
    key, cpu = device.key, found.get("cpu") or "not told"
    if not system.runs_on(mtriple, str(found.get("machine", mtriple))):
        raise TvmtuneError(
            f"the board '{key}' is {found['machine']} ({cpu}), and the target is {mtriple}: choose "
            "another board, or another --target."
        )
    lacking = cpu_features.lacking(cpu_features.required(device.target), found)
    if lacking:
        raise TvmtuneError(
            f"the board '{key}' lacks {', '.join(lacking)}, which the target (mcpu="
            f"{device.target['mcpu']}) uses. Its CPU is {cpu}: give --target-attr board= or mcpu= of "
            "what it is."
        )


def _name(attrs: dict[str, Any], key: str | None) -> str | None:
    """The board's name, or None where the attributes or this machine have to tell."""
    if attrs.get("board"):
        return named(str(attrs["board"]), "mcpu=NAME and threads=N")
    known = find(key) if key else None
    if known is not None:
        return known
    if attrs.get("mcpu") or (key is None and system.runs_here(LINUX64)):
        return None
    what = f"'{key}' names no board that is known: give" if key else "which board? Give"
    raise UsageError(
        f"{what} --target-attr board=NAME ({', '.join(sorted(BOARDS))}) or --target-attr mcpu=NAME."
    )


def _threads(given: Any, board: Board, here: bool) -> int:
    if given is None:
        return len(threads.quick_cpus()) if here else board.cores
    return threads.parse(given, here=here)


def _cpu(given: Any, board: Board, mtriple: str, ask_here: bool) -> str:
    import tvm

    if given is None:
        if ask_here:
            return str(tvm.get_global_func("target.llvm_get_system_cpu")())
        return board.mcpu
    system.check_processor(str(given), mtriple)
    return str(given)


def _check_features(target: dict[str, Any], given: list[str]) -> None:
    """Raise :class:`UsageError` for a feature that LLVM does not know: it would only be ignored."""
    import tvm

    for word in given:
        if word[0] not in "+-" or not word[1:]:
            raise UsageError(f"mattr={','.join(given)}: features are given as +NAME or -NAME.")
    wanted = [word[1:] for word in given if word[0] == "+"]
    if not wanted:
        return
    known = tvm.get_global_func("target.llvm_get_cpu_features")(tvm.target.Target(target))
    names = [str(name) for name in known]
    for name in wanted:
        if name not in names:
            raise UsageError(
                f"LLVM knows no feature '{name}' of {target['mtriple']}.{nearest(name, names)}"
            )
