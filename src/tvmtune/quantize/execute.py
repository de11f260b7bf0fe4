"""Runs float graphs on this machine as the float part of a library runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from tvmtune.machine import cpu_count, processor
from tvmtune.types import Device, Prepared

if TYPE_CHECKING:
    import tvm

Run = Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]
"""A function from inputs by name to outputs."""


def compile_graph(prepared: Prepared, graph: tvm.IRModule) -> Run:
    """Compile ``graph``, which takes the inputs of ``prepared``'s network, with default schedules.

    It is compiled for the device's CPU if this machine can run that code, so that values equal those
    of a library; for this machine's CPU otherwise.
    """
    import tvm

    from tvmtune.library import export
    from tvmtune.machine import cpu_features
    from tvmtune.tasks.lower import lower

    target = dict(prepared.device.target)
    if not cpu_features.can_run(target, prepared.device.mtriple):
        target = {
            "kind": "llvm",
            "mcpu": processor.name(),
            "num-cores": cpu_count.usable_cpus(),
        }
    device = Device("cpu", target, prepared.device.threads)
    module = lower(Prepared(prepared.network, device, prepared.layout, graph), {}, device)
    machine = tvm.relax.VirtualMachine(export.build(module, device), tvm.cpu())
    inputs = prepared.network.inputs

    def run(values: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        result = machine["main"](*(tvm.runtime.tensor(values[spec.name]) for spec in inputs))
        return [each.numpy() for each in ([result] if hasattr(result, "numpy") else result)]

    return run
