"""TVM's schedule rule for multi-level tiling, adapted to work around its problems on GPUs."""

from __future__ import annotations

from typing import Any

from tvmtune.types import product

MIN_OUTPUTS = 256
"""Fewest outputs per iteration of a loop whose iterations each get their own thread blocks."""
_CACHED = "s_tir.meta_schedule.write_cache_level"
"""Annotation that sets the cache level of a block's output, for tiles on CPUs."""
_BEFORE_PIPELINES = "sm_75"
_SPATIAL = 0


def adapted(rule: Any, *, shared: bool = True) -> Any:
    """``rule``, a ``MultiLevelTiling``, changed in three ways:

    - It tiles every loop. Here outer loops that index every operand (such as a batch of matrix
      products) only multiply the number of thread blocks: their iterations share nothing in shared
      memory, so that otherwise hardly one draw in a hundred would fit a GPU.
    - For NVIDIA GPUs since sm_80 it looks for copies to shared memory to overlap with the product, and
      TVM 0.27 fails if there are none. Without ``shared`` it does not look.
    - It caches an output at the level that the block's annotation sets, which is meant for CPUs; here
      at the level of its own configuration.
    """
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.schedule_rule import PyScheduleRule

    @derived_object
    class Adapted(PyScheduleRule):
        workload: Any = None

        def _initialize_with_tune_context(self, context: Any) -> None:
            self.workload = context.mod
            rule._initialize_with_tune_context(context if shared else _without_pipelines(context))

        def apply(self, sch: Any, block: Any) -> list[Any]:
            if _CACHED in sch.get(block).annotations:
                sch.unannotate(block, _CACHED)
            apart, before = outer_loops(sch.get(block)), len(sch.trace.insts)
            made = rule.apply(sch, block)
            tiled = any(len(each.trace.insts) > before for each in made)
            if not apart or not tiled:
                return list(made)
            return [_untiled(self.workload, each.trace, apart) for each in made]

        def clone(self) -> Any:
            return adapted(rule.clone(), shared=shared)

    return Adapted()


def _without_pipelines(context: Any) -> Any:
    import tvm
    from tvm.s_tir.meta_schedule import TuneContext

    if "arch" not in context.target.attrs:
        return context
    target = {**context.target.export(), "arch": _BEFORE_PIPELINES}
    return TuneContext(context.mod, target=tvm.target.Target(target))


def outer_loops(block: Any) -> int:
    """How many of its first axes index everything that the block reads, and leave :data:`MIN_OUTPUTS`
    outputs to each iteration. Parts of split sums are such axes, and batches of products."""
    spatial = [axis for axis in block.iter_vars if int(axis.iter_type) == _SPATIAL]
    if len(block.iter_vars) == len(spatial) or len(block.reads) < 2:
        return 0
    used = [_variables(region) for region in block.reads]
    outputs = product([int(axis.dom.extent) for axis in spatial])
    for number, axis in enumerate(spatial):
        outputs //= int(axis.dom.extent)
        if outputs < MIN_OUTPUTS or not all(
            any(v.same_as(axis.var) for v in each) for each in used
        ):
            return number
    return 0


def _variables(region: Any) -> list[Any]:
    from tvm import tirx
    from tvm_ffi import structural_walk

    found: list[Any] = []
    for axis in region.region:
        structural_walk(axis.min, (tirx.Var, found.append))
    return found


def _untiled(workload: Any, trace: Any, count: int) -> Any:
    """The workload scheduled by a trace, except that the first ``count`` loops of the last tiling stay
    untiled, outermost."""
    from tvm.s_tir import Schedule, Trace
    from tvm.s_tir.schedule import Instruction

    insts = [*trace.insts]
    kinds = [str(inst.kind.name) for inst in insts]
    start = max(
        at
        for at, inst in enumerate(insts)
        if kinds[at] == "Annotate" and str(inst.attrs[0]) == "meta_schedule.tiling_structure"
    )
    drawn = [at for at in range(start, len(insts)) if kinds[at] == "SamplePerfectTile"][:count]
    for at in drawn:
        split = insts[at + 1]  # of the sampled loop: the rule emits the two in this order
        assert kinds[at + 1] == "Split"
        factors = [None, *[1] * (len(insts[at].outputs) - 1)]
        loop = insts[at].inputs[0]
        insts[at + 1] = Instruction(split.kind, [loop, *factors], split.attrs, split.outputs)
    kept = [inst for at, inst in enumerate(insts) if at not in drawn]
    dropped = [trace.insts[at] for at in drawn]
    decisions = {
        inst: made
        for inst, made in trace.decisions.items()
        if not any(inst.same_as(each) for each in dropped)
    }
    sch = Schedule(workload, error_render_level="none")
    Trace(kept, decisions).apply_to_schedule(sch, remove_postproc=False)
    return sch
