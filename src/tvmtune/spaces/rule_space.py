"""The design space of TVM's schedule rules, with a default schedule that needs no measurements."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tvmtune import cpu_features, dot_instructions
from tvmtune.cpu_features import VectorUnit
from tvmtune.passes.blocks import REORDERS, blocks
from tvmtune.passes.workload_keys import structure
from tvmtune.spaces import (
    cpu_attention,
    cpu_few_queries,
    cpu_low_bit_weights,
    cpu_rows,
    cpu_rules,
    cpu_tiles,
    rules,
    tensor_intrinsics,
    tile_rules,
    traces,
)
from tvmtune.types import Space, digest, product

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule.space_generator import SpaceGenerator

_INLINE, _BEFORE, _PER_TILE = -2, -1, 3
"""Decisions of SampleComputeLocation, which says where a convolution's padding is computed: in each
product, before all of them, or for each of the tiles that threads share, after their four loops."""
_SMALL_KERNEL = 9
"""Positions of a kernel above which the copy of an image pays, too, on CPUs with few registers: 7x7 and
64 outputs took 1.8 instead of 5.4 ms with AVX2 on a Zen 3. With AVX-512 it depends on the CPU."""
_KEPT = 512
_chosen: dict[str, Schedule] = {}
"""Default schedules in this process, oldest first."""
_lock = threading.Lock()
"""Held while :data:`_chosen` changes."""


class RuleSpace:
    """What TVM's schedule rules for the target generate, e.g. multi-level tiling on CPUs.

    Its size is unknown. ``vector`` is the vector width in elements that the default schedule aims at;
    None for that of the target's registers.
    """

    size: int | None = None

    def __init__(self, target: dict[str, Any], *, vector: int | None = None) -> None:
        self.target = target
        self.vector = vector

    def generator(self) -> SpaceGenerator:
        return self._generator(layouts=True)

    def _generator(self, *, layouts: bool) -> SpaceGenerator:
        from tvm.s_tir.meta_schedule.space_generator import SpaceGenerator

        tensor_intrinsics.load_for(str(self.target["kind"]))
        rules.register()
        if self.target["kind"] != "llvm":
            return SpaceGenerator.create("post-order-apply")
        products = dot_instructions.for_bytes(self.target)
        chosen, postprocs = cpu_rules.for_cpu(
            (*((products,) if products else ()), *dot_instructions.for_bfloat16(self.target)),
            dot_instructions.for_tiles(self.target),
            layouts=layouts,
        )
        return applying(chosen, "llvm", postprocs)

    def default(self, mod: tvm.IRModule, target: tvm.target.Target) -> Schedule:
        """The schedule from :meth:`choose`, cached: do not modify it.

        Every search and every compiled library needs it, at a tenth of a second each.
        """
        key = digest([type(self).__name__, self.target, self.vector, str(target), structure(mod)])
        found = _chosen.get(key)
        if found is None:
            found = self.choose(mod, target)
            with _lock:
                while len(_chosen) >= _KEPT:
                    del _chosen[next(iter(_chosen))]
                found = _chosen.setdefault(key, found)
        return found

    def choose(self, mod: tvm.IRModule, target: tvm.target.Target) -> Schedule:
        """Tile sizes that a good kernel of this shape usually has; the rules decide the rest.

        A kernel that the rules cannot handle stays unscheduled.
        """
        cores = int(self.target.get("num-cores") or 1)
        unit = cpu_features.vector_unit(self.target)
        if self.target["kind"] == "llvm":
            for whole in (cpu_attention, cpu_few_queries, cpu_low_bit_weights):
                if (sch := whole.schedule(mod, unit)) is not None:
                    return sch
        if self.vector is not None:
            unit = replace(unit, lanes=self.vector)
        context = tune_context(mod, target, self.generator(), seed=1)
        try:
            designs = list(context.generate_design_space())
        except Exception:  # a kernel with hand-written loops, such as a scatter
            return _unscheduled(mod)
        tiled = any(_tiled(design) for design in designs)
        if self.target["kind"] == "llvm" and not tiled and (sch := _by_rows(mod, unit, cores)):
            return sch
        group = cpu_tiles.column_group(mod) if tiled else None
        window = cpu_tiles.window(mod) if tiled and unit.has_few_registers else 1
        postprocs = list(context.space_generator.postprocs)
        designs.sort(key=_score, reverse=True)
        for layouts in (True, False):
            usable = postprocs if layouts else self._keeping_layouts(context, mod, target)
            for design in designs:
                for trace in preferred_traces(design, unit, cores, group, window):
                    if (sch := replay(mod, trace, usable)) is not None:
                        return sch
        return _unscheduled(mod)

    def _keeping_layouts(
        self, context: Any, mod: tvm.IRModule, target: tvm.target.Target
    ) -> list[Any]:
        """The post-processors without weight re-ordering, which does not support every way in which a
        kernel may read a constant."""
        if self.target["kind"] == "llvm":
            context = tune_context(mod, target, self._generator(layouts=False), seed=1)
        steps = context.space_generator.postprocs
        return [step for step in steps if "RewriteLayout" not in type(step).__name__]


def applying(
    chosen: Sequence[Any], kind: str, postprocs: Sequence[Any] | None = None
) -> SpaceGenerator:
    """A generator that applies schedule rules to each block, with TVM's mutators and, unless they are
    given, post-processors for targets of this kind."""
    from tvm.s_tir.meta_schedule import Mutator, Postproc
    from tvm.s_tir.meta_schedule.space_generator import PostOrderApply

    return PostOrderApply(
        sch_rules=[*chosen],
        postprocs=[*postprocs] if postprocs else Postproc.create(kind),
        mutator_probs=Mutator.create(kind),
    )


def _tiled(design: Schedule) -> bool:
    """Whether it tiles the outputs; designs that only split sums, such as a softmax's, do not."""
    return bool(_tilings(design, 4)) or tile_rules.block_of(design) is not None


