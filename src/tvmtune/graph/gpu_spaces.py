"""Spaces for GPUs: TVM's rules, and a default schedule within the limits of any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmtune.errors import TvmtuneError
from tvmtune.graph.sites import blocks
from tvmtune.graph.spaces import RuleSpace, replay, tune_context
from tvmtune.types import product

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir import Schedule


DRAWS = 16
"""Among which a default schedule is looked for, where it is drawn."""


class GpuSpace(RuleSpace):
    """What TVM's rules for GPUs generate: tiles of threads and virtual threads that load their operands
    to local memory together. The default schedule is by dlight, without local memory for products."""

    def choose(self, mod: tvm.IRModule, target: tvm.target.Target) -> Schedule:
        from tvm.s_tir.dlight import gpu

        rules: list[Any] = [gpu.Fallback()]
        if not is_product(mod):
            # They reduce with all threads of a group, which takes local memory.
            rules = [gpu.Reduction(), gpu.GeneralReduction(), *rules]
        most = int(target.attrs["max_threads_per_block"])
        with target:
            for rule in rules:
                made = rule.apply(mod["main"], target, False)
                for found in made if isinstance(made, list) else [made] * (made is not None):
                    if group_size(found.mod["main"]) <= most:
                        return found
        left = super().choose(mod, target)
        if not group_size(left.mod["main"]):  # the CPU would run it, on memory that is not its own
            names = ", ".join(
                str(b.name_hint) for b in blocks(mod["main"]) if b.name_hint != "root"
            )
            raise TvmtuneError(
                f"there is no kernel for GPUs that computes {names}: leave that part of the network to "
                "the program that uses the library, or compile for a CPU."
            )
        return left


class DrawnSpace(GpuSpace):
    """One whose default schedule is one that its rules draw, so that it tells what they are worth."""

    def choose(self, mod: tvm.IRModule, target: tvm.target.Target) -> Schedule:
        for seed in range(1, 1 + DRAWS):
            context = tune_context(mod, target, self.generator(), seed=seed)
            postprocs = list(context.space_generator.postprocs)
            for design in context.generate_design_space():
                if (schedule := replay(mod, design.trace, postprocs, seed)) is not None:
                    return schedule
        return super().choose(mod, target)


def group_size(func: Any) -> int:
    """Threads in the largest group that runs a part of it; 0 where no GPU does."""
    from tvm import tirx
    from tvm_ffi import structural_walk

    most: dict[str, int] = {}

    def launched(tag: str, extent: Any) -> None:
        size = int(extent) if isinstance(extent, (int, tirx.IntImm)) else 1
        most[tag] = max(most.get(tag, 1), size)

    def look(node: Any) -> None:
        if isinstance(node, tirx.For):
            if node.thread_binding is not None:
                launched(str(node.thread_binding.thread_tag), node.extent)
        elif node.attr_key == "thread_extent":
            launched(str(node.node.thread_tag), node.value)

    structural_walk(func.body, [(tirx.AttrStmt, look), (tirx.For, look)], order="post")
    if not most:
        return 0
    return product([n for tag, n in most.items() if tag.startswith("threadIdx")])


def is_product(mod: tvm.IRModule) -> bool:
    """Whether one of its sums is over products, as those of convolutions and matrix products are."""
    return any(
        any(int(axis.iter_type) == 2 for axis in block.iter_vars)  # a reduction
        and _multiplies(block)
        for block in blocks(mod["main"])
    )


def _multiplies(block: Any) -> bool:
    """Whether it multiplies values of two places: squares are none."""
    from tvm import tirx
    from tvm.ir import TensorLoad
    from tvm_ffi import structural_hash, structural_walk

    found: list[bool] = []

    def loads(expr: Any) -> set[int]:
        at: list[int] = []
        structural_walk(expr, (TensorLoad, lambda load: at.append(structural_hash(load))))
        return set(at)

    def look(node: Any) -> None:
        if isinstance(node, tirx.Mul):
            left, right = loads(node.a), loads(node.b)
            found.append(bool(left) and bool(right) and left != right)

    structural_walk(block.body, (object, look))
    return any(found)
