"""Builders and runners, here or on a board: what backends share."""

from __future__ import annotations

from typing import Any

from tvmtune import system
from tvmtune.errors import TvmtuneError
from tvmtune.measure import local
from tvmtune.types import BuilderSpec, Device, RunnerSpec


def builder(device: Device) -> BuilderSpec:
    """Kernels compiled by TVM and linked for the machine whose CPU calls them. Where they run elsewhere
    than on this machine's CPU, references are built for that.

    Raises :class:`TvmtuneError` if there is no linker.
    """
    options = {"linker": system.find_linker(device.mtriple)}
    reference = None
    if device.remote is not None or device.runtime != "cpu":
        import tvm

        host = {"kind": "llvm", "mcpu": tvm.get_global_func("target.llvm_get_system_cpu")()}
        reference = BuilderSpec.Reference(host, {"linker": system.find_linker()})
    return BuilderSpec("tvmtune.measure.local:build", options=options, reference=reference)


def runner(device: Device, *, flush: str = "", **different: Any) -> RunnerSpec:
    """Kernels timed on this machine, or where the device is remote, on boards.

    ``flush`` is TVM's name of what empties caches, by default for CPUs alone. ``different`` are fields
    of the :class:`RunnerSpec` for this machine that a backend wants otherwise; ``options`` are added.
    Raises :class:`TvmtuneError` if this machine cannot run the kernels and no board is named.
    """
    options: dict[str, Any] = {"threads": device.threads, "device": device.runtime}
    on_cpu = device.runtime == "cpu"
    if flush or on_cpu:
        options["flush"] = flush or local.FLUSH
    if device.remote is not None:
        return RunnerSpec(
            run="tvmtune.measure.remote:run",
            check="tvmtune.measure.remote:check",
            exclusive=False,
            options=options,
        )
    if not system.can_run(device) or (device.mtriple and not on_cpu):
        raise TvmtuneError(
            f"this machine cannot run kernels for {device.model}: name its board with --remote KEY."
        )
    spec: dict[str, Any] = {
        "run": "tvmtune.measure.local:run",
        "check": "tvmtune.measure.local:check",
        "init": "tvmtune.measure.local:init",
        "options": options | {"linker": system.find_linker()} | different.pop("options", {}),
    }
    if on_cpu:
        spec |= {
            "peak": "tvmtune.measure.peak:measure",
            "baseline": "tvmtune.measure.peak:baseline",
        }
    return RunnerSpec(**(spec | different))
