"""The on-chip layout of a tile of a packed convolution, and its uops.

Each slot has its own accumulators and biases, and space for input and weights. Slots of the same
rows share their input, slots of the same output channels their weights; shared buffers are doubled.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmtune_vta.codegen.knobs import InfeasibleKnobs, Knobs, check_tiles
from tvmtune_vta.codegen.workload import Convolution, Epilogue, Taps
from tvmtune_vta.hardware import isa
from tvmtune_vta.hardware.bitfields import Uops
from tvmtune_vta.hardware.config import Config, Memory
from tvmtune_vta.hardware.rules import HAZARD_STEPS

PIECES = 4
"""Maximum number of pieces of a slot's epilogue, by output channels: one is stored while the next
is computed."""
DIMENSIONS = ("b", "co", "h", "w")


class Tiling:
    """Sizes in elements of the memories, and the instruction fields derived from them.

    Raises :class:`InfeasibleKnobs` for knobs that the hardware has no room for.
    """

    def __init__(self, conv: Convolution, epilogue: Epilogue, knobs: Knobs, config: Config) -> None:
        check_tiles(knobs, conv, config)
        self.conv, self.knobs, self.config = conv, knobs, config
        # With a kernel of one row, rows between strides are not loaded.
        self.row_step = conv.stride_h if conv.kernel_h == 1 else 1
        taps = conv.taps
        (self.first_row, rows), (self.first_column, columns) = (_input_span(each) for each in taps)
        self.rows_in = (knobs.tile_h - 1) * conv.stride_h // self.row_step + rows
        self.columns_in = (knobs.tile_w - 1) * conv.stride_w + columns
        self.taps = conv.kernel_h * conv.kernel_w
        self.rows_out, self.columns_out = knobs.tile_h * conv.up_h, knobs.tile_w * conv.up_w
        self.phases = [
            _Phase(y * self.columns_out + x, tuple(itertools.product(taps_y, taps_x)))
            for y, taps_y in enumerate(taps[0])
            for x, taps_x in enumerate(taps[1])
        ]
        self.inp = knobs.tile_b * knobs.tile_ci * self.rows_in * self.columns_in
        self.wgt = knobs.tile_co * knobs.tile_ci * self.taps
        self.acc = knobs.tile_b * knobs.tile_co * self.rows_out * self.columns_out
        self.bias = knobs.tile_co if epilogue.bias else 0
        tile = (knobs.tile_b, knobs.tile_co, knobs.tile_h, knobs.tile_w)
        self.extent = dict(zip(DIMENSIONS, tile, strict=True))
        for memory, size in (
            (Memory.INP, self.inp),
            (Memory.WGT, self.wgt),
            (Memory.ACC, self.acc + self.bias),
        ):
            if (needed := size * knobs.slots) > config.depth(memory):
                raise InfeasibleKnobs(
                    f"{needed} elements of {memory.name} are needed, more than "
                    f"{config.depth(memory)}"
                )
        self.looped, self.inner = self._loops()
        self.uops_per_step = int(np.prod([self.extent[d] for d in self.inner]))
        """Uops for one tap of a block of input channels, or for a piece of an epilogue."""
        self.sides = 2 if knobs.slots > 1 else 1
        self.pieces = 1
        if "co" in self.looped:
            self.pieces = max(n for n in range(1, PIECES + 1) if knobs.tile_co % n == 0)
        products = [len(phase.taps) * knobs.tile_ci * self.uops_per_step for phase in self.phases]
        self.parts = [
            *itertools.chain.from_iterable([products] * self.sides),
            *([self.uops_per_step] * (len(self.phases) * self.pieces)),
        ]
        """Uops of a slot, in order: for each buffer those of its products, phase by phase, then
        phase by phase those of the pieces."""
        self.count = knobs.slots * sum(self.parts)
        """Total number of uops."""
        if self.count > config.uop_limit:
            raise InfeasibleKnobs(f"{self.count} uops are needed, more than {config.uop_limit}")
        strides = self.strides()
        self._begin = [0, *itertools.accumulate(self.parts * knobs.slots)]
        self._dst = strides["dst"]
        self._factors = {
            f"{index}_factor_{part}": strides[index][dimension]
            for index in ("src", "wgt")
            for dimension, part in zip(self.looped, ("out", "in"), strict=True)
        }

    def _loops(self) -> tuple[tuple[str, str], list[str]]:
        """Two dimensions for the instruction's loops, and the others, which become uops: as few as
        possible, but enough that no accumulator is written again while it is in the pipeline."""
        best: tuple[int, tuple[str, str], list[str]] | None = None
        for pair in itertools.combinations(DIMENSIONS, 2):
            rest = [d for d in DIMENSIONS if d not in pair]
            size = int(np.prod([self.extent[d] for d in rest]))
            if size > HAZARD_STEPS and (best is None or size < best[0]):
                best = size, pair, rest
        if best is None:
            raise InfeasibleKnobs(
                f"a tile of {self.acc} outputs is too small: an accumulator would be written twice "
                f"within {HAZARD_STEPS} steps"
            )
        return best[1], best[2]

    def strides(self) -> dict[str, dict[str, Any]]:
        """Increment of each index along each dimension of a slot's tile."""
        knobs, conv = self.knobs, self.conv
        row, plane = self.columns_out, self.rows_out * self.columns_out
        return {
            "dst": {
                "b": knobs.tile_co * plane,
                "co": plane,
                "h": conv.up_h * row,
                "w": conv.up_w,
            },
            "src": {
                "b": knobs.tile_ci * self.rows_in * self.columns_in,
                "co": 0,
                "h": conv.stride_h // self.row_step * self.columns_in,
                "w": conv.stride_w,
            },
            "wgt": {"b": 0, "co": knobs.tile_ci * self.taps, "h": 0, "w": 0},
        }

    def uops(self) -> Uops:
        """For each slot the uops of its products, then of its epilogue; input channels and taps are
        outermost."""
        strides, parts = self.strides(), []
        grid = np.meshgrid(*(np.arange(self.extent[d]) for d in self.inner), indexing="ij")

        def offsets(index: str) -> np.ndarray:
            total = np.zeros(self.uops_per_step, np.int64)
            for dimension, position in zip(self.inner, grid, strict=True):
                total += strides[index][dimension] * position.reshape(-1)
            return total

        knobs = self.knobs
        channel = np.zeros(self.uops_per_step, np.int64)
        for dimension, position in zip(self.inner, grid, strict=True):
            channel += position.reshape(-1) * (dimension == "co")
        threads = itertools.product(range(knobs.oc_nthread), range(knobs.h_nthread))
        for slot, (oc_thread, h_thread) in enumerate(threads):
            dst = slot * self.acc + offsets("dst")
            for side, phase in itertools.product(range(self.sides), self.phases):
                src, wgt = self._taps(phase)
                parts.append(
                    isa.pack_uops(
                        self.config,
                        np.broadcast_to(dst + phase.offset, (len(src), self.uops_per_step)),
                        self.input_address(h_thread, side) + src + offsets("src"),
                        self.weight_address(oc_thread, side) + wgt + offsets("wgt"),
                    )
                )
            biases = self.bias_address(slot) + channel
            for phase, piece in itertools.product(self.phases, range(self.pieces)):
                first = piece * (knobs.tile_co // self.pieces)
                place = dst + phase.offset + first * strides["dst"]["co"]
                sources = biases + first if self.bias else place
                parts.append(isa.pack_uops(self.config, place, sources))
        return np.concatenate(parts)

    def _taps(self, phase: _Phase) -> tuple[np.ndarray, np.ndarray]:
        """Offsets of input and weights for each input channel and tap, as columns."""
        conv, step = self.conv, self.row_step
        src, wgt = [], []
        for ci in range(self.knobs.tile_ci):
            for (ky, y), (kx, x) in phase.taps:
                row, column = (y - self.first_row) // step, x - self.first_column
                src.append((ci * self.rows_in + row) * self.columns_in + column)
                wgt.append((ci * conv.kernel_h + ky) * conv.kernel_w + kx)
        return np.array(src, np.int64).reshape(-1, 1), np.array(wgt, np.int64).reshape(-1, 1)

    def input_address(self, h_thread: int, side: int) -> int:
        """Address of the input of these rows, for chunks of this parity."""
        shared = self.knobs.oc_nthread > 1
        return self.inp * (2 * h_thread + side if shared else h_thread)

    def weight_address(self, oc_thread: int, side: int) -> int:
        shared = self.knobs.h_nthread > 1
        return self.wgt * (2 * oc_thread + side if shared else oc_thread)

    def bias_address(self, slot: int) -> int:
        """After all slots' accumulators."""
        return self.knobs.slots * self.acc + slot * self.bias

    def products(self, slot: int, side: int) -> list[dict[str, Any]]:
        """Fields of the GEMMs over a slot's tile, for chunks of this parity."""
        gemms, count = [], len(self.phases)
        for number in range(side * count, (side + 1) * count):
            if self.parts[number]:  # phases of a kernel smaller than its stride may have no taps
                gemms.append(self._loop_fields(slot, number, entire=True) | self._factors)
        return gemms

    def piece(self, slot: int, piece: int) -> list[dict[str, Any]]:
        """Fields of the operations on a piece of a slot's accumulators, one per phase."""
        return [self._loop_fields(slot, number + piece, entire=False) for number in self._ends()]

    def sums(self, slot: int) -> list[dict[str, Any]]:
        """Fields of the operations on all of a slot's accumulators, one per phase."""
        return [self._loop_fields(slot, number, entire=True) for number in self._ends()]

    def _ends(self) -> range:
        """Indices in ``parts`` of each phase's first piece."""
        return range(self.sides * len(self.phases), len(self.parts), self.pieces)

    def biases(self) -> dict[str, Any]:
        """Fields that address the biases in an operation on a piece."""
        return {
            f"src_factor_{part}": int(dimension == "co")
            for dimension, part in zip(self.looped, ("out", "in"), strict=True)
        }

    def _loop_fields(self, slot: int, number: int, *, entire: bool) -> dict[str, Any]:
        """Fields of an instruction with the uops of one of a slot's parts."""
        begin = self._begin[slot * len(self.parts) + number]
        fields = {"uop_bgn": begin, "uop_end": begin + self.parts[number]}
        for dimension, part in zip(self.looped, ("out", "in"), strict=True):
            cut = 1 if entire or dimension != "co" else self.pieces
            fields[f"iter_{part}"] = self.extent[dimension] // cut
            fields[f"dst_factor_{part}"] = self._dst[dimension]
        return fields


@dataclass(frozen=True)
class _Phase:
    """One of the ``up_h`` times ``up_w`` phases of a transposed convolution: output pixels at the
    same position within their units, which use the same kernel taps."""

    offset: int
    """Offset of its first output pixel from the tile's first."""
    taps: tuple[tuple[tuple[int, int], tuple[int, int]], ...]
    """(kernel, input) indices of rows and columns, as in :attr:`Convolution.taps`."""


def _input_span(taps: Taps) -> tuple[int, int]:
    """The first input that a unit needs, and the number of inputs."""
    distances = [distance for phase in taps for _, distance in phase]
    return min(distances), max(distances) - min(distances) + 1
