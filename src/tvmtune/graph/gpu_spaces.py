"""Spaces for GPUs: TVM's rules, and a default schedule within the limits of any of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tvmtune.errors import TvmtuneError
from tvmtune.graph import intrinsics, register_tiles, rules, tiling
from tvmtune.graph.sites import blocks
from tvmtune.graph.spaces import RuleSpace, applying, replay, tune_context
from tvmtune.networks.inputs import numpy_dtype
from tvmtune.types import Device, Space, product

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule.space_generator import SpaceGenerator


DRAWS = 16
"""Among which a default schedule is looked for, where it is drawn."""
REGISTER_TILES = "register-tiles"
"""The implementation of depthwise convolutions and the like by :class:`RegisterTiles`."""
SHORT = 32
"""Products in a sum of which the operands are hardly used again: copying them would not pay."""


class GpuSpace(RuleSpace):
    """What TVM's rules for GPUs generate: tiles of threads and virtual threads that load their operands
    to memory that the threads of a group share.

    ``lanes``: values in one access. The default schedule of products is a tile in registers, that
    of all else dlight's.
    """

    inline_padding = True
    """Whether products look for themselves where there is none of the picture."""

    def __init__(self, target: dict[str, Any], lanes: int = 4) -> None:
        super().__init__(target, vector=lanes)
        self.lanes = lanes

    def generator(self) -> SpaceGenerator:
        # By itself TVM would take those for tensor cores for GPUs of NVIDIA, which compute in other
        # precisions than the network's.
        from tvm.s_tir.meta_schedule import ScheduleRule
        from tvm.s_tir.meta_schedule.schedule_rule import MultiLevelTiling

        intrinsics.load_for(str(self.target["kind"]))
        rules.register()
        chosen = ScheduleRule.create("cuda")
        return applying(
            [tiling.adapted(r) if isinstance(r, MultiLevelTiling) else r for r in chosen], "cuda"
        )

    def choose(self, mod: tvm.IRModule, target: tvm.target.Target) -> Schedule:
        from tvm.s_tir.dlight import gpu

        multiplies = is_product(mod)
        if multiplies:
            found = register_tiles.first(mod, target, self._register_tiles(), self.lanes)
            if found is not None:
                return found
        ways: list[Any] = [gpu.Fallback()]
        if not multiplies:
            # They reduce with all threads of a group, which takes local memory.
            ways = [gpu.Reduction(), gpu.GeneralReduction(), *ways]
        most = int(target.attrs["max_threads_per_block"])
        with target:
            for way in ways:
                made = way.apply(mod["main"], target, False)
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

    def _register_tiles(self) -> SpaceGenerator:
        return register_tiles.generator(self.target, self.lanes, inline_padding=self.inline_padding)


class RegisterTiles(GpuSpace):
    """Tiles in registers, by the rules of :mod:`tvmtune.graph.register_tiles`."""

    def generator(self) -> SpaceGenerator:
        return self._register_tiles()


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


def vector_lanes(mod: tvm.IRModule, device: Device) -> int:
    """Values of the workload's output in ``vector_unit_bytes`` bytes."""
    size = numpy_dtype(str(mod["main"].params[-1].dtype)).itemsize
    return max(1, int(device.params["vector_unit_bytes"]) // size)


def space(mod: tvm.IRModule, device: Device) -> GpuSpace:
    """The space for any workload."""
    return GpuSpace(device.target, vector_lanes(mod, device))


def further(device: Device) -> dict[str, Callable[[Any], Space | None]]:
    """Further spaces by the names of their implementations, for the workloads that they suit."""

    def for_short_sums(mod: tvm.IRModule) -> RegisterTiles | None:
        sums = [
            product([int(axis.dom.extent) for axis in block.iter_vars if int(axis.iter_type) == 2])
            for block in blocks(mod["main"])
        ]
        if not is_product(mod) or max(sums) > SHORT:
            return None
        return RegisterTiles(device.target, vector_lanes(mod, device))

    return {REGISTER_TILES: for_short_sums}


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
