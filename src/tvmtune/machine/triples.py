"""LLVM's target triples and processors: which of them this machine runs, which LLVM knows."""

from __future__ import annotations

import platform

from tvmtune.errors import UsageError, nearest
from tvmtune.types import Device


def runs_here(mtriple: str) -> bool:
    """Whether this machine runs code for an LLVM triple; empty means this machine's."""
    return not mtriple or runs_on(mtriple, platform.machine())


def runs_on(mtriple: str, machine: str) -> bool:
    """Whether a machine, as ``uname -m`` names it, runs code for an LLVM triple."""
    return processor(mtriple) == processor(machine)


def can_run(device: Device) -> bool:
    """Whether this machine runs a device's kernels."""
    return not device.absent and runs_here(device.mtriple)


def processor(triple: str) -> str:
    """The canonical name of the processor in a triple, or in the output of ``uname -m``."""
    name = triple.lower().split("-")[0]
    if name.startswith("armv") and "64" not in name:
        return "arm"
    return {"arm64": "aarch64", "amd64": "x86_64", "thumbv7a": "arm"}.get(name, name)


def check_processor(mcpu: str, mtriple: str = "") -> None:
    """Raise :class:`UsageError` unless LLVM knows a processor of the architecture of ``mtriple``
    (empty: this machine's); LLVM would silently compile for a generic one."""
    import tvm

    triple = mtriple or tvm.get_global_func("target.llvm_get_system_triple")()
    if tvm.get_global_func("target.llvm_is_valid_cpu")(mcpu, triple):
        return
    target = tvm.target.Target({"kind": "llvm", **({"mtriple": mtriple} if mtriple else {})})
    known = [str(name) for name in tvm.get_global_func("target.llvm_get_cpu_archlist")(target)]
    where = f" for {mtriple}" if mtriple else ""
    raise UsageError(f"LLVM has no processor '{mcpu}'{where}.{nearest(mcpu, known)}")
