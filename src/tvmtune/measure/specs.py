"""Builders and runners for processors that LLVM compiles for, here or on a board: what backends
share."""

from __future__ import annotations

from tvmtune import system
from tvmtune.errors import TvmtuneError
from tvmtune.types import BuilderSpec, Device, RunnerSpec


def builder(device: Device) -> BuilderSpec:
    """Kernels compiled by TVM and linked by any linker for the device's machine.

    Raises :class:`TvmtuneError` if there is no such linker.
    """
    linker = system.find_linker(device.mtriple)
    if device.remote is None:
        return BuilderSpec(build="tvmtune.measure.local:build", options={"linker": linker})
    import tvm

    host = {"kind": "llvm", "mcpu": tvm.get_global_func("target.llvm_get_system_cpu")()}
    return BuilderSpec(
        build="tvmtune.measure.local:build",
        options={"linker": linker},
        reference=BuilderSpec.Reference(host, {"linker": system.find_linker()}),
    )


def runner(device: Device) -> RunnerSpec:
    """Kernels timed on this machine, or where the device is remote, on boards.

    Raises :class:`TvmtuneError` if this machine cannot run them and no board is named.
    """
    if device.remote is not None:
        return RunnerSpec(
            run="tvmtune.measure.remote:run",
            check="tvmtune.measure.remote:check",
            exclusive=False,
            options={
                "threads": device.threads,
                "device": device.runtime,
                "flush": "cache_flush_cpu_non_first_arg",
            },
        )
    if not system.runs_here(device.mtriple):
        raise TvmtuneError(
            f"this machine cannot run kernels for {device.model}: name its board with --remote KEY."
        )
    return RunnerSpec(
        peak="tvmtune.measure.peak:measure",
        baseline="tvmtune.measure.peak:baseline",
        run="tvmtune.measure.local:run",
        check="tvmtune.measure.local:check",
        init="tvmtune.measure.local:init",
        options={"threads": device.threads, "linker": system.find_linker()},
    )
