"""From a network to fused kernels: the passes that every backend shares.

:func:`prepare` stops before legalisation, because which algorithm computes an operator is a choice
that tuning makes; :func:`legalize` takes that choice and goes on to fused PrimFuncs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tvmtune.errors import UsageError, nearest
from tvmtune.types import Device, Network, Prepared

if TYPE_CHECKING:
    import tvm

Legalizer = Callable[[Any, Any], Any]
"""``(block_builder, call) -> expression``, as ``relax.transform.LegalizeOps`` takes it."""

LAYOUTS = {
    "NCHW": {},
    "NHWC": {"relax.nn.conv2d": ["NHWC", "HWIO"]},
}


def prepare(network: Network, device: Device, layout: str | None = None) -> Prepared:
    """Simplify the network, fold what is constant, and convert convolutions to ``layout``.

    The network's inputs and outputs keep the layout that its author gave them; the conversion
    happens inside.
    """
    from tvm import relax

    chosen = (layout or "NHWC").upper()
    if chosen not in LAYOUTS:
        raise UsageError(f"layout '{layout}' is not known.{nearest(chosen, list(LAYOUTS))}")
    passes = [
        relax.transform.DecomposeOpsForInference(),
        relax.transform.FoldConstant(),
        relax.transform.CanonicalizeBindings(),
    ]
    if LAYOUTS[chosen]:
        passes += [
            relax.transform.ConvertLayout(LAYOUTS[chosen]),
            relax.transform.Normalize(),
            relax.transform.FoldConstant(),
        ]
    passes.append(relax.transform.DeadCodeElimination())
    graph = _run(network.to_relax(), device, passes)
    return Prepared(network=network, device=device, layout=chosen, graph=graph)


def legalize(
    graph: tvm.IRModule, device: Device, custom: Mapping[str, Legalizer] | None = None
) -> tvm.IRModule:
    """Lower operators to TensorIR and fuse them; ``custom`` overrides single operators.

    Constant arguments are marked layout-free, so that a schedule may re-order weights.
    """
    from tvm import relax

    return _run(
        graph,
        device,
        [
            relax.transform.LegalizeOps(dict(custom or {})),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FoldConstant(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
            relax.transform.DeadCodeElimination(),
            relax.transform.AttachAttrLayoutFreeBuffers(),
        ],
    )


def pack_weights(mod: tvm.IRModule, device: Device) -> tvm.IRModule:
    """Carry out the weight re-ordering that the schedules ask for, now, at compile time."""
    from tvm import relax

    return _run(
        mod,
        device,
        [
            relax.transform.SplitLayoutRewritePreproc(),
            relax.transform.FoldConstant(),
            relax.transform.DeadCodeElimination(),
        ],
    )


def _run(mod: tvm.IRModule, device: Device, passes: list[Any]) -> tvm.IRModule:
    import tvm

    with tvm.target.Target(device.target), tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential(passes)(mod)
