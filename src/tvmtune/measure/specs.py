"""The builder and runner specifications that backends share, for this machine and for boards."""

from __future__ import annotations

from typing import Any

from tvmtune.errors import TvmtuneError
from tvmtune.machine import linkers, processor, triples
from tvmtune.measure import local
from tvmtune.types import BuilderSpec, Device, RunnerSpec


def builder(device: Device) -> BuilderSpec:
    """A builder that compiles with TVM and links for the machine whose CPU calls the kernels. If
    kernels do not run on this machine's CPU, references are still built for it.

    Raises :class:`TvmtuneError` if there is no linker.
    """
    options = {"linker": linkers.find_linker(device.mtriple)}
    reference = None
    if device.remote is not None or device.runtime != "cpu":
        host = {"kind": "llvm", "mcpu": processor.name()}
        reference = BuilderSpec.Reference(host, {"linker": linkers.find_linker()})
    return BuilderSpec("tvmtune.measure.local:build", options=options, reference=reference)


def runner(device: Device, *, flush: str = "", **overrides: Any) -> RunnerSpec:
    """A runner that times kernels on this machine or, if the device is remote, on boards.

    ``flush`` names TVM's function that empties caches; by default only CPUs have one. ``overrides``
    replace fields of the :class:`RunnerSpec` for this machine; ``options`` are merged. Raises
    :class:`TvmtuneError` if this machine cannot run the kernels and no board is named.
    """
    options: dict[str, Any] = {"threads": device.threads, "device": device.runtime}
    on_cpu = device.runtime == "cpu"
    if flush or on_cpu:
        options["flush"] = flush or local.FLUSH
    if device.remote is not None:
        return RunnerSpec(
            run="tvmtune.measure.remote_runner:run",
            check="tvmtune.measure.remote_runner:check",
            exclusive=False,
            options=options,
        )
    if not triples.can_run(device) or (device.mtriple and not on_cpu):
        raise TvmtuneError(
            f"this machine cannot run kernels for {device.model}: name its board with --remote KEY"
        )
    spec: dict[str, Any] = {
        "run": "tvmtune.measure.local:run",
        "check": "tvmtune.measure.local:check",
        "init": "tvmtune.measure.local:init",
        "options": options | {"linker": linkers.find_linker()} | overrides.pop("options", {}),
    }
    if on_cpu:
        spec |= {
            "peak": "tvmtune.measure.peak:measure",
            "baseline": "tvmtune.measure.peak:baseline",
        }
    return RunnerSpec(**(spec | overrides))
