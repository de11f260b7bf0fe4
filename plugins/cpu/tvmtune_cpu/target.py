"""TVM targets for this machine's CPU, or that of a board with the same architecture."""

from __future__ import annotations

from typing import Any

from tvmtune import target_attrs
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.machine import cpu_caches, cpu_features, processor
from tvmtune.machine.cpu_count import cpu_model, usable_cpus
from tvmtune.machine.threads import parse
from tvmtune.machine.triples import check_processor, runs_here
from tvmtune.remote.protocol import split_remote
from tvmtune.types import Device

ATTRIBUTES = ("mcpu", "mattr", "threads")
_V2 = {"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"}
_V3 = _V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}
_V4 = _V3 | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}
LEVELS = {"x86-64-v4": _V4, "x86-64-v3": _V3, "x86-64-v2": _V2}
"""Features of each x86-64 level (System V ABI, AMD64 supplement), under Linux's names."""


def describe_device(attrs: dict[str, Any], remote: str | None) -> Device:
    """The device for ``--target cpu``; ``mcpu``, ``mattr`` and ``threads`` may be given.

    ``remote`` names a board of the same architecture, which is asked for whatever is not given.
    Raises :class:`UsageError` for other attributes and for a processor that LLVM does not know,
    :class:`TvmtuneError` if the board does not answer or cannot be used.
    """
    target_attrs.check(attrs, ATTRIBUTES)
    found = _ask(remote) if remote and not {"mcpu", "threads"} <= attrs.keys() else None
    if remote is None:
        threads = parse(attrs["threads"], here=True) if "threads" in attrs else usable_cpus()
        mcpu = str(attrs.get("mcpu") or processor.name())
        params, model = caches(), cpu_model()
    else:
        given = attrs["threads"] if "threads" in attrs else _of(found)["cpus"]
        threads = parse(given, here=False)
        most = int(found["cpus"]) if found else threads
        if threads > most:
            raise UsageError(f"threads={threads}: too many, the board has {most}")
        mcpu = str(attrs.get("mcpu") or _processor(_of(found)))
        params = {"num_cores": found["cpus"]} if found else {}
        model = str(found["cpu"]) if found else f"the boards '{split_remote(remote)[0]}'"
    check_processor(mcpu)
    target: dict[str, Any] = {"kind": "llvm", "mcpu": mcpu, "num-cores": threads}
    if attrs.get("mattr"):
        target["mattr"] = str(attrs["mattr"]).split(",")
    if found:
        _check_features(target, found)
    return Device(
        backend="cpu", target=target, threads=threads, params=params, remote=remote, model=model
    )


def caches() -> dict[str, Any]:
    """Number of cores, cache sizes and line size in bytes, as the kernel reports them."""
    found: dict[str, Any] = {"num_cores": usable_cpus()}
    for cache in cpu_caches.of_cpu(0):
        found[f"l{cache.level}_bytes"] = cache.size
        found["cache_line_bytes"] = cache.line
    return found


def _ask(remote: str) -> dict[str, Any] | None:
    """A board's description, checked to be usable; None if TVM's own server serves it."""
    from tvmtune.remote.client import boards

    found = boards.ask(remote)
    if found is None:
        return None
    key, machine = split_remote(remote)[0], str(found["machine"])
    if not runs_here(machine):
        raise UsageError(
            f"the board '{key}' has a different architecture ({machine}) from this machine: choose "
            "its own target, e.g. --target arm"
        )
    trouble = boards.version_trouble(found)
    if trouble:
        raise TvmtuneError(f"the board '{key}' cannot be used: {trouble}")
    return found


def _of(found: dict[str, Any] | None) -> dict[str, Any]:
    if found is None:
        raise UsageError(
            "TVM's own server serves this board and cannot describe it: give --target-attr "
            "mcpu=NAME and --target-attr threads=N, or serve it with tvmtune serve"
        )
    return found


def _processor(found: dict[str, Any]) -> str:
    """LLVM's name for a board's processor, as the board's own LLVM reports it. On a board without LLVM,
    this machine's if both have the same processor, else the x86-64 level that it reaches."""
    if found.get("mcpu"):
        return str(found["mcpu"])
    reported = set(found.get("features", ()))
    if found.get("cpu") == cpu_model() and reported == set(cpu_features.available()):
        return processor.name()
    for level, needed in LEVELS.items():
        if needed <= reported:
            return level
    return "x86-64"


def _check_features(target: dict[str, Any], found: dict[str, Any]) -> None:
    missing = cpu_features.missing_on_board(cpu_features.required(target), found)
    if missing:
        raise UsageError(
            f"the board ({found['cpu']}) lacks {', '.join(missing)}, which mcpu={target['mcpu']} "
            "uses: omit it, or give the board's own --target-attr mcpu="
        )
