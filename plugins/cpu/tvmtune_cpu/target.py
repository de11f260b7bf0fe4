"""What this machine's processor is, in TVM's words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvmtune.errors import UsageError, nearest
from tvmtune.graph.spaces import RuleSpace
from tvmtune.system import cpu_model, usable_cpus
from tvmtune.threads import choose
from tvmtune.types import Device

ATTRIBUTES = ("mcpu", "mattr", "threads")


def describe(attrs: dict[str, Any], remote: str | None) -> Device:
    """The device for ``--target cpu``; ``mcpu``, ``mattr`` and ``threads`` may be given.

    Raises :class:`UsageError` for other attributes, for a processor that LLVM does not know, and for
    a remote device: boards are another backend's.
    """
    import tvm

    if remote is not None:
        raise UsageError(
            "--target cpu measures on this machine; for a board choose its own target, e.g. arm."
        )
    for name in attrs:
        if name not in ATTRIBUTES:
            raise UsageError(
                f"target attribute '{name}' is not known.{nearest(name, [*ATTRIBUTES])}"
            )
    threads = _threads(attrs.get("threads"))
    mcpu = str(attrs.get("mcpu") or tvm.get_global_func("target.llvm_get_system_cpu")())
    triple = tvm.get_global_func("target.llvm_get_system_triple")()
    if not tvm.get_global_func("target.llvm_is_valid_cpu")(mcpu, triple):
        known = tvm.get_global_func("target.llvm_get_cpu_archlist")(tvm.target.Target("llvm"))
        raise UsageError(
            f"LLVM knows no processor '{mcpu}'.{nearest(mcpu, [str(name) for name in known])}"
        )
    target: dict[str, Any] = {"kind": "llvm", "mcpu": mcpu, "num-cores": threads}
    if attrs.get("mattr"):
        target["mattr"] = str(attrs["mattr"]).split(",")
    return Device(backend="cpu", target=target, threads=threads, params=caches(), model=cpu_model())


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


def _threads(given: Any) -> int:
    usable = usable_cpus()
    if given is None:
        return usable
    try:
        count = int(given)
    except ValueError:
        raise UsageError(f"threads={given} is not a number.") from None
    return choose(count, count)
