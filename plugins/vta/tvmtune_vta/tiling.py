"""Where a tile of a packed convolution lies on chip, and the uops that go over it.

A slot has sums, biases, and places for input and weights of its own. Slots of the same rows share their
input, slots of the same output channels their weights: there are two places for those, in turns.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tvmtune_vta import isa
from tvmtune_vta.config import Config, Memory
from tvmtune_vta.knobs import Knobs, Misfit, check_tiles
from tvmtune_vta.layout import Uops
from tvmtune_vta.rules import DISTANCE
from tvmtune_vta.workload import Convolution, Epilogue

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
        self.rows_in = (knobs.tile_h - 1) * conv.stride_h // self.row_step + conv.kernel_h
        self.columns_in = (knobs.tile_w - 1) * conv.stride_w + conv.kernel_w
        self.taps = conv.kernel_h * conv.kernel_w
        self.inp = knobs.tile_b * knobs.tile_ci * self.rows_in * self.columns_in
        self.wgt = knobs.tile_co * knobs.tile_ci * self.taps
        self.acc = knobs.tile_b * knobs.tile_co * knobs.tile_h * knobs.tile_w
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
        products = self.sides * self.taps * knobs.tile_ci
        count = knobs.slots * self.each * (products + self.pieces)
        if count > config.uop_limit:
            raise Misfit(f"{count} uops are needed, and there are {config.uop_limit}")

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
        picture = knobs.tile_h * knobs.tile_w
        return {
            "dst": {"b": knobs.tile_co * picture, "co": picture, "h": knobs.tile_w, "w": 1},
            "src": {
                "b": knobs.tile_ci * self.rows_in * self.columns_in,
                "co": 0,
                "h": conv.stride_h // self.row_step * self.columns_in,
                "w": conv.stride_w,
            },
            "wgt": {"b": 0, "co": knobs.tile_ci * self.taps, "h": 0, "w": 0},
        }

    def uops(self) -> Uops:
        """For each slot those of its products, taps outermost, then those of its epilogue."""
        strides, parts = self.strides(), []
        grid = np.meshgrid(*(np.arange(self.extent[d]) for d in self.inner), indexing="ij")

        def offsets(index: str) -> np.ndarray:
            found = np.zeros(self.each, np.int64)
            for dimension, position in zip(self.inner, grid, strict=True):
                found += strides[index][dimension] * position.reshape(-1)
            return found

        knobs, conv = self.knobs, self.conv
        ci, ky, kx = np.meshgrid(
            *(np.arange(n) for n in (knobs.tile_ci, conv.kernel_h, conv.kernel_w)), indexing="ij"
        )
        src_taps = ((ci * self.rows_in + ky) * self.columns_in + kx).reshape(-1, 1)
        wgt_taps = np.arange(knobs.tile_ci * self.taps).reshape(-1, 1)
        channel = np.zeros(self.each, np.int64)
        for dimension, position in zip(self.inner, grid, strict=True):
            channel += position.reshape(-1) * (dimension == "co")
        threads = itertools.product(range(knobs.oc_nthread), range(knobs.h_nthread))
        for slot, (oc_thread, h_thread) in enumerate(threads):
            dst = slot * self.acc + offsets("dst")
            for side in range(self.sides):
                parts.append(
                    isa.pack_uops(
                        self.config,
                        np.broadcast_to(dst, (len(src_taps), self.each)),
                        self.input_place(h_thread, side) + src_taps + offsets("src"),
                        self.weight_place(oc_thread, side) + wgt_taps + offsets("wgt"),
                    )
                )
            biases = self.bias_place(slot) + channel
            for piece in range(self.pieces):
                first = piece * (knobs.tile_co // self.pieces)
                place = dst + first * strides["dst"]["co"]
                sources = biases + first if self.bias else place
                parts.append(isa.pack_uops(self.config, place, sources))
        return np.concatenate(parts)

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

    def _range(self, slot: int, side: int, piece: int | None) -> tuple[int, int]:
        """The uops of a slot's products at every other chunk, or of a piece of its epilogue: the first,
        and the one after the last."""
        count = self.each * self.taps * self.knobs.tile_ci
        first = slot * (self.sides * count + self.pieces * self.each)
        if piece is None:
            return first + side * count, first + (side + 1) * count
        first += self.sides * count + piece * self.each
        return first, first + self.each

    def products(self, slot: int, side: int) -> dict[str, Any]:
        """The fields of a GEMM over a slot's tile."""
        strides, found = self.strides(), self._over(slot, side, None, whole=True)
        for dimension, part in zip(self.looped, ("out", "in"), strict=True):
            found[f"src_factor_{part}"] = strides["src"][dimension]
            found[f"wgt_factor_{part}"] = strides["wgt"][dimension]
        return found

    def piece(self, slot: int, piece: int) -> dict[str, Any]:
        """The fields of an operation on a piece of a slot's sums."""
        return self._over(slot, 0, piece, whole=False)

    def sums(self, slot: int) -> dict[str, Any]:
        """The fields of an operation on all of them."""
        return self._over(slot, 0, 0, whole=True)

    def biases(self) -> dict[str, Any]:
        """The fields by which an operation on a piece finds the biases."""
        return {
            f"src_factor_{part}": int(dimension == "co")
            for dimension, part in zip(self.looped, ("out", "in"), strict=True)
        }

    def _over(self, slot: int, side: int, piece: int | None, *, whole: bool) -> dict[str, Any]:
        strides = self.strides()
        begin, end = self._range(slot, side, piece)
        found = {"uop_bgn": begin, "uop_end": end}
        for dimension, part in zip(self.looped, ("out", "in"), strict=True):
            cut = 1 if whole or dimension != "co" else self.pieces
            found[f"iter_{part}"] = self.extent[dimension] // cut
            found[f"dst_factor_{part}"] = strides["dst"][dimension]
        return found
