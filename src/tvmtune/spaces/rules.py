"""The core's custom schedule rules, by the names that blocks carry in ``schedule_rule``."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tvmtune.errors import first_line
from tvmtune.operators import (
    cpu_gemm,
    grouped,
    strassen,
    tiled_loops,
    winograd,
    winograd_fused,
    winograd_rows,
)
from tvmtune.passes import attention, few_queries, low_bit_weights
from tvmtune.passes.blocks import blocks

Rule = Callable[[Any, Any], list[Any]]
"""``(schedule, block) -> schedules``."""


def no_custom_rule(sch: Any, block: Any) -> list[Any]:
    """Leave the block as it is; the general rules skip blocks that name a rule."""
    return [sch]


RULES: dict[str, Rule] = {
    "tvmtune.winograd_input": winograd.schedule_input,
    "tvmtune.winograd_output": winograd.schedule_output,
    "tvmtune.winograd_rows": winograd_rows.schedule,
    winograd_fused.RULE: winograd_fused.schedule,
    # TVM's rules do not reach them; see :mod:`tvmtune.spaces.cpu_attention` and its neighbors.
    attention.RULE: no_custom_rule,
    few_queries.RULE: no_custom_rule,
    low_bit_weights.RULE: no_custom_rule,
    cpu_gemm.RULE: cpu_gemm.schedule,
    cpu_gemm.BY_VECTORS: cpu_gemm.schedule,
    grouped.RULE: grouped.schedule,
    strassen.RULE: strassen.schedule,
    strassen.OPERAND_RULE: strassen.schedule_operand,
    # TVM's pooling names these rules but defines none; without them it warns on stderr each time.
    "meta_schedule.pool_max": no_custom_rule,
    "meta_schedule.pool_avg": no_custom_rule,
    "meta_schedule.adaptive_pool_max": no_custom_rule,
    "meta_schedule.adaptive_pool_avg": no_custom_rule,
}

BY_VECTORS = (cpu_gemm.BY_VECTORS, grouped.RULE, strassen.RULE, winograd_fused.RULE)
"""Those whose tiles consist of whole vectors: the last axis of the block is their lanes."""
IN_BLOCKS = (strassen.RULE,)
"""Those that tile the blocks of threads, rather than what threads share."""


def lanes_of(mod: Any) -> int:
    """How many lanes the vectors have that a kernel's tiles consist of; 1 if they consist of single
    columns."""
    return max((tiled_loops.lanes(block) for block in _blocks_by(BY_VECTORS, mod)), default=1)


def in_blocks(mod: Any) -> bool:
    """Whether the loops that a kernel tiles are those of a block that one thread computes."""
    return _uses(IN_BLOCKS, mod)


def is_fused_winograd(mod: Any) -> bool:
    """Whether a kernel is one of :mod:`tvmtune.operators.winograd_fused`."""
    return _uses([winograd_fused.RULE], mod)


def _uses(names: Sequence[str], mod: Any) -> bool:
    """Whether a block of a kernel names one of these rules."""
    return any(True for _ in _blocks_by(names, mod))


def _blocks_by(names: Sequence[str], mod: Any) -> Iterator[Any]:
    """A kernel's blocks that name one of these rules."""
    for function in mod.functions.values():
        for block in blocks(function):
            if str(block.annotations.get("schedule_rule", "")) in names:
                yield block


@functools.cache
def register() -> None:
    """Register the rules with MetaSchedule, once: threads may be using them.

    They are for CPUs; GPUs use the general rules alone.
    """
    import tvm_ffi

    for name, rule in RULES.items():
        for kind, function in (("cpu", or_general(name, rule)), ("gpu", no_custom_rule)):
            tvm_ffi.register_global_func(
                f"s_tir.meta_schedule.{kind}.{name}", function, override=True
            )


def or_general(name: str, rule: Rule) -> Rule:
    """``rule``, or the general rules and a warning if it fails. Else the whole kernel would stay
    without a schedule, a hundred times slower."""

    def apply(sch: Any, block: Any) -> list[Any]:
        try:
            return rule(sch.copy(), block)
        except Exception as error:  # TVM raises several unrelated types
            warnings.warn(
                f"schedule rule {name} failed ({first_line(error)}): the general rules take its place",
                stacklevel=2,
            )
            sch.unannotate(block, "schedule_rule")  # general rules skip blocks that name their own
            return [sch]

    return apply
