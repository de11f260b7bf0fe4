"""Real libraries of tiny networks, lowered independently of the tuner's lowering."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from tvmtune import networks
from tvmtune.bench import verify
from tvmtune.library import metadata
from tvmtune.library.export import export_lib
from tvmtune.machine import processor
from tvmtune.types import Device

if TYPE_CHECKING:
    import tvm

    from tvmtune.types import Network


def host_device(threads: int = 2) -> Device:
    """This machine as a device."""
    target = {"kind": "llvm", "mcpu": processor.name(), "num-cores": threads}
    return Device("cpu", target, threads, model="the test's CPU")


def lower(network: Network, device: Device) -> tvm.IRModule:
    """Lower with parallel outermost loops as the only schedule."""
    import tvm
    from tvm import relax

    passes = relax.transform
    with tvm.target.Target(device.target):
        mod = tvm.transform.Sequential(
            [
                passes.DecomposeOpsForInference(),
                passes.FoldConstant(),
                passes.LegalizeOps(),
                passes.AnnotateTIROpPattern(),
                passes.FoldConstant(),
                passes.FuseOps(),
                passes.FuseTIR(),
                passes.DeadCodeElimination(),
            ]
        )(network.to_relax())
    for variable, function in list(mod.functions.items()):
        if isinstance(function, tvm.tirx.PrimFunc):
            mod.update_func(variable, _parallel(function, variable.name_hint))
    return mod


def _parallel(function: Any, name: str) -> Any:
    import tvm

    schedule = tvm.s_tir.Schedule(
        tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    )
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        loops = schedule.get_loops(block)[:2]
        if len(loops) == 2:
            schedule.parallel(schedule.fuse(*loops))
    return schedule.mod["main"].with_attr("global_symbol", name)


def make_library(
    model: onnx.ModelProto, folder: Path, *, threads: int = 2, check: bool = True
) -> Path:
    """Compile ``model`` to ``folder/lib.so`` and save it as ``folder/model.onnx``."""
    source = folder / "model.onnx"
    onnx.save(model, source)
    network = networks.load(str(source))
    device = host_device(threads)
    path = export_lib(lower(network, device), device, folder / "lib.so")
    tasks = [
        {
            "name": "conv2d",
            "weight": 2,
            "implementation": "direct",
            "record": "exact",
            "latency": 1e-5,
            "flop": 1e6,
        }
    ]
    reference = verify.make_check(network) if check else None
    metadata.append(
        path, metadata.describe(network, device, layout="NCHW", tasks=tasks, check=reference)
    )
    return path


def spoiled(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the network with one changed weight in its first convolution."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if len(tensor.dims) == 4:
            array = onnx.numpy_helper.to_array(tensor).copy()
            array.flat[0] += np.float32(1.0)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
            return copy
    raise AssertionError("the network has no convolution")
