"""TVM targets for the CPUs of ARM boards."""

from __future__ import annotations

from typing import Any

from tvmtune import target_attrs
from tvmtune.errors import TvmtuneError, UsageError, nearest
from tvmtune.machine import cpu_count, cpu_features, describe, processor, threads, triples
from tvmtune.machine.known_boards import (
    BOARDS,
    LINUX64,
    KnownBoard,
    board_name,
    cpu_target,
    require_board,
)
from tvmtune.remote import protocol
from tvmtune.remote.client import boards
from tvmtune.types import Device

ATTRIBUTES = ("board", "mcpu", "mattr", "mtriple", "threads")
UNNAMED = KnownBoard("an aarch64 board", "generic", 4)
"""Assumed if only some attributes of a board are given."""


def describe_device(attrs: dict[str, Any], remote: str | None) -> Device:
    """The device for ``--target arm``.

    The board is the one that ``board`` names, else the one that the key of ``remote`` names, else this
    machine if it is an ARM one. ``mcpu``, ``mtriple`` and ``threads`` override what is known of it;
    ``mattr`` is added. Raises :class:`UsageError` for unknown names.
    """
    target_attrs.check(attrs, ATTRIBUTES)
    key = protocol.split_remote(remote)[0] if remote else None
    name = _name(attrs, key)
    board = BOARDS[name] if name else UNNAMED
    mtriple = str(attrs.get("mtriple") or board.mtriple)
    if not mtriple.startswith(("aarch64", "arm64", "armv7", "armv8", "thumbv7")):
        raise UsageError(
            f"mtriple={mtriple} is not an ARM system: give e.g. {LINUX64}, or another --target"
        )
    here = remote is None and name is None and triples.runs_here(mtriple)
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
        model=cpu_count.cpu_model() if here else board.model,
    )


def parameters(device: Device) -> dict[str, Any]:
    """``num_cores``, ``clusters`` (CPUs in each, the quickest first), ``features``, ``memory_bytes``.

    Read from the board, or from this machine if it is the target. If the board cannot be reached, warns
    and returns the values known by its name.
    """
    found: dict[str, Any] | None = None
    if device.remote is not None:
        found = boards.ask_if_there(device.remote)
    elif triples.runs_here(str(device.target.get("mtriple", ""))):
        found = describe.describe()
    known = {"num_cores": device.threads, "clusters": [], "features": [], "memory_bytes": 0}
    if found is None:
        return known
    clusters = [len(group["cpus"]) for group in found.get("clusters", ())]
    reported = {
        "num_cores": found.get("cpus"),
        "clusters": clusters,
        "features": found.get("features"),
        "memory_bytes": found.get("memory_bytes"),
    }
    return known | {name: value for name, value in reported.items() if value}


def check_board(device: Device) -> None:
    """Raise :class:`TvmtuneError` if the board cannot run code for the target.

    An offline or busy board passes: measuring waits for it.
    """
    if device.remote is None:
        return
    found = device.board or boards.ask_if_there(device.remote)
    if found is None:
        return
    mtriple = str(device.target["mtriple"])
    key, cpu = device.key, found.get("cpu") or "unknown"
    if not triples.runs_on(mtriple, str(found.get("machine", mtriple))):
        raise TvmtuneError(
            f"the board '{key}' is {found['machine']} ({cpu}), and the target is {mtriple}: choose "
            "another board, or another --target"
        )
    missing = cpu_features.missing_on_board(cpu_features.required(device.target), found)
    if missing:
        raise TvmtuneError(
            f"the board '{key}' lacks {', '.join(missing)}, which the target (mcpu="
            f"{device.target['mcpu']}) uses. Its CPU is {cpu}: give the board's own "
            "--target-attr board= or mcpu=."
        )


def _name(attrs: dict[str, Any], key: str | None) -> str | None:
    """The board's name, or None if the attributes or this machine describe it."""
    if attrs.get("board"):
        return require_board(str(attrs["board"]), "mcpu=NAME and threads=N")
    known = board_name(key) if key else None
    if known is not None:
        return known
    if attrs.get("mcpu") or (key is None and triples.runs_here(LINUX64)):
        return None
    what = f"'{key}' names no board that is known: give" if key else "which board? Give"
    raise UsageError(
        f"{what} --target-attr board=NAME ({', '.join(sorted(BOARDS))}) or --target-attr mcpu=NAME"
    )


def _threads(given: Any, board: KnownBoard, here: bool) -> int:
    if given is None:
        return len(threads.fast_cpus()) if here else board.cores
    return threads.parse(given, here=here)


def _cpu(given: Any, board: KnownBoard, mtriple: str, ask_here: bool) -> str:
    if given is None:
        if ask_here:
            return processor.name()
        return board.mcpu
    triples.check_processor(str(given), mtriple)
    return str(given)


def _check_features(target: dict[str, Any], given: list[str]) -> None:
    """Raise :class:`UsageError` for a feature that LLVM does not know: it would only be ignored."""
    import tvm

    for word in given:
        if word[0] not in "+-" or not word[1:]:
            raise UsageError(f"mattr={','.join(given)}: features are given as +NAME or -NAME")
    wanted = [word[1:] for word in given if word[0] == "+"]
    if not wanted:
        return
    known = tvm.get_global_func("target.llvm_get_cpu_features")(tvm.target.Target(target))
    names = [str(name) for name in known]
    for name in wanted:
        if name not in names:
            raise UsageError(
                f"LLVM has no feature '{name}' of {target['mtriple']}.{nearest(name, names)}"
            )