def _by_rows(mod: tvm.IRModule, unit: VectorUnit, cores: int) -> Schedule | None:
    try:
        return cpu_rows.schedule(mod, unit, cores)
    except Exception:  # TVM raises several unrelated types for a stage that cannot be moved
        return None


def _unscheduled(mod: tvm.IRModule) -> Schedule:
    from tvm.s_tir import Schedule

    return Schedule(mod, error_render_level="none")


def tune_context(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    generator: SpaceGenerator,
    *,
    seed: int,
    strategy: Any = None,
    threads: int = 1,
) -> Any:
    """A TuneContext that logs nothing to the terminal."""
    import logging

    from tvm.s_tir import meta_schedule as ms

    tensor_intrinsics.load_for(str(target.kind.name))
    logger = logging.getLogger("tvmtune.tvm")
    logger.setLevel(logging.ERROR)
    return ms.TuneContext(
        mod,
        target=target,
        space_generator=generator,
        search_strategy=strategy,
        rand_state=seed,
        num_threads=threads,
        logger=logger,
    )


def replay(mod: tvm.IRModule, trace: Any, postprocs: list[Any], seed: int = 1) -> Schedule | None:
    """Apply a trace and the post-processors; None if the trace or a post-processor fails."""
    from tvm.s_tir import Schedule

    sch = Schedule(mod, seed=seed, error_render_level="none")
    try:
        trace.apply_to_schedule(sch, remove_postproc=True)
        sch.enter_postproc()
        if all(p.apply(sch) for p in postprocs):
            return sch
    except Exception:  # TVM raises several unrelated types for an impossible decision
        return None
    return None


def _score(design: Schedule) -> float:
    """For comparing designs: tiled loops count first, then what is computed per tile."""
    return len(_tilings(design, 4)) + 0.1 * _fused(design.trace)


