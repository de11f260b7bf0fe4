"""What this machine's processor is, or a board's of the same kind, in TVM's words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvmtune import attributes
from tvmtune.deploy import cpu_features
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.farm.describe import features
from tvmtune.farm.protocol import find
from tvmtune.graph.spaces import RuleSpace
from tvmtune.system import check_processor, cpu_model, runs_here, usable_cpus
from tvmtune.threads import parse
from tvmtune.types import Device

ATTRIBUTES = ("mcpu", "mattr", "threads")
_V2 = {"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"}
_V3 = _V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}
_V4 = _V3 | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}
LEVELS = {"x86-64-v4": _V4, "x86-64-v3": _V3, "x86-64-v2": _V2}
"""What each level of x86-64 comprises (System V ABI, AMD64 supplement), under Linux's names."""


def describe(attrs: dict[str, Any], remote: str | None) -> Device:
    """The device for ``--target cpu``; ``mcpu``, ``mattr`` and ``threads`` may be given.

    ``remote`` names a board of the same kind as this machine; what is not given, it is asked for.
    Raises :class:`UsageError` for other attributes and for a processor that LLVM does not know,
    :class:`TvmtuneError` where the board does not answer or cannot be used.
    """
    import tvm

    attributes.check(attrs, ATTRIBUTES)
    found = _ask(remote) if remote and not {"mcpu", "threads"} <= attrs.keys() else None
    if remote is None:
        threads = parse(attrs["threads"], here=True) if "threads" in attrs else usable_cpus()
        mcpu = str(attrs.get("mcpu") or tvm.get_global_func("target.llvm_get_system_cpu")())
        params, model = caches(), cpu_model()
    else:
        given = attrs.get("threads") or _of(found)["cpus"]
        threads = parse(given, here=False)
        most = int(found["cpus"]) if found else threads
        if threads > most:
            raise UsageError(f"threads={threads}: too many, the board has {most}.")
        mcpu = str(attrs.get("mcpu") or _processor(_of(found)))
        params = {"num_cores": found["cpus"]} if found else {}
        model = str(found["cpu"]) if found else f"the boards '{find(remote)[0]}'"
    check_processor(mcpu)
    target: dict[str, Any] = {"kind": "llvm", "mcpu": mcpu, "num-cores": threads}
    if attrs.get("mattr"):
        target["mattr"] = str(attrs["mattr"]).split(",")
    if found:
        _check_features(target, found)
    return Device(
        backend="cpu", target=target, threads=threads, params=params, remote=remote, model=model
    )


def space(device: Device) -> RuleSpace:
    """TVM's rules for the target, with a default schedule for the processor's vector width."""
    return RuleSpace(device.target)


def caches() -> dict[str, Any]:
    """Cores, cache sizes in bytes and line size, as the kernel reports them."""
    found: dict[str, Any] = {"num_cores": usable_cpus()}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind = (index / "type").read_text().strip()
            level = (index / "level").read_text().strip()
            size = (index / "size").read_text().strip()
            line = (index / "coherency_line_size").read_text().strip()
        except OSError:
            continue
        if kind != "Instruction":
            found[f"l{level}_bytes"] = int(size.rstrip("K")) * 1024
            found["cache_line_bytes"] = int(line)
    return found


def _ask(remote: str) -> dict[str, Any] | None:
    """What a board says of itself, once it is clear that it will do; None if TVM's own server serves
    it."""
    from tvmtune.farm import devices

    found = devices.ask(remote)
    if found is None:
        return None
    key, machine = find(remote)[0], str(found["machine"])
    if not runs_here(machine):
        raise UsageError(
            f"the board '{key}' is another kind of machine ({machine}) than this one: choose its own "
            "target, e.g. --target arm."
        )
    trouble = devices.version_trouble(found)
    if trouble:
        raise TvmtuneError(f"the board '{key}' cannot be used: {trouble}.")
    return found


def _of(found: dict[str, Any] | None) -> dict[str, Any]:
    if found is None:
        raise UsageError(
            "TVM's own server serves this board, which says nothing of itself: give --target-attr "
            "mcpu=NAME and --target-attr threads=N, or serve it with tvmtune serve."
        )
    return found


def _processor(found: dict[str, Any]) -> str:
    """LLVM's name for a board's processor: its own LLVM's; on a board without one this machine's, if
    that has the same processor, or the level of x86-64 that it reaches."""
    import tvm

    if found.get("mcpu"):
        return str(found["mcpu"])
    told = set(found.get("features", ()))
    if found.get("cpu") == cpu_model() and told == set(features()):
        return str(tvm.get_global_func("target.llvm_get_system_cpu")())
    for level, needed in LEVELS.items():
        if needed <= told:
            return level
    return "x86-64"


def _check_features(target: dict[str, Any], found: dict[str, Any]) -> None:
    lacking = cpu_features.lacking(cpu_features.required(target), found)
    if lacking:
        raise UsageError(
            f"the board ({found['cpu']}) lacks {', '.join(lacking)}, which mcpu={target['mcpu']} "
            "uses: leave it out, or give --target-attr mcpu= of what the board is."
        )
