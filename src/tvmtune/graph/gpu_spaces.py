"""Spaces for GPUs: TVM's rules, and a default schedule within the limits of any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmtune.graph.sites import blocks
from tvmtune.graph.spaces import RuleSpace

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir import Schedule


class GpuSpace(RuleSpace):
    """What TVM's rules for GPUs generate: tiles of threads and virtual threads that load their operands
    to local memory together. The default schedule is by dlight, without local memory for products."""

    def default(self, mod: tvm.IRModule, target: tvm.target.Target) -> Schedule:
        from tvm.s_tir.dlight import gpu

        rules: list[Any] = [gpu.Fallback()]
        if not is_product(mod):
            # They reduce with all threads of a group, which takes local memory.
            rules = [gpu.Reduction(), gpu.GeneralReduction(), *rules]
        with target:
            for rule in rules:
                found = rule.apply(mod["main"], target, False)
                if found is not None:
                    return found if not isinstance(found, list) else found[0]
        return super().default(mod, target)


def is_product(mod: tvm.IRModule) -> bool:
    """Whether one of its sums is over products of two buffers: a convolution, a matrix product."""
    return any(
        any(int(axis.iter_type) == 2 for axis in block.iter_vars)  # a reduction
        and len({str(region.source.name) for region in block.reads} - _written(block)) > 1
        for block in blocks(mod["main"])
    )


def _written(block: Any) -> set[str]:
    return {str(region.source.name) for region in block.writes}
