"""A schedule rule for selects in epilogues, such as ``where`` and leaky ReLU.

TVM's rule for inlining skips them, because it must not copy the predicates of padding into sums. Then a
block of the epilogue may have two producers of which one is not tiled: TVM's tiling fails, and the
kernel has no schedule at all, which makes it tens of times slower.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tvmtune.passes import blocks

if TYPE_CHECKING:
    from tvm.s_tir import Schedule

_MOST_READS = 64
"""Reads that inlining a block may add to its consumers. A chain of selects that read their operand
several times would grow exponentially."""


def rule() -> Any:
    """Inlines selects that no sum reads, unless they are the kernel's result."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule import schedule_rule

    @derived_object
    class InlineSelects(schedule_rule.PyScheduleRule):
        def _initialize_with_tune_context(self, context: Any) -> None:
            pass

        def apply(self, sch: Schedule, block: Any) -> list[Schedule]:
            pending = [block]
            while pending:
                each = pending.pop()
                if not _is_select(sch.get(each)) or not _is_in_epilogue(sch, each):
                    continue
                consumers = list(sch.get_consumers(each))
                if _added_reads(sch.get(each), map(sch.get, consumers)) > _MOST_READS:
                    continue
                # TVM raises several unrelated types for a block that it cannot inline.
                with contextlib.suppress(Exception):
                    sch.compute_inline(each)
                    pending += consumers  # they are selects from now on
            return [sch]

        def clone(self) -> Any:
            return InlineSelects()

    return InlineSelects()


def _is_select(block: Any) -> bool:
    """Whether a block without sums computes its elements by a select."""
    from tvm import tirx
    from tvm_ffi import structural_walk

    if not isinstance(block.body, tirx.BufferStore) or blocks.reduces(block):
        return False
    selects: list[Any] = []
    structural_walk(block.body, (tirx.Select, selects.append))
    return bool(selects) or blocks.is_conditional(block)


def _added_reads(block: Any, consumers: Iterable[Any]) -> int:
    """How many reads the consumers have in place of those of the block's result, if it is inlined."""
    own = len(_reads(block))
    result = block.body.buffer
    return own * sum(load.source.same_as(result) for each in consumers for load in _reads(each))


def _reads(block: Any) -> list[Any]:
    from tvm import ir
    from tvm_ffi import structural_walk

    found: list[Any] = []
    structural_walk(block.body, (ir.TensorLoad, found.append))
    return found


def _is_in_epilogue(sch: Schedule, block: Any) -> bool:
    """Whether the kernel has sums, and blocks read ``block``, none of which is a sum or read by one."""
    following = list(sch.get_consumers(block))
    if not following or _is_result(sch, block):
        return False
    while following:
        each = following.pop()
        if blocks.reduces(sch.get(each)):
            return False
        following += sch.get_consumers(each)
    root = sch.get_sblock("root")
    return any(blocks.reduces(sch.get(each)) for each in sch.get_child_blocks(root))


def _is_result(sch: Schedule, block: Any) -> bool:
    """Whether it writes a parameter of the kernel; another kernel reads that as well."""
    function = sch.mod["main"]
    return any(sch.get(block).body.buffer.same_as(each) for each in function.params)
