"""Analytical rejection of tilings that exceed a GPU's limits.

Most tilings that TVM's rules for GPUs generate have too few threads per block, or need too much shared
memory. TVM finds out by lowering each, which takes 10 to 80 ms; here the tile extents suffice.

The first factor of each tile counts thread blocks, or successive copies; the others are what a block
holds at once. This is true of all tiles that TVM's rules bind to ``threadIdx.x``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvmtune.arrays import numpy_dtype
from tvmtune.passes.blocks import blocks
from tvmtune.spaces.traces import SAMPLING
from tvmtune.types import product

if TYPE_CHECKING:
    import tvm


@dataclass(frozen=True)
class _Operand:
    """An operand that a block reads through shared memory."""

    coefficients: Sequence[Sequence[int]]
    """For each index of an element, the coefficients of the block's axes."""
    bytes: int

    def size(self, extents: Sequence[int]) -> int:
        """Lower bound of the bytes that a tile of these extents reads."""
        spans = [
            1 + sum(c * (extent - 1) for c, extent in zip(each, extents, strict=True))
            for each in self.coefficients
        ]
        return self.bytes * product(spans)


@dataclass(frozen=True)
class GpuLimits:
    """The limits on the tiles of a design's one tiled product."""

    threads: Sequence[tuple[int, int]]
    """(sample, factor) pairs; the product of these factors is the number of threads."""
    least: int
    most: int
    axes: Sequence[int | None]
    """The sample that splits each axis of the block; None for an axis without one."""
    operands: Sequence[_Operand]
    versions: int
    """Copies of each operand that exist at once: with pipelining the next is loaded during use."""
    memory: int
    """Bytes of shared memory."""

    def allow(self, decisions: Sequence[Any]) -> bool:
        """Whether a kernel with these decisions for the design's samples, in program order, may be
        valid. Open decisions (None) count as valid."""
        if any(decisions[sample] is None for sample in self.axes if sample is not None):
            return True
        if not self.least <= product([decisions[s][part] for s, part in self.threads]) <= self.most:
            return False
        extents = [1 if a is None else product(decisions[a][1:]) for a in self.axes]
        used = self.versions * sum(each.size(extents) for each in self.operands)
        return used <= self.memory


def limits(mod: tvm.IRModule, trace: Any, target: tvm.target.Target) -> GpuLimits | None:
    """The limits of a design of ``mod``; None unless it has exactly one tiled block."""
    reader = _LimitsReader()
    for inst in trace.insts:
        reader.read(inst)
    if len(reader.tiled) != 1 or reader.threads is None or len(reader.range) < 2:
        return None
    block = next(b for b in blocks(mod["main"]) if str(b.name_hint) == reader.tiled[0])
    if len(block.iter_vars) != len(reader.axes) or not reader.known():
        return None
    return GpuLimits(
        threads=reader.threads,
        least=reader.range["low"],
        most=reader.range["high"],
        axes=reader.axes,
        operands=[_operand(block, number) for number in reader.copied],
        versions=reader.versions,
        memory=int(target.attrs["max_shared_memory_per_block"]),
    )


class _LimitsReader:
    """Traces loops through a design's instructions, from samples to thread bindings."""

    def __init__(self) -> None:
        self.tiled: list[str] = []
        self.axes: list[int | None] = []
        self.copied: list[int] = []
        """Operands that the tiled block reads through shared memory."""
        self.threads: list[tuple[int, int]] | None = None
        self.range: dict[str, int] = {}
        self.versions = 1
        self._samples = 0
        self._names: dict[Any, str] = {}
        self._factors: dict[Any, tuple[int, int]] = {}
        self._loops: dict[Any, list[tuple[int, int]]] = {}
        """The factors whose product is the loop's extent."""
        self._tiling: Any = None
        self._awaited: list[Any] = []
        """Loops of the tiled block that have not been split yet."""

    def read(self, inst: Any) -> None:
        kind = str(inst.kind.name)
        if hasattr(self, name := f"_{kind}"):
            getattr(self, name)(inst)
        self._samples += kind in SAMPLING

    def known(self) -> bool:
        """Whether every factor of the thread count splits one of the block's axes."""
        return self.threads is not None and {s for s, _ in self.threads} <= {*self.axes}

    def _GetSBlock(self, inst: Any) -> None:
        self._names[inst.outputs[0]] = str(inst.attrs[0])

    def _GetLoops(self, inst: Any) -> None:
        if self._tiling is not None and inst.inputs[0].same_as(self._tiling) and not self.axes:
            self._awaited = [*inst.outputs]
            self.axes = [None] * len(self._awaited)

    def _SamplePerfectTile(self, inst: Any) -> None:
        for at, loop in enumerate(self._awaited):
            if loop.same_as(inst.inputs[0]):
                self.axes[at] = self._samples
        for part, variable in enumerate(inst.outputs):
            self._factors[variable] = self._samples, part

    def _Split(self, inst: Any) -> None:
        for loop, factor in zip(inst.outputs, inst.inputs[1:], strict=True):
            known = self._factors.get(factor) if hasattr(factor, "same_as") else None
            self._loops[loop] = [] if known is None else [known]

    def _Fuse(self, inst: Any) -> None:
        if all(loop in self._loops for loop in inst.inputs):
            self._loops[inst.outputs[0]] = [f for loop in inst.inputs for f in self._loops[loop]]

    def _Bind(self, inst: Any) -> None:
        if str(inst.attrs[0]) == "threadIdx.x" and self.threads is None:
            # Empty for a loop that tiles do not split, such as that of a second kernel.
            self.threads = self._loops.get(inst.inputs[0]) or None

    def _Annotate(self, inst: Any) -> None:
        name = str(inst.attrs[0])
        if name == "meta_schedule.tiling_structure":
            self.tiled.append(self._names.get(inst.inputs[0], ""))
            self._tiling = inst.inputs[0]
        if name == "software_pipeline_stage":
            self.versions = 1 + max(int(stage) for stage in inst.inputs[1])
        for end in ("low", "high"):
            if name == f"meta_schedule.thread_extent_{end}_inclusive":
                self.range[end] = int(inst.inputs[1])

    def _CacheRead(self, inst: Any) -> None:
        if str(inst.attrs[1]) == "shared" and inst.inputs[0].same_as(self._tiling):
            self.copied.append(int(inst.attrs[0]))


def _operand(block: Any, number: int) -> _Operand:
    from tvm.sym import detect_linear_equation

    region = block.reads[number]
    variables = [axis.var for axis in block.iter_vars]
    coefficients = []
    for index in region.region:
        # Empty if the index is not linear: it then counts as one element.
        linear = [*detect_linear_equation(index.min, variables)][: len(variables)]
        known = [abs(int(c)) if hasattr(c, "value") else 0 for c in linear]
        coefficients.append(known or [0] * len(variables))
    return _Operand(coefficients, numpy_dtype(str(region.source.dtype)).itemsize)
