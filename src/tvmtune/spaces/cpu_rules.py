"""The schedule rules for CPUs: TVM's, and those for instructions that multiply and for selects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvmtune.dot_instructions import DotInstruction, TileInstruction
from tvmtune.passes import blocks
from tvmtune.spaces import cpu_tiles, select_rule, tile_rules

if TYPE_CHECKING:
    from tvm.s_tir import Schedule

_VECTORIZE = "meta_schedule.vectorize"
"""Annotation of the root block with the most elements of a vector that TVM makes of several loops."""
_TENSORIZED = "meta_schedule.auto_tensorize"
"""Annotation of a block with the name of the instruction that is to compute it."""


def for_cpu(
    instructions: Sequence[DotInstruction],
    tiles: Sequence[TileInstruction] = (),
    *,
    layouts: bool = True,
) -> tuple[list[Any], list[Any]]:
    """TVM's rules and post-processors for CPUs, after :mod:`~tvmtune.spaces.select_rule`, with these
    instructions instead of those that TVM 0.27 would take; products that ``tiles`` suit are computed
    with these. Of TVM's own, those for ARM give wrong results or do not compile, and so do those for
    AVX-512 without VNNI (pairs of products saturate) and for AVX-VNNI (it takes AVX-512's). Vectors
    stay within a row of a tile where padding is part of the products. Without ``layouts`` no weights
    are re-ordered."""
    from tvm.s_tir.meta_schedule import Postproc, ScheduleRule, postproc, schedule_rule

    tilings = [
        *(tile_rules.rule(each) for each in tiles),
        *(_tiling(each) for each in instructions),
    ]
    chosen = [select_rule.rule()]
    for rule in ScheduleRule.create("llvm"):
        if isinstance(rule, schedule_rule.MultiLevelTiling):
            chosen += tilings
        chosen.append(rule)
    steps = [tile_rules.check()] if tiles else []
    for step in Postproc.create("llvm"):
        if isinstance(step, postproc.RewriteParallelVectorizeUnroll):
            steps.append(_vectors_in_rows())
        if tilings and isinstance(step, postproc.RewriteLayout):
            steps.append(_compilable(instructions))
            steps.append(postproc.RewriteTensorize(vectorize_init_loop=True))
        if isinstance(step, postproc.RewriteLayout):
            if not layouts:
                continue
            if tiles:
                step = tile_rules.keeping_layouts(step)
        steps.append(step)
    return chosen, steps


def _tiling(instruction: DotInstruction) -> Any:
    """TVM's rule, for weights that are packed as the instruction reads them. TVM itself accepts any
    order, such as that of a matrix (N, K), and then multiplies with the wrong weights."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule import schedule_rule

    @derived_object
    class Tiling(schedule_rule.PyScheduleRule):
        def __init__(self, rule: Any = None) -> None:
            super().__init__()
            self._rule = rule or schedule_rule.MultiLevelTilingWithIntrin(
                instruction.name,
                structure="SSRSRS",
                max_innermost_factor=64,
                reuse_write=schedule_rule.ReuseType(req="may", levels=[1, 2], scope="global"),
            )

        def _initialize_with_tune_context(self, context: Any) -> None:
            self._rule._initialize_with_tune_context(context)

        def apply(self, sch: Schedule, block: Any) -> list[Schedule]:
            if cpu_tiles.reads_blocks(sch.get(block), instruction.lanes, instruction.terms):
                return list(self._rule.apply(sch, block))
            return [sch]

        def clone(self) -> Any:
            return Tiling(self._rule.clone())

    return Tiling()


def _vectors_in_rows() -> Any:
    """A post-processor that keeps the vectors of a product whose operands are conditional within a row
    of its tile.

    TVM joins rows in vectors of at most 64 elements. If a condition, such as that for padding, then
    differs between lanes, it makes a loop over the elements instead: 3x3 kernels with 16 outputs and
    lines of 128 pixels ran at a fifth of the speed.
    """
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.postproc import PyPostproc

    @derived_object
    class VectorsInRows(PyPostproc):
        def _initialize_with_tune_context(self, context: Any) -> None:
            pass

        def apply(self, sch: Schedule) -> bool:
            root = sch.get_sblock("root")
            most = least = int(sch.get(root).annotations.get(_VECTORIZE, 0))
            for child in sch.get_child_blocks(root):
                block = sch.get(child)
                if tile_rules.TILED not in block.annotations:
                    continue
                row = int(sch.get(sch.get_loops(child)[-1]).extent)
                if 1 < row < least and blocks.is_conditional(block):
                    least = row
            if least < most:
                sch.unannotate(root, _VECTORIZE)
                sch.annotate(root, _VECTORIZE, least)
            return True

        def clone(self) -> Any:
            return _vectors_in_rows()

    return VectorsInRows()


def _compilable(instructions: Sequence[DotInstruction]) -> Any:
    """A post-processor that rejects candidates that convert or pad data within the products, which no
    instruction computes: TVM rejects them, too, but prints a warning for each. It also rejects those
    with a loop directly around the instruction, which TVM would turn into a vector of its vectors:
    building fails."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.postproc import PyPostproc

    data = {each.name: each.data for each in instructions}

    @derived_object
    class Compilable(PyPostproc):
        def _initialize_with_tune_context(self, context: Any) -> None:
            pass

        def apply(self, sch: Schedule) -> bool:
            for child in sch.get_child_blocks(sch.get_sblock("root")):
                block = sch.get(child)
                name = str(block.annotations.get(_TENSORIZED, ""))
                if name not in data:
                    continue
                around = sch.get(sch.get_loops(child)[-1])
                if int(around.extent) > 1 or not _reads_plainly(block, data[name]):
                    return False
            return True

        def clone(self) -> Any:
            return _compilable(instructions)

    return Compilable()


def _reads_plainly(block: Any, dtype: str) -> bool:
    """Whether a block multiplies elements of an array of this type as they are stored."""
    reads = block.reads[:-1]
    return any(str(r.source.dtype) == dtype for r in reads) and not blocks.is_conditional(block)
