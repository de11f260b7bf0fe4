"""What an ARM board's processor is, in TVM's words."""

from __future__ import annotations

import warnings
from typing import Any

from tvmtune import system, threads
from tvmtune.errors import TvmtuneError, UsageError, nearest
from tvmtune.farm import describe, protocol
from tvmtune.graph.spaces import RuleSpace
from tvmtune.types import Device
from tvmtune_arm import boards

ATTRIBUTES = ("board", "mcpu", "mattr", "mtriple", "threads")
GENERIC = boards.Board("an aarch64 board", "generic", 1)


def describe_device(attrs: dict[str, Any], remote: str | None) -> Device:
    """The device for ``--target arm``.

    The board is the one that ``board`` names, else the one that the key of ``remote`` names, else this
    machine if it is an ARM one. ``mcpu``, ``mattr``, ``mtriple`` and ``threads`` win over what is known
    of it. Raises :class:`UsageError` for unknown names.
    """
    for name in attrs:
        if name not in ATTRIBUTES:
            raise UsageError(
                f"target attribute '{name}' is not known.{nearest(name, [*ATTRIBUTES])}"
            )
    key = protocol.find(remote)[0] if remote else None
    board = _board(attrs, key)
    here = remote is None and system.runs_here(board.mtriple)
    count = _threads(attrs.get("threads"), board, here)
    mtriple = str(attrs.get("mtriple") or board.mtriple)
    mcpu = str(attrs.get("mcpu") or board.mcpu)
    _check_cpu(mcpu, mtriple)
    target: dict[str, Any] = {
        "kind": "llvm",
        "mtriple": mtriple,
        "mcpu": mcpu,
        "num-cores": count,
    }
    mattr = str(attrs["mattr"]).split(",") if attrs.get("mattr") else list(board.mattr)
    if mattr:
        target["mattr"] = mattr
    if mtriple.startswith("armv7"):
        target["mfloat-abi"] = "hard"
    return Device(
        backend="arm",
        target=target,
        threads=count,
        attrs={} if board is GENERIC else {"board": board.model},
        remote=remote,
        model=system.cpu_model() if here else board.model,
    )


def parameters(device: Device) -> dict[str, Any]:
    """Cores, clusters, features and memory: from the board if it can be reached, else from here if
    this is one, else what is known of the board by its name."""
    found: dict[str, Any] | None = None
    if device.remote is not None:
        found = _ask(device.remote)
    elif system.runs_here(str(device.target.get("mtriple", ""))):
        found = describe.describe()
    if found is None:
        return {"num_cores": device.threads}
    return {
        "num_cores": found["cpus"],
        "clusters": [len(group["cpus"]) for group in found["clusters"]],
        "features": found["features"],
        "memory_bytes": found["memory_bytes"],
    }


def space(device: Device) -> RuleSpace:
    """TVM's rules for CPUs. Those for ARM add int8 instructions whose results are wrong in TVM 0.27
    (sdot: every kernel that ran; neon: none was built)."""
    return RuleSpace(device.target, rules="llvm")


def _board(attrs: dict[str, Any], key: str | None) -> boards.Board:
    if attrs.get("board"):
        return boards.named(str(attrs["board"]))
    known = boards.by_name(key) if key else None
    if known is not None:
        return known
    if attrs.get("mcpu") or (key is None and system.runs_here(boards.LINUX64)):
        return GENERIC
    what = f"'{key}' names no board that is known" if key else "which board?"
    raise UsageError(
        f"{what}: give --target-attr board=NAME ({', '.join(sorted(boards.BOARDS))}) or "
        "--target-attr mcpu=NAME."
    )


def _threads(given: Any, board: boards.Board, here: bool) -> int:
    if given is None:
        return system.usable_cpus() if here else board.cores
    try:
        count = int(given)
    except ValueError:
        raise UsageError(f"threads={given} is not a number.") from None
    if count < 1:
        raise UsageError(f"threads={given}: at least one is needed.")
    return threads.choose(count, count) if here else count


def _check_cpu(mcpu: str, mtriple: str) -> None:
    import tvm

    if not tvm.get_global_func("target.llvm_is_valid_cpu")(mcpu, mtriple):
        target = tvm.target.Target({"kind": "llvm", "mtriple": mtriple})
        known = [str(n) for n in tvm.get_global_func("target.llvm_get_cpu_archlist")(target)]
        raise UsageError(f"LLVM knows no processor '{mcpu}' for {mtriple}.{nearest(mcpu, known)}")


def _ask(remote: str) -> dict[str, Any] | None:
    from tvmtune.farm.devices import ask

    try:
        return ask(remote)
    except TvmtuneError as error:
        warnings.warn(f"the board's parameters are not read: {error}", stacklevel=2)
        return None
