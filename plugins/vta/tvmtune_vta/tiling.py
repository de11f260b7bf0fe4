"""Where a tile of a packed convolution lies on chip, and the uops that go over it.

A slot has sums, biases, and places for input and weights of its own. Slots of the same rows share their
input, slots of the same output channels their weights: there are two places for those, in turns.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmtune_vta import isa
from tvmtune_vta.config import Config, Memory
from tvmtune_vta.knobs import Knobs, Misfit, check_tiles
from tvmtune_vta.layout import Uops
from tvmtune_vta.rules import DISTANCE
from tvmtune_vta.workload import Convolution, Epilogue, Taps

PIECES = 4
"""Into how many a slot's epilogue is cut at most, by its output channels: one is stored while the next
is computed."""
DIMENSIONS = ("b", "co", "h", "w")


class Tiling:
    """Sizes in elements of the memories, and the fields of instructions that follow from them.

    Raises :class:`Misfit` for knobs that the hardware has no room for.
    """

    def __init__(self, conv: Convolution, epilogue: Epilogue, knobs: Knobs, config: Config) -> None:
        check_tiles(knobs, conv, config)
        self.conv, self.knobs, self.config = conv, knobs, config
        # Of a kernel of one row, those between its steps are not loaded.
        self.row_step = conv.stride_h if conv.kernel_h == 1 else 1
        ways = conv.taps
        (self.first_row, rows), (self.first_column, columns) = (_reach(each) for each in ways)
        self.rows_in = (knobs.tile_h - 1) * conv.stride_h // self.row_step + rows
        self.columns_in = (knobs.tile_w - 1) * conv.stride_w + columns
        self.taps = conv.kernel_h * conv.kernel_w
        self.rows_out, self.columns_out = knobs.tile_h * conv.up_h, knobs.tile_w * conv.up_w
        self.ways = [
            _Way(y * self.columns_out + x, tuple(itertools.product(taps_y, taps_x)))
            for y, taps_y in enumerate(ways[0])
            for x, taps_x in enumerate(ways[1])
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
            if (wanted := size * knobs.slots) > config.depth(memory):
                raise Misfit(
                    f"{wanted} elements of {memory.name} are needed, and there are "
                    f"{config.depth(memory)}"
                )
        self.looped, self.inner = self._loops()
        self.each = int(np.prod([self.extent[d] for d in self.inner]))
        """Uops for one tap of a block of input channels, or for a piece of an epilogue."""
        self.sides = 2 if knobs.slots > 1 else 1
        self.pieces = 1
        if "co" in self.looped:
            self.pieces = max(n for n in range(1, PIECES + 1) if knobs.tile_co % n == 0)
        products = [len(way.taps) * knobs.tile_ci * self.each for way in self.ways]
        self.parts = [
            *itertools.chain.from_iterable([products] * self.sides),
            *([self.each] * (len(self.ways) * self.pieces)),
        ]
        """Uops of a slot, in their order: for each side those of its products, way by way, then way by
        way those of the pieces."""
        self.count = knobs.slots * sum(self.parts)
        """Of uops."""
        if self.count > config.uop_limit:
            raise Misfit(f"{self.count} uops are needed, and there are {config.uop_limit}")
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
        can be, and enough that no accumulator is written twice while it is in the pipeline."""
        best: tuple[int, tuple[str, str], list[str]] | None = None
        for pair in itertools.combinations(DIMENSIONS, 2):
            rest = [d for d in DIMENSIONS if d not in pair]
            size = int(np.prod([self.extent[d] for d in rest]))
            if size > DISTANCE and (best is None or size < best[0]):
                best = size, pair, rest
        if best is None:
            raise Misfit(
                f"a tile of {self.acc} outputs is too small: the same sum would be written twice "
                f"within {DISTANCE} steps"
            )
        return best[1], best[2]

    def strides(self) -> dict[str, dict[str, Any]]:
        """By how much each index grows along each dimension of a slot's tile."""
        knobs, conv = self.knobs, self.conv
        row, picture = self.columns_out, self.rows_out * self.columns_out
        return {
            "dst": {
                "b": knobs.tile_co * picture,
                "co": picture,
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
        """For each slot those of its products, then those of its epilogue; input channels and taps are
        outermost."""
        strides, parts = self.strides(), []
        grid = np.meshgrid(*(np.arange(self.extent[d]) for d in self.inner), indexing="ij")

        def offsets(index: str) -> np.ndarray:
            found = np.zeros(self.each, np.int64)
            for dimension, position in zip(self.inner, grid, strict=True):
                found += strides[index][dimension] * position.reshape(-1)
            return found

        knobs = self.knobs
        channel = np.zeros(self.each, np.int64)
        for dimension, position in zip(self.inner, grid, strict=True):
            channel += position.reshape(-1) * (dimension == "co")
        threads = itertools.product(range(knobs.oc_nthread), range(knobs.h_nthread))
        for slot, (oc_thread, h_thread) in enumerate(threads):
            dst = slot * self.acc + offsets("dst")
            for side, way in itertools.product(range(self.sides), self.ways):
                src, wgt = self._taps(way)
                parts.append(
                    isa.pack_uops(
                        self.config,
                        np.broadcast_to(dst + way.offset, (len(src), self.each)),
                        self.input_place(h_thread, side) + src + offsets("src"),
                        self.weight_place(oc_thread, side) + wgt + offsets("wgt"),
                    )
                )
            biases = self.bias_place(slot) + channel
            for way, piece in itertools.product(self.ways, range(self.pieces)):
                first = piece * (knobs.tile_co // self.pieces)
                place = dst + way.offset + first * strides["dst"]["co"]
                sources = biases + first if self.bias else place
                parts.append(isa.pack_uops(self.config, place, sources))
        return np.concatenate(parts)

    def _taps(self, way: _Way) -> tuple[np.ndarray, np.ndarray]:
        """Where a tile's input and weights for each input channel and tap begin, as columns."""
        conv, step = self.conv, self.row_step
        src, wgt = [], []
        for ci in range(self.knobs.tile_ci):
            for (ky, y), (kx, x) in way.taps:
                row, column = (y - self.first_row) // step, x - self.first_column
                src.append((ci * self.rows_in + row) * self.columns_in + column)
                wgt.append((ci * conv.kernel_h + ky) * conv.kernel_w + kx)
        return np.array(src, np.int64).reshape(-1, 1), np.array(wgt, np.int64).reshape(-1, 1)

    def input_place(self, h_thread: int, side: int) -> int:
        """Where on chip the input of these rows is, at every other chunk."""
        shared = self.knobs.oc_nthread > 1
        return self.inp * (2 * h_thread + side if shared else h_thread)

    def weight_place(self, oc_thread: int, side: int) -> int:
        shared = self.knobs.h_nthread > 1
        return self.wgt * (2 * oc_thread + side if shared else oc_thread)

    def bias_place(self, slot: int) -> int:
        """Behind the sums of all slots."""
        return self.knobs.slots * self.acc + slot * self.bias

    def products(self, slot: int, side: int) -> list[dict[str, Any]]:
        """The fields of the GEMMs over a slot's tile at every other chunk."""
        found, ways = [], len(self.ways)
        for number in range(side * ways, (side + 1) * ways):
            if self.parts[number]:  # of a kernel smaller than its stride not every way has taps
                found.append(self._over(slot, number, whole=True) | self._factors)
        return found

    def piece(self, slot: int, piece: int) -> list[dict[str, Any]]:
        """The fields of the operations on a piece of a slot's sums, one for each way."""
        return [self._over(slot, number + piece, whole=False) for number in self._ends()]

    def sums(self, slot: int) -> list[dict[str, Any]]:
        """The fields of the operations on all of them."""
        return [self._over(slot, number, whole=True) for number in self._ends()]

    def _ends(self) -> range:
        """Where the uops of each way's first piece stand among the parts."""
        return range(self.sides * len(self.ways), len(self.parts), self.pieces)

    def biases(self) -> dict[str, Any]:
        """The fields by which an operation on a piece finds the biases."""
        return {
            f"src_factor_{part}": int(dimension == "co")
            for dimension, part in zip(self.looped, ("out", "in"), strict=True)
        }

    def _over(self, slot: int, number: int, *, whole: bool) -> dict[str, Any]:
        """The fields of an instruction with the uops of one of a slot's parts."""
        begin = self._begin[slot * len(self.parts) + number]
        found = {"uop_bgn": begin, "uop_end": begin + self.parts[number]}
        for dimension, part in zip(self.looped, ("out", "in"), strict=True):
            cut = 1 if whole or dimension != "co" else self.pieces
            found[f"iter_{part}"] = self.extent[dimension] // cut
            found[f"dst_factor_{part}"] = self._dst[dimension]
        return found


@dataclass(frozen=True)
class _Way:
    """One of the ways in which the kernel meets the input: there are ``up_h`` times ``up_w``."""

    offset: int
    """Of its first output from the tile's first."""
    taps: tuple[tuple[tuple[int, int], tuple[int, int]], ...]
    """Rows and columns, each of the kernel and of the input as in :attr:`Convolution.taps`."""


def _reach(ways: Taps) -> tuple[int, int]:
    """The first input that a unit needs, and how many from there on."""
    found = [distance for way in ways for _, distance in way]
    return min(found), max(found) - min(found) + 1
