"""A schedule rule for choices among the values that follow sums, such as ``where`` and leaky ReLU.

TVM's rule for inlining leaves them alone, because it must not copy the checks of padding into sums.
Then a value that follows may have two producers of which one is not tiled: TVM's tiling fails, and the
kernel has no schedule at all, which makes it tens of times slower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm.s_tir import Schedule


def rule() -> Any:
    """Inlines them, unless they are the kernel's result."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule import schedule_rule

    @derived_object
    class InlineChoices(schedule_rule.PyScheduleRule):
        def _initialize_with_tune_context(self, context: Any) -> None:
            pass

        def apply(self, sch: Schedule, block: Any) -> list[Schedule]:
            pending = [block]
            while pending:
                each = pending.pop()
                if _chooses(sch.get(each)) and _follows_sums(sch, each):
                    pending += sch.get_consumers(each)  # they choose from now on
                    sch.compute_inline(each)
            return [sch]

        def clone(self) -> Any:
            return InlineChoices()

    return InlineChoices()


def _chooses(block: Any) -> bool:
    """Whether a block computes a value for each of its elements, which it selects."""
    from tvm import ir, tirx
    from tvm_ffi import structural_walk

    if not isinstance(block.body, tirx.BufferStore) or _sums(block):
        return False
    found: list[bool] = []

    def call(node: Any) -> None:
        found.append(getattr(node.op, "name", "").endswith("if_then_else"))

    selections = (tirx.Select, lambda _: found.append(True))
    structural_walk(block.body, (selections, (ir.Call, call)))
    return any(found)


def _follows_sums(sch: Schedule, block: Any) -> bool:
    """Whether the kernel has sums, none of which read what ``block`` computes, and others do."""
    following = list(sch.get_consumers(block))
    if not following or _is_result(sch, block):
        return False
    while following:
        each = following.pop()
        if _sums(sch.get(each)):
            return False
        following += sch.get_consumers(each)
    root = sch.get_sblock("root")
    return any(_sums(sch.get(each)) for each in sch.get_child_blocks(root))


def _is_result(sch: Schedule, block: Any) -> bool:
    """Whether it writes a parameter of the kernel, which others read as well."""
    function = sch.mod["main"]
    return any(sch.get(block).body.buffer.same_as(each) for each in function.params)


def _sums(block: Any) -> bool:
    from tvm import tirx

    return any(each.iter_type == tirx.IterVar.CommReduce for each in block.iter_vars)
