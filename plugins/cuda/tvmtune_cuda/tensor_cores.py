"""Kernels for tensor cores: products of float16, summed in float32, in tiles of 16 by 16 by 16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvmtune.errors import UsageError
from tvmtune.graph import intrinsics
from tvmtune.graph.gpu_spaces import DrawnSpace, is_product, vector_lanes
from tvmtune.graph.spaces import applying, tune_context
from tvmtune.types import Device, Task

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir.meta_schedule.space_generator import SpaceGenerator

NAME = "tensor-cores"
"""Of the implementation, and of the target's attribute that asks for it."""
PASSES = {"tirx.disable_storage_rewrite": True}
"""For TVM's PassContext. That pass has float16 and float32 share a buffer of shared memory, which
TVM 0.27 cannot lower with these instructions; a later one joins all shared memory anyway."""
_SCOPE = "shared.dyn"


class TensorCores(DrawnSpace):
    """TVM's rules for tensor cores, with operands and sums in shared memory; what the instructions do
    not match falls to its rules for all GPUs."""

    def generator(self) -> SpaceGenerator:
        from tvm.s_tir.meta_schedule import ScheduleRule
        from tvm.s_tir.meta_schedule import schedule_rule as rule

        intrinsics.load_for("cuda")
        intrinsics.load_tensor_cores()
        first, *others = ScheduleRule.create("cuda")
        tiles = rule.MultiLevelTilingTensorCore(
            intrin_groups=_groups(),
            structure="SSSRRSRS",
            tile_binds=["blockIdx.y", "blockIdx.x", "threadIdx.y"],
            max_innermost_factor=4,
            vector_load_lens=[1, 2, 4, 8],
            reuse_read=rule.ReuseType("must", [4], _SCOPE),
            reuse_write=rule.ReuseType("must", [2], _SCOPE),
        )
        return applying([first, tiles, *others], "cuda-tensorcore")


def space(mod: tvm.IRModule, device: Device) -> TensorCores | None:
    """The space for workloads that tensor cores can compute."""
    import tvm

    if not is_product(mod):
        return None
    made = TensorCores(device.target, vector_lanes(mod, device))
    target = tvm.target.Target(device.target)
    designs = tune_context(mod, target, made.generator(), seed=1).generate_design_space()
    return made if any(map(_uses_them, designs)) else None


def check(tasks: Sequence[Task]) -> None:
    """Raise :class:`UsageError` if none of them can use tensor cores."""
    if not any(each.name == NAME for task in tasks for each in task.implementations):
        raise UsageError(
            "--tensor-cores: none of this network's kernels multiplies in float16 in an order that "
            "tensor cores take: give --dtype float16 and --layout NHWC, or leave --tensor-cores away."
        )


def _groups() -> list[dict[str, str]]:
    """TVM's names for the steps, for weights as they are and transposed."""
    at = _SCOPE.replace(".", "_")
    return [
        {
            "init": "wmma_fill_16x16x16_f32",
            "load_a": f"wmma_load_16x16x16_f16_a_{at}",
            "load_b": f"wmma_load_16x16x16_f16_b{way}_{at}",
            "compute": f"wmma_sync_16x16x16_f16f16f32{way}",
            "store": f"wmma_store_16x16x16_f32_{at}",
        }
        for way in ("", "_trans")
    ]


def _uses_them(design: Any) -> bool:
    return any(
        str(inst.attrs[0]).startswith("meta_schedule.auto_tensorize")
        for inst in design.trace.insts
        if str(inst.kind.name) == "Annotate"
    )
