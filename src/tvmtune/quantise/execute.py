"""Run a graph of floats on this machine, as the float part of a library runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from tvmtune import system
from tvmtune.types import Device, Prepared

if TYPE_CHECKING:
    import tvm

Run = Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]


def compiled(prepared: Prepared, graph: tvm.IRModule) -> Run:
    """``graph``, which takes the inputs of the network of ``prepared``, with default schedules: for the
    device's CPU if this machine runs code for that, so that its values are those of a library."""
    import tvm

    from tvmtune.deploy import cpu_features, export
    from tvmtune.graph.lower import lower

    target = dict(prepared.device.target)
    if not system.runs_here(prepared.device.mtriple) or cpu_features.missing(
        cpu_features.required(target)
    ):
        target = {
            "kind": "llvm",
            "mcpu": tvm.get_global_func("target.llvm_get_system_cpu")(),
            "num-cores": system.usable_cpus(),
        }
    device = Device("cpu", target, prepared.device.threads)
    module = lower(Prepared(prepared.network, device, prepared.layout, graph), {}, device)
    machine = tvm.relax.VirtualMachine(export.build(module, device), tvm.cpu())
    inputs = prepared.network.inputs

    def run(values: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        found = machine["main"](*(tvm.runtime.tensor(values[spec.name]) for spec in inputs))
        return [each.numpy() for each in ([found] if hasattr(found, "numpy") else found)]

    return run
