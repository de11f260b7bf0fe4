"""Spaces for GPUs: TVM's rules, and a default schedule within the limits of any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmtune.errors import TvmtuneError
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
        left = super().default(mod, target)
        if not _launches(left.mod["main"]):  # the CPU would run it, on memory that is not its own
            names = ", ".join(
                str(b.name_hint) for b in blocks(mod["main"]) if b.name_hint != "root"
            )
            raise TvmtuneError(
                f"there is no kernel for GPUs that computes {names}: leave that part of the network to "
                "the program that uses the library, or compile for a CPU."
            )
        return left


def _launches(func: Any) -> bool:
    """Whether threads of a GPU run it."""
    from tvm import tirx
    from tvm_ffi import structural_walk

    found: list[Any] = []

    def look(node: Any) -> None:
        if isinstance(node, tirx.AttrStmt):
            found.extend([node] * (node.attr_key == "thread_extent"))
        elif node.kind == tirx.ForKind.THREAD_BINDING:
            found.append(node)

    structural_walk(func.body, [(tirx.AttrStmt, look), (tirx.For, look)], order="post")
    return bool(found)


def is_product(mod: tvm.IRModule) -> bool:
    """Whether one of its sums is over products of two buffers: a convolution, a matrix product."""
    return any(
        any(int(axis.iter_type) == 2 for axis in block.iter_vars)  # a reduction
        and len({str(region.source.name) for region in block.reads} - _written(block)) > 1
        for block in blocks(mod["main"])
    )


def _written(block: Any) -> set[str]:
    return {str(region.source.name) for region in block.writes}
