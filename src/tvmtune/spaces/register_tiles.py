"""Schedule rules for GPUs that need no shared memory: tiles in registers, vector accesses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tvmtune.spaces import rules, tensor_intrinsics, tiling
from tvmtune.spaces.cpu_tiles import divisor
from tvmtune.spaces.rule_space import applying, extent, replay, tune_context

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule.space_generator import SpaceGenerator

BLOCKS = 256
"""Most work-groups of an element-wise kernel."""
UNROLL = (0, 16, 64, 128)
GROUP = 64
"""Threads per group that the default schedule aims at."""
_ROW = 16
"""Of these, along the contiguous axis if the other axes have enough."""
_LARGEST = 16
"""Extent of the innermost loop of a tile: beyond it, registers spill."""


def generator(
    target: dict[str, Any], lanes: int, *, inline_padding: bool, accesses: int = 1
) -> SpaceGenerator:
    """Two levels of loops that become groups and threads, and a tile that each thread keeps in
    registers. Reductions with few outputs (softmax, global pooling) are shared by the threads of a
    group, which takes local memory.

    ``lanes``: values per access; ``accesses``: how many of them the longest vector may comprise.
    Without ``inline_padding`` padding is a separate kernel, and products need no bounds checks.
    """
    from tvm.s_tir.meta_schedule import schedule_rule as rule

    tensor_intrinsics.load_for(str(target["kind"]))
    rules.register()
    most = int(target["max_threads_per_block"])
    threads = [n for n in (32, 64, 128, 256, 512, 1024) if n <= most] or [most]
    chosen = [
        rule.ApplyCustomRule(),
        tiling.adapted(
            rule.MultiLevelTiling(
                "SSRRS",
                ["blockIdx.x", "threadIdx.x"],
                _LARGEST,
                None,
                None,
                rule.ReuseType("must", [2], "local"),
            ),
            shared=False,
        ),
        rule.InlineConstantScalars(),
        rule.AutoInline(
            into_producer=True,
            into_consumer=True,
            inline_const_tensor=True,
            disallow_if_then_else=not inline_padding,
            require_injective=False,
            require_ordered=False,
            disallow_op=[],
        ),
        rule.CrossThreadReduction([n for n in (4, 8, 16, 32, 64, 128) if n <= most]),
        rule.ParallelizeVectorizeUnroll(-1, accesses * lanes, list(UNROLL), True),
        rule.AutoBind(BLOCKS, threads),
    ]
    return applying(chosen, "cuda")


def default_schedule(
    mod: tvm.IRModule, target: tvm.target.Target, tiles: SpaceGenerator, lanes: int
) -> Schedule | None:
    """The tile that suits most products, by the rules of ``tiles`` (from :func:`generator`); None if
    none fits."""
    context = tune_context(mod, target, tiles, seed=1)
    postprocs = list(context.space_generator.postprocs)
    for design in context.generate_design_space():
        for trace in _preferred(design, lanes):
            if (schedule := replay(mod, trace, postprocs)) is not None:
                return schedule
    return None


def _preferred(design: Schedule, lanes: int) -> Iterator[Any]:
    """Decisions for a design with tiles, the preferred first: a vector of outputs times up to 4 rows
    per thread, :data:`GROUP` threads per group. Nothing for a design without tiles."""
    cuts = [i for i in design.trace.insts if i.kind.name == "SamplePerfectTile"]
    spatial = [i for i in cuts if len(i.outputs) == 3]
    if not spatial or any(i.kind.name == "RFactor" for i in design.trace.insts):
        return
    # A device may refuse groups smaller than a warp; the contiguous axis alone may have to fill them.
    for rows, group, along in itertools.product((4, 2, 1), (GROUP, GROUP // 4, 1), (_ROW, GROUP)):
        trace, left = design.trace, group
        for position, inst in enumerate(reversed(spatial)):
            size = extent(trace, inst)
            inner = divisor(size, (lanes, rows)[position]) if position < 2 else 1
            threads = divisor(size // inner, min(left, along) if position == 0 else left)
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
