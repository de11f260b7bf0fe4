"""Kernels for tensor cores: products in float16 and bfloat16, summed in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvmtune.errors import UsageError
from tvmtune.spaces import tensor_intrinsics
from tvmtune.spaces.gpu_spaces import DrawnSpace, is_product, vector_lanes
from tvmtune.spaces.rule_space import applying, tune_context
from tvmtune.types import Algorithm, Device, ExtraSpace, Task
from tvmtune_cuda import mma_space

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir.meta_schedule.space_generator import SpaceGenerator

NAME = "tensor-cores"
"""Name of the implementation, and of the target attribute that requests it."""
PASSES = {"tirx.disable_storage_rewrite": True}
"""For TVM's PassContext. That pass lets float16 and float32 share a shared-memory buffer, which TVM
0.27 cannot lower with these instructions; a later pass merges all shared memory anyway."""
_SCOPE = "shared.dyn"


class TensorCores(DrawnSpace):
    """TVM's rules for tensor cores, with operands and sums in shared memory; blocks that the
    instructions do not match get its rules for all GPUs."""

    def generator(self) -> SpaceGenerator:
        from tvm.s_tir.meta_schedule import ScheduleRule
        from tvm.s_tir.meta_schedule import schedule_rule as rule

        tensor_intrinsics.load_for("cuda")
        tensor_intrinsics.load("cuda")
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


def implementations(device: Device) -> list[Algorithm | ExtraSpace]:
    """Those that use tensor cores, if the target requests them: convolutions as implicit GEMM with
    tiles of :mod:`~tvmtune_cuda.mma_tiles`, and TVM's rules for tensor cores."""
    if NAME not in device.attrs:
        return []
    rules = ExtraSpace(NAME, lambda mod: space(mod, device))
    return [*mma_space.algorithms(device), rules]


def space(mod: tvm.IRModule, device: Device) -> TensorCores | None:
    """The space for workloads that tensor cores can compute."""
    import tvm

    if not is_product(mod):
        return None
    made = TensorCores(device.target, vector_lanes(mod, device))
    target = tvm.target.Target(device.target)
    designs = tune_context(mod, target, made.generator(), seed=1).generate_design_space()
    return made if any(map(_uses_tensor_cores, designs)) else None


def check(tasks: Sequence[Task], device: Device) -> None:
    """Raise :class:`UsageError` if the target requests tensor cores and no task can use them."""
    if NAME not in device.attrs:
        return
    names = {NAME, *(algorithm.name for algorithm in mma_space.algorithms(device))}
    if not any(each.name in names for task in tasks for each in task.implementations):
        raise UsageError(
            "--tensor-cores: no kernel of this network multiplies float16 or bfloat16 in a layout that "
            "tensor cores take: give --dtype float16 and --layout NHWC, or omit --tensor-cores"
        )


def _groups() -> list[dict[str, str]]:
    """TVM's names for the steps, for plain and for transposed weights."""
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


def _uses_tensor_cores(design: Any) -> bool:
    return any(
        str(inst.attrs[0]).startswith("meta_schedule.auto_tensorize")
        for inst in design.trace.insts
        if str(inst.kind.name) == "Annotate"
    )
