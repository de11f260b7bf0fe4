"""Runs a network in TVM as it is imported, without schedules."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tvmtune.networks.inputs import random_inputs
from tvmtune.types import Network


def run_in_tvm(network: Network, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    import tvm
    from tvm import relax

    # It runs once: LLVM's optimizations would take longer than all else.
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    library = tvm.compile(network.to_relax(), target=target)
    machine = relax.VirtualMachine(library, tvm.cpu())
    arguments = [tvm.runtime.tensor(inputs[spec.name]) for spec in network.inputs]
    result = machine["main"](*arguments)
    return [t.numpy() for t in (result if len(network.outputs) > 1 else [result])]


def assert_equal(found: list[np.ndarray], expected: list[np.ndarray], tolerance: float = 1e-5):
    """Shapes, dtypes, and values within ``tolerance`` of max|ref|."""
    assert [(y.shape, y.dtype) for y in found] == [(ref.shape, ref.dtype) for ref in expected]
    for y, ref in zip(found, expected, strict=True):
        difference = np.abs(y.astype(np.float64) - ref.astype(np.float64))
        assert difference.max() <= tolerance * np.abs(ref.astype(np.float64)).max()


def assert_tvm_agrees(network: Network, seed: int = 1, tolerance: float = 1e-5) -> None:
    """TVM and the network's reference agree, in the shapes and dtypes of the specs."""
    inputs = random_inputs(network.inputs, seed)
    expected = network.reference(inputs)
    assert [(y.shape, y.dtype.name) for y in expected] == [
        (spec.shape, spec.dtype) for spec in network.outputs
    ]
    assert_equal(run_in_tvm(network, inputs), expected, tolerance)