def _tilings(design: Schedule, parts: int) -> list[Any]:
    """The instructions that split a loop into so many parts: 4 for outputs, 2 for terms of sums."""
    return [
        inst
        for inst in design.trace.insts
        if inst.kind.name == "SamplePerfectTile" and len(inst.outputs) == parts
    ]


def preferred_traces(
    design: Schedule,
    unit: VectorUnit,
    cores: int = 1,
    group: int | None = None,
    window: int = 1,
) -> Iterator[Any]:
    """The design's trace with each of the preferred decisions, best first. ``group`` is that of
    :func:`cpu_tiles.column_group`; ``window`` that of :func:`cpu_tiles.window` on CPUs with few
    registers, else 1."""
    block = tile_rules.block_of(design)
    if block is not None:
        cuts = [i for i in design.trace.insts if i.kind.name == "SamplePerfectTile"]
        for tiles in tile_rules.decisions(block):
            yield _decided(design.trace, cuts, tiles.parts, tiles.padding)
        return
    spatial, reduction = _tilings(design, 4), _tilings(design, 2)
    outputs, terms = ([extent(design.trace, i) for i in each] for each in (spatial, reduction))
    tensorized = _tensorized(design)
    if tensorized is not None:
        columns = cpu_tiles.tensor_columns(tensorized)
        of_bytes = str(tensorized.writes[0].source.dtype) == "int32"
        decisions = cpu_tiles.tensor_decisions(outputs, terms, columns, unit, of_bytes=of_bytes)
    elif rules.is_fused_winograd(design.mod):
        lanes = rules.lanes_of(design.mod)
        decisions = cpu_tiles.winograd_decisions(outputs, terms, unit, lanes)
    else:
        lanes, in_blocks = rules.lanes_of(design.mod), rules.in_blocks(design.mod)
        decisions = cpu_tiles.decisions(
            *(outputs, terms, unit, cores, group, lanes), in_blocks=in_blocks
        )
    if tensorized is None:
        padding = _padding(terms, group, window)
    else:
        padding = _BEFORE if _has_few_channels(terms) else _PER_TILE
    for location in (padding, None):
        for chosen in decisions:
            parts = [*chosen.spatial, *chosen.reduction]
            yield _decided(design.trace, [*spatial, *reduction], parts, location)


def _decided(
    trace: Any, cuts: Sequence[Any], parts: Sequence[Sequence[int]], location: int | None
) -> Any:
    """A trace with these parts of the loops that ``cuts`` split, and padding at this location, if it is
    not None."""
    for inst, sizes in zip(cuts, parts, strict=True):
        trace = trace.with_decision(inst, [*sizes], remove_postproc=True)
    for inst in trace.insts:
        if inst.kind.name == "SampleCategorical" and len(inst.attrs[0]) == 4:
            trace = trace.with_decision(inst, 2, remove_postproc=True)
        if inst.kind.name == "SampleComputeLocation" and location is not None:
            trace = trace.with_decision(inst, location, remove_postproc=True)
    return trace


def _padding(terms: Sequence[int], group: int | None, window: int) -> int:
    """Where to compute the padding of a convolution whose sums have such extents.

    That of images, and of depthwise convolutions, is part of the product: a copy of values that are
    used so few times takes as long as their products. Elsewhere the copy pays.
    """
    if group == 1:
        return _INLINE
    if terms and terms[-1] > cpu_tiles.FEW_CHANNELS:
        return _PER_TILE
    return _BEFORE if window > _SMALL_KERNEL else _INLINE


def _has_few_channels(terms: Sequence[int]) -> bool:
    """Whether a convolution whose dot products are in such loops over terms has no more channels than
    two of them add: neighboring tiles then share most of what they read."""
    return len(terms) > 2 and product(terms[2:]) <= 2


def _tensorized(design: Schedule) -> Any | None:
    """The block that an instruction computes; None for a design without one."""
    from tvm.s_tir import Schedule

    if not any("auto_tensorize" in str(i.attrs) for i in design.trace.insts):
        return None
    sch = Schedule(design.mod)  # so that the questions do not become part of the design's trace
    for child in sch.get_child_blocks(sch.get_sblock("root")):
        block = sch.get(child)
        if "meta_schedule.auto_tensorize" in block.annotations:
            return block
    return None


