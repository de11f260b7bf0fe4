"""From a packed convolution and its knobs to a stream: a pure function.

The outputs are cut into rounds, a round into slots with sums of their own, so that the load engine
fills what one needs while the core works on the other. A round resets its slots, takes the input
channels chunk by chunk (first the loads of all slots, then their products), and ends each slot by its
epilogue and store. Tokens: a load waits until the products before last of its slot are done, products
wait for their load, a store for its epilogue, a reset for the store before of its slot.

Slots of the same rows share their input, slots of the same output channels their weights: the first
of them loads it, in turns to one of two places. The tokens stay the same: when a slot may load for a
chunk, all slots are done with the chunk before last.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvmtune.errors import TvmtuneError
from tvmtune_vta import isa
from tvmtune_vta.config import Config, Memory
from tvmtune_vta.isa import Alu, AluOp, Engine, Finish, Gemm, Instruction, Load, Store
from tvmtune_vta.knobs import Knobs, Misfit, check_tiles
from tvmtune_vta.layout import Uops
from tvmtune_vta.program import NO_OPERAND, UOPS, Buffer, Program
from tvmtune_vta.rules import DISTANCE
from tvmtune_vta.workload import Convolution, Epilogue

X, W, Y, BIAS = 0, 1, 2, 3
"""Operands."""
PIECES = 4
"""Into how many a slot's epilogue is cut at most, by its output channels: one is stored while the next
is computed."""
DIMENSIONS = ("b", "co", "h", "w")
_PADS = 15
_SIZES = (1 << 16) - 1

Step = tuple[Instruction, int]


def generate(
    conv: Convolution, epilogue: Epilogue, knobs: Knobs, config: Config, *, name: str = ""
) -> Program:
    """The program that computes ``conv`` with its ``epilogue``.

    Its buffers are the packed input, weights and output, and with a bias that, int32 (CO/c, b, c).
    Raises :class:`Misfit` for knobs that the hardware has no room for.
    """
    conv.check(config)
    check_tiles(knobs, conv, config)
    return _Generator(conv, epilogue, knobs, config).program(name)


@dataclass(frozen=True)
class _Slot:
    """One tile of a round: where its outputs begin, in blocks and pixels."""

    number: int
    oc_thread: int
    h_thread: int
    group: int
    b: int
    co: int
    h: int
    w: int


@dataclass(frozen=True)
class _Chunk:
    """The products of a slot with some of the input channels; ``turn`` counts the chunks."""

    slot: _Slot
    ci: int
    turn: int


class _Generator:
    def __init__(self, conv: Convolution, epilogue: Epilogue, knobs: Knobs, config: Config) -> None:
        self.conv, self.epilogue, self.knobs, self.config = conv, epilogue, knobs, config
        # Of a kernel of one row, those between its steps are not loaded.
        self.row_step = conv.stride_h if conv.kernel_h == 1 else 1
        self.rows_in = (knobs.tile_h - 1) * conv.stride_h // self.row_step + conv.kernel_h
        self.columns_in = (knobs.tile_w - 1) * conv.stride_w + conv.kernel_w
        self.taps = conv.kernel_h * conv.kernel_w
        self.ins = conv.in_channels // conv.groups // config.block
        self.outs = conv.out_channels // conv.groups // config.block
        self.inp = knobs.tile_b * knobs.tile_ci * self.rows_in * self.columns_in
        self.wgt = knobs.tile_co * knobs.tile_ci * self.taps
        self.acc = knobs.tile_b * knobs.tile_co * knobs.tile_h * knobs.tile_w
        self.bias = knobs.tile_co if epilogue.bias else 0
        self.extent = dict(zip(DIMENSIONS, self._tile(), strict=True))
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
        self.steps: list[Step] = []
        self.held: dict[int, int] = {}
        """The output channels whose bias each slot holds."""

    def _tile(self) -> tuple[int, int, int, int]:
        knobs = self.knobs
        return knobs.tile_b, knobs.tile_co, knobs.tile_h, knobs.tile_w

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
        size = best[0]
        self.each = size
        self.pieces = 1
        if "co" in best[1]:
            tile = self.knobs.tile_co
            self.pieces = max(n for n in range(1, PIECES + 1) if tile % n == 0)
        self.sides = 2 if self.knobs.slots > 1 else 1
        products = self.sides * self.taps * self.knobs.tile_ci
        count = self.knobs.slots * size * (products + self.pieces)
        if count > self.config.uop_limit:
            raise Misfit(f"{count} uops are needed, and there are {self.config.uop_limit}")
        return best[1], best[2]

    def program(self, name: str) -> Program:
        conv, config = self.conv, self.config
        shapes = conv.shapes(config)
        buffers = [
            Buffer(label, role, "int8", shape)
            for label, role, shape in zip(
                ("x", "w", "y"), ("input", "constant", "output"), shapes, strict=True
            )
        ]
        if self.epilogue.bias:
            shape = (conv.out_channels // config.block, config.batch, config.block)
            buffers.append(Buffer("bias", "constant", "int32", shape))
        uops = self.uops()
        self.steps = [(Load(memory=Memory.UOP, x_size=len(uops), x_stride=len(uops)), UOPS)]
        rounds = list(self.rounds())
        for turn, slots in enumerate(rounds):
            self.round(turn, slots, last=turn + 1 == len(rounds))
        for _ in range(self.knobs.slots):
            self.steps.append((isa.noop(Engine.COMPUTE, pop_next=True), NO_OPERAND))
        self.steps.append((Finish(), NO_OPERAND))
        try:
            return Program.build(config, self.steps, uops, buffers, name=name or str(conv))
        except Misfit:
            raise
        except TvmtuneError as error:  # a field has no room for a number
            raise Misfit(str(error).rstrip(".")) from None

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
            biases = knobs.slots * self.acc + slot * self.bias + channel
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

    def range(self, slot: int, *, side: int = 0, piece: int | None = None) -> tuple[int, int]:
        """The uops of a slot's products at every other chunk, or of a piece of its epilogue: the first,
        and the one after the last."""
        count = self.each * self.taps * self.knobs.tile_ci
        first = slot * (self.sides * count + self.pieces * self.each)
        if piece is None:
            return first + side * count, first + (side + 1) * count
        first += self.sides * count + piece * self.each
        return first, first + self.each

    def rounds(self) -> Iterator[list[_Slot]]:
        knobs, conv = self.knobs, self.conv
        wide, high = knobs.tile_co * knobs.oc_nthread, knobs.tile_h * knobs.h_nthread
        for group, b, co, h, w in itertools.product(
            range(conv.groups),
            range(0, conv.batch // self.config.batch, knobs.tile_b),
            range(0, self.outs, wide),
            range(0, conv.out_height, high),
            range(0, conv.out_width, knobs.tile_w),
        ):
            slots = itertools.product(range(knobs.oc_nthread), range(knobs.h_nthread))
            yield [
                _Slot(
                    number,
                    c,
                    r,
                    group,
                    b,
                    group * self.outs + co + c * knobs.tile_co,
                    h + r * knobs.tile_h,
                    w,
                )
                for number, (c, r) in enumerate(slots)
            ]

    def round(self, turn: int, slots: list[_Slot], *, last: bool) -> None:
        knobs = self.knobs
        for slot in slots:
            self.reset(slot, again=turn > 0)
        chunks = self.ins // knobs.tile_ci
        for number in range(chunks):
            parts = [_Chunk(s, number * knobs.tile_ci, turn * chunks + number) for s in slots]
            for part in parts:
                self.load(part)
            for part in parts:
                self.multiply(part, followed=not (last and number + 1 == chunks))
        for slot in slots:
            self.finish(slot)
            self.store(slot)

    def loops(
        self, slot: int, piece: int | None = None, *, side: int = 0, whole: bool = False
    ) -> dict[str, Any]:
        """The fields of all instructions over a slot's products or a piece of its epilogue; from there
        on over the ``whole`` tile."""
        strides = self.strides()
        begin, end = self.range(slot, side=side, piece=piece)
        found = {"uop_bgn": begin, "uop_end": end}
        for dimension, part in zip(self.looped, ("out", "in"), strict=True):
            cut = self.pieces if dimension == "co" and piece is not None and not whole else 1
            found[f"iter_{part}"] = self.extent[dimension] // cut
            found[f"dst_factor_{part}"] = strides["dst"][dimension]
        return found

    def sources(self, *, products: bool) -> dict[str, Any]:
        """The fields that say where products, or biases, come from."""
        strides, found = self.strides(), {}
        for dimension, part in zip(self.looped, ("out", "in"), strict=True):
            if products:
                found[f"src_factor_{part}"] = strides["src"][dimension]
                found[f"wgt_factor_{part}"] = strides["wgt"][dimension]
            else:
                found[f"src_factor_{part}"] = int(dimension == "co")
        return found

    def reset(self, slot: _Slot, *, again: bool) -> None:
        fields = self.loops(slot.number, 0, whole=True)
        self.steps.append((Gemm(**fields, reset=True, pop_next=again), NO_OPERAND))

    def load(self, chunk: _Chunk) -> None:
        """What no slot before has loaded; for the last of four that is nothing but the tokens."""
        slot = chunk.slot
        found = [(fields, X) for fields in self.inputs(chunk)] if slot.oc_thread == 0 else []
        found += [(self.weights(chunk), W)] if slot.h_thread == 0 else []
        again = chunk.turn > 0
        if not found:
            noop = isa.noop(Engine.LOAD, pop_next=again, push_next=True)
            self.steps.append((noop, NO_OPERAND))
        for number, (fields, operand) in enumerate(found):
            flags = {"pop_next": again and number == 0, "push_next": number + 1 == len(found)}
            self.steps.append((Load(**(fields | flags)), operand))

    def inputs(self, chunk: _Chunk) -> Iterator[dict[str, Any]]:
        """The fields of the loads that bring a tile's input, its padding included."""
        conv, knobs, slot = self.conv, self.knobs, chunk.slot
        first = slot.h * conv.stride_h - conv.pad_h
        y, top, bottom = _window(first, self.rows_in, conv.height, "rows", self.row_step)
        x, left, right = _window(
            slot.w * conv.stride_w - conv.pad_w, self.columns_in, conv.width, "columns", 1
        )
        rows = self.rows_in - top - bottom
        columns = self.columns_in - left - right
        picture = conv.height * conv.width
        for b in range(knobs.tile_b):
            base = self.input_place(slot.h_thread, chunk.turn % 2)
            base += b * knobs.tile_ci * self.rows_in * self.columns_in
            channel = (slot.b + b) * conv.groups * self.ins + slot.group * self.ins + chunk.ci
            whole = {"memory": Memory.INP}
            dense = columns == self.columns_in == conv.width and rows == self.rows_in
            if dense and self.row_step == 1:
                yield whole | {
                    "sram_base": base,
                    "dram_base": channel * picture + y * conv.width,
                    "y_size": knobs.tile_ci,
                    "x_size": rows * columns,
                    "x_stride": picture,
                }
                continue
            for ci in range(knobs.tile_ci):
                yield whole | {
                    "sram_base": base + ci * self.rows_in * self.columns_in,
                    "dram_base": (channel + ci) * picture + y * conv.width + x,
                    "y_size": rows,
                    "x_size": columns,
                    "x_stride": conv.width * self.row_step,
                    "y_pad_0": top,
                    "y_pad_1": bottom,
                    "x_pad_0": left,
                    "x_pad_1": right,
                }

    def weights(self, chunk: _Chunk) -> dict[str, Any]:
        slot, row = chunk.slot, self.ins * self.taps
        return {
            "memory": Memory.WGT,
            "sram_base": self.weight_place(slot.oc_thread, chunk.turn % 2),
            "dram_base": slot.co * row + chunk.ci * self.taps,
            "y_size": self.knobs.tile_co,
            "x_size": self.knobs.tile_ci * self.taps,
            "x_stride": row,
        }

    def multiply(self, chunk: _Chunk, *, followed: bool) -> None:
        side = chunk.turn % self.sides
        fields = self.loops(chunk.slot.number, side=side) | self.sources(products=True)
        self.steps.append((Gemm(**fields, pop_prev=True, push_prev=followed), NO_OPERAND))

    def finish(self, slot: _Slot) -> None:
        """Piece by piece the epilogue, whose last instruction lets the store go on."""
        if self.bias and self.held.get(slot.number) != slot.co:
            load = Load(
                memory=Memory.ACC,
                sram_base=self.knobs.slots * self.acc + slot.number * self.bias,
                dram_base=slot.co,
                x_size=self.bias,
                x_stride=self.bias,
            )
            self.steps.append((load, BIAS))
            self.held[slot.number] = slot.co
        for piece in range(self.pieces):
            fields = self.loops(slot.number, piece)
            ends: list[Alu] = []
            if self.bias:
                biases = self.sources(products=False)
                ends.append(Alu(**(fields | biases), op=AluOp.ADD, use_imm=False))
            for op, amount in self.epilogue.operations():
                ends.append(Alu(**fields, op=op, use_imm=True, imm=amount))
            if not ends:  # hardware stores what the core has written last
                ends.append(Alu(**fields, op=AluOp.ADD, use_imm=True, imm=0))
            ends[-1] = replace(ends[-1], push_next=True)
            self.steps += [(instruction, NO_OPERAND) for instruction in ends]

    def store(self, slot: _Slot) -> None:
        """The outputs of a slot, a piece after the other."""
        knobs, conv = self.knobs, self.conv
        picture = conv.out_height * conv.out_width
        channels = conv.out_channels // self.config.block
        part = knobs.tile_co // self.pieces
        found: list[dict[str, Any]] = []
        for piece, b in itertools.product(range(self.pieces), range(knobs.tile_b)):
            begun = {"pop_prev": 1} if b == 0 else {}
            co = piece * part
            plane = (slot.b + b) * channels + slot.co + co
            place = (b * knobs.tile_co + co) * knobs.tile_h * knobs.tile_w
            fields = {
                "sram_base": slot.number * self.acc + place,
                "dram_base": plane * picture + slot.h * conv.out_width + slot.w,
            }
            if knobs.tile_w == conv.out_width:  # whole rows: all channels at once
                size = knobs.tile_h * knobs.tile_w
                rows = {"y_size": part, "x_size": size, "x_stride": picture}
                found.append(fields | rows | begun)
                continue
            for channel in range(part):
                rows = {
                    "sram_base": fields["sram_base"] + channel * knobs.tile_h * knobs.tile_w,
                    "dram_base": fields["dram_base"] + channel * picture,
                    "y_size": knobs.tile_h,
                    "x_size": knobs.tile_w,
                    "x_stride": conv.out_width,
                }
                found.append(rows | (begun if channel == 0 else {}))
        for number, fields in enumerate(found):
            flags = {
                "pop_prev": bool(fields.pop("pop_prev", 0)),
                "push_prev": number + 1 == len(found),
            }
            self.steps.append((Store(**fields, **flags), Y))


def _window(first: int, size: int, there: int, what: str, step: int) -> tuple[int, int, int]:
    """Where a tile's input of ``size`` begins in what is there, ``step`` apart, and how much padding
    lies before and behind."""
    before = max(0, -(first // step))
    behind = max(0, size - (there - 1 - first) // step - 1)
    if before + behind >= size:
        raise Misfit(f"a tile's {what} of input are nothing but padding")
    if before > _PADS or behind > _PADS:
        raise Misfit(f"{max(before, behind)} {what} of padding are needed: {_PADS} are possible")
    if size - before - behind > _SIZES:
        raise Misfit(f"{size} {what} are more than a load can bring")
    return first + before * step, before, behind
