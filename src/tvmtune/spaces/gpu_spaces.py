"""Design spaces for GPUs: TVM's rules, and a default schedule within the limits of any GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmtune.arrays import numpy_dtype
from tvmtune.errors import TvmtuneError
from tvmtune.passes.blocks import blocks, is_reduction, reduces
from tvmtune.spaces import register_tiles, rules, tensor_intrinsics, tiling
from tvmtune.spaces.rule_space import RuleSpace, applying, replay, tune_context
from tvmtune.types import Device, ExtraSpace, product

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule.space_generator import SpaceGenerator


DEFAULT_DRAWS = 16
"""Random draws among which :class:`DrawnSpace` looks for its default schedule."""
REGISTER_TILES = "register-tiles"
"""Implementation of depthwise convolutions and the like by :class:`RegisterTiles`."""
MAX_UNCACHED_SUM = 32
"""Longest sum whose operands are hardly reused, so that copying them to shared memory would not pay."""


class GpuSpace(RuleSpace):
    """What TVM's rules for GPUs generate: tiles of threads and virtual threads that load their operands
    into shared memory.

    ``lanes``: values per access. The default schedule of a product is a tile in registers; everything
    else gets dlight's.
    """

    inline_padding = True
    """Whether padding is computed inside products, by bounds checks."""
    shares_sums = True
    """Whether threads share the sums of a matrix-vector product: without, most of a GPU is idle."""
    vector_accesses = 1
    """Accesses in the longest vector of a :mod:`~tvmtune.spaces.register_tiles` schedule."""

    def __init__(self, target: dict[str, Any], lanes: int = 4) -> None:
        super().__init__(target, vector=lanes)
        self.lanes = lanes

    def generator(self) -> SpaceGenerator:
        # By default TVM takes the rules for tensor cores on NVIDIA GPUs, which compute in other
        # precisions than the network's.
        from tvm.s_tir.meta_schedule import ScheduleRule
        from tvm.s_tir.meta_schedule.schedule_rule import MultiLevelTiling

        tensor_intrinsics.load_for(str(self.target["kind"]))
        rules.register()
        chosen = ScheduleRule.create("cuda")
        return applying(
            [tiling.adapted(r) if isinstance(r, MultiLevelTiling) else r for r in chosen], "cuda"
        )

    def choose(self, mod: tvm.IRModule, target: tvm.target.Target) -> Schedule:
        from tvm.s_tir.dlight import gpu

        multiplies = is_product(mod)
        shared = multiplies and self.shares_sums and _has_one_row(mod)
        if multiplies and not shared:
            tiles = self._register_tiles()
            tiled = register_tiles.default_schedule(mod, target, tiles, self.lanes)
            if tiled is not None:
                return tiled
        dlight_rules: list[Any] = [gpu.Fallback()]
        if shared or not multiplies:
            # These reduce with all threads of a group, which takes local memory.
            dlight_rules = [gpu.Reduction(), gpu.GeneralReduction(), *dlight_rules]
        most = int(target.attrs["max_threads_per_block"])
        with target:
            for rule in dlight_rules:
                made = rule.apply(mod["main"], target, False)
                for schedule in made if isinstance(made, list) else [made] * (made is not None):
                    if group_size(schedule.mod["main"]) <= most:
                        return schedule
        remaining = super().choose(mod, target)
        if not group_size(remaining.mod["main"]):  # the CPU would run it, on the GPU's memory
            names = ", ".join(
                str(b.name_hint) for b in blocks(mod["main"]) if b.name_hint != "root"
            )
            raise TvmtuneError(
                f"no GPU kernel computes {names}: leave that part of the network to the program that "
                "uses the library, or compile for a CPU"
            )
        return remaining

    def _register_tiles(self) -> SpaceGenerator:
        return register_tiles.generator(
            self.target,
            self.lanes,
            inline_padding=self.inline_padding,
            accesses=self.vector_accesses,
        )


class RegisterTiles(GpuSpace):
    """Tiles in registers, by the rules of :mod:`tvmtune.spaces.register_tiles`."""

    def generator(self) -> SpaceGenerator:
        return self._register_tiles()


class DrawnSpace(GpuSpace):
    """A space whose default schedule is drawn from its own rules, to show what they are worth."""

    def choose(self, mod: tvm.IRModule, target: tvm.target.Target) -> Schedule:
        for seed in range(1, 1 + DEFAULT_DRAWS):
            context = tune_context(mod, target, self.generator(), seed=seed)
            postprocs = list(context.space_generator.postprocs)
            for design in context.generate_design_space():
                if (schedule := replay(mod, design.trace, postprocs, seed)) is not None:
                    return schedule
        return super().choose(mod, target)


def vector_lanes(mod: tvm.IRModule, device: Device) -> int:
    """How many values of the workload's output fit into ``vector_unit_bytes``."""
    size = numpy_dtype(str(mod["main"].params[-1].dtype)).itemsize
    return max(1, int(device.params["vector_unit_bytes"]) // size)


def space(mod: tvm.IRModule, device: Device) -> GpuSpace:
    """The space for any workload."""
    return GpuSpace(device.target, vector_lanes(mod, device))


def register_tiles_for(device: Device) -> ExtraSpace:
    """:class:`RegisterTiles` for products with short sums, such as depthwise convolutions."""

    def for_short_sums(mod: tvm.IRModule) -> RegisterTiles | None:
        sums = [
            product([int(axis.dom.extent) for axis in block.iter_vars if is_reduction(axis)])
            for block in blocks(mod["main"])
        ]
        if not is_product(mod) or max(sums) > MAX_UNCACHED_SUM:
            return None
        return RegisterTiles(device.target, vector_lanes(mod, device))

    return ExtraSpace(REGISTER_TILES, for_short_sums)


def group_size(func: Any) -> int:
    """Threads in the largest group that the function launches; 0 if it launches none."""
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
    """Whether one of its reductions sums products, as convolutions and matrix products do."""
    return any(reduces(block) and _multiplies(block) for block in blocks(mod["main"]))


def _has_one_row(mod: tvm.IRModule) -> bool:
    """Whether the outputs of its sums lie along a single axis."""
    return all(
        sum(int(axis.dom.extent) > 1 for axis in block.iter_vars if not is_reduction(axis)) <= 1
        for block in blocks(mod["main"])
        if reduces(block)
    )


def _multiplies(block: Any) -> bool:
    """Whether it multiplies two different loads: squares do not count."""
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