def _fused(trace: Any) -> int:
    """Instructions by which an epilogue or a write cache's copy is computed per tile, while the tile is
    in the cache."""
    return sum(1 for i in trace.insts if i.kind.name in ("CacheWrite", "ReverseComputeAt"))


def extent(trace: Any, inst: Any) -> int:
    """The extent of the loop that a SamplePerfectTile splits."""
    result = 1
    for part in trace.get_decision(inst):
        result *= int(part)
    return result


def apply_anchor(
    mod: tvm.IRModule, donor: tvm.IRModule, trace: Any, target: tvm.target.Target, space: Space
) -> Schedule:
    """Schedule ``mod`` by a trace recorded for ``donor``, which has the same anchor block.

    If the epilogues are so different that the trace does not fit, a design of ``space`` gets the
    trace's decisions. Raises ValueError, or whatever TVM raises, if these do not fit either.
    """
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule.trace_apply import schedule_using_anchor_trace

    scheduled = traces.apply(donor, trace)
    sch: Schedule | None = Schedule(mod, error_render_level="none")
    failure: Exception = ValueError("it stores other arguments in another layout")
    try:
        schedule_using_anchor_trace(sch, scheduled.trace, target)
    except Exception as error:  # TVM raises several unrelated types
        sch, failure = None, error
    # A trace knows what a block reads by its place. With ``residual + x`` for ``x + residual`` that may
    # be another argument, and its elements are lost in the layout of the donor's.
    if sch is None or _reordered(sch.mod) != _reordered(scheduled.mod):
        sch = _with_decisions(mod, scheduled.trace, target, space)
    if sch is None:
        raise failure
    return sch


def _reordered(mod: tvm.IRModule) -> list[tuple[bool, list[int], list[int]]]:
    """Of each argument that a schedule stores in another layout: whether it is constant, its shape, and
    that of what is stored."""
    main = mod["main"]
    free = {int(place) for place in main.attrs.get("layout_free_buffers", ())}
    constant = [argument for n, argument in enumerate(main.params) if n in free]
    copies = [
        (block.reads[0].source, block.writes[0].source)
        for block in blocks(main)
        if REORDERS in block.annotations
    ]
    return sorted(
        (
            any(read.same_as(each) for each in constant),
            [int(extent) for extent in read.shape],
            [int(extent) for extent in stored.shape],
        )
        for read, stored in copies
    )


def _with_decisions(
    mod: tvm.IRModule, recorded: Any, target: tvm.target.Target, space: Space
) -> Schedule | None:
    """A design of the space with the decisions of a trace; None if no design has the same loops."""
    wanted = _samples(recorded)
    context = tune_context(mod, target, space.generator(), seed=1)
    designs = list(context.generate_design_space())
    for design in sorted(designs, key=lambda design: _fused(design.trace), reverse=True):
        trace, own = design.trace, _samples(design.trace)
        if [(kind, size) for _, kind, size in own] != [(kind, size) for _, kind, size in wanted]:
            continue
        for (inst, *_), (donor, *_) in zip(own, wanted, strict=True):
            decision = recorded.get_decision(donor)
            trace = trace.with_decision(inst, decision, remove_postproc=True)
        sch = replay(mod, trace, list(context.space_generator.postprocs))
        if sch is not None:
            return sch
    return None


def _samples(trace: Any) -> list[tuple[Any, str, int]]:
    """The trace's sampled tiles and categories: instruction, kind, and the loop's extent or how many
    categories there are."""
    found = []
    for inst in trace.insts:
        kind = str(inst.kind.name)
        if kind == "SamplePerfectTile":
            found.append((inst, kind, extent(trace, inst)))
        elif kind == "SampleCategorical":
            found.append((inst, kind, len(inst.attrs[0])))
    return found
