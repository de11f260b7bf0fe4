"""Schedules that suit Mali GPUs: tiles in registers, 128-bit accesses, no local memory for products.

Arm's OpenCL guide for Mali says that local memory is mapped to main memory, so that copying operands
there costs and gains nothing, and asks for vectors of 128 bits. TVM's rules for GPUs do the opposite:
local memory for every operand, no vectors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.graph import intrinsics, rules
from tvmtune.graph.gpu_spaces import DrawnSpace, GpuSpace, is_product
from tvmtune.graph.spaces import divisor, extent, replay, tune_context

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule.space_generator import SpaceGenerator

    from tvmtune.types import Device

SHARED = "shared"
"""The name of :class:`SharedTiles` among a task's implementations."""
BLOCKS = 256
"""Work-groups that element-wise kernels are cut into at most."""
UNROLL = (0, 16, 64, 128)
GROUP = 64
"""Threads in a group that the default schedule aims at."""
_WIDEST = 4
"""Accesses that one vector of OpenCL C may comprise."""
_ROW = 16
"""Of these, along the contiguous axis at most."""
_LARGEST = 16
"""Extent of the innermost loop of a tile: beyond, registers spill."""


class RegisterTiles(GpuSpace):
    """Two levels of loops that become groups and threads, and a tile that each thread keeps in
    registers. Reductions of few outputs (softmax, pooling of whole pictures) share them between the
    threads of a group, which takes local memory.

    ``vector``: values in one access.
    """

    def __init__(self, target: dict[str, Any], vector: int) -> None:
        super().__init__(target, vector=vector)
        self.lanes = vector

    def generator(self) -> SpaceGenerator:
        from tvm.s_tir.meta_schedule import Mutator, Postproc
        from tvm.s_tir.meta_schedule import schedule_rule as rule
        from tvm.s_tir.meta_schedule.space_generator import PostOrderApply

        intrinsics.load_for("opencl")
        rules.register()
        most = int(self.target["max_threads_per_block"])
        threads = [n for n in (32, 64, 128, 256, 512, 1024) if n <= most] or [most]
        chosen = [
            rule.ApplyCustomRule(),
            rule.MultiLevelTiling(
                "SSRRS",
                ["blockIdx.x", "threadIdx.x"],
                _LARGEST,
                None,
                None,
                rule.ReuseType("must", [2], "local"),
            ),
            rule.InlineConstantScalars(),
            rule.AutoInline(
                into_producer=True,
                into_consumer=True,
                inline_const_tensor=True,
                # Padding: inlined, each product would begin with a look at where it is.
                disallow_if_then_else=True,
                require_injective=False,
                require_ordered=False,
                disallow_op=[],
            ),
            rule.CrossThreadReduction([n for n in (4, 8, 16, 32, 64, 128) if n <= most]),
            rule.ParallelizeVectorizeUnroll(-1, _WIDEST * self.lanes, list(UNROLL), True),
            rule.AutoBind(BLOCKS, threads),
        ]
        return PostOrderApply(
            sch_rules=chosen,
            postprocs=Postproc.create("cuda"),
            mutator_probs=Mutator.create("cuda"),
        )

    def choose(self, mod: tvm.IRModule, target: tvm.target.Target) -> Schedule:
        """For products the tile that most of them do well with; dlight's for all else."""
        if is_product(mod):
            context = tune_context(mod, target, self.generator(), seed=1)
            postprocs = list(context.space_generator.postprocs)
            for design in context.generate_design_space():
                for trace in _preferred(design, self.lanes):
                    if (schedule := replay(mod, trace, postprocs)) is not None:
                        return schedule
        return super().choose(mod, target)


class SharedTiles(DrawnSpace):
    """TVM's rules for GPUs, as they are: operands in local memory."""


def tiles(mod: tvm.IRModule, device: Device) -> RegisterTiles:
    """The space for a workload, with accesses of ``vector_unit_bytes`` bytes."""
    size = np.dtype(str(mod["main"].params[-1].dtype)).itemsize
    return RegisterTiles(device.target, max(1, int(device.params["vector_unit_bytes"]) // size))


def shared(mod: tvm.IRModule, device: Device) -> SharedTiles | None:
    """The space for workloads that :class:`RegisterTiles` treats otherwise."""
    return SharedTiles(device.target) if is_product(mod) else None


def _preferred(design: Schedule, lanes: int) -> Iterator[Any]:
    """Decisions for a design of tiles, the preferred first: a vector of outputs times up to 4 rows in
    each thread, :data:`GROUP` threads in a group. None for one that has no tiles."""
    cuts = [i for i in design.trace.insts if i.kind.name == "SamplePerfectTile"]
    spatial = [i for i in cuts if len(i.outputs) == 3]
    if not spatial or any(i.kind.name == "RFactor" for i in design.trace.insts):
        return
    for rows, group in itertools.product((4, 2, 1), (GROUP, GROUP // 4, 1)):
        trace, left = design.trace, group
        for position, inst in enumerate(reversed(spatial)):
            size = extent(trace, inst)
            inner = divisor(size, (lanes, rows)[position]) if position < 2 else 1
            threads = divisor(size // inner, min(left, _ROW) if position == 0 else left)
            left //= threads
            decision = [size // inner // threads, threads, inner]
            trace = trace.with_decision(inst, decision, remove_postproc=True)
        for inst in cuts:
            if len(inst.outputs) == 2:
                size = extent(trace, inst)
                inner = divisor(size, lanes)
                trace = trace.with_decision(inst, [size // inner, inner], remove_postproc=True)
        for inst in trace.insts:
            if inst.kind.name == "SampleCategorical" and [*map(int, inst.attrs[0])] == [*UNROLL]:
                trace = trace.with_decision(inst, UNROLL.index(16), remove_postproc=True)
        yield trace
