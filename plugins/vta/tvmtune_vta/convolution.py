"""From a packed convolution and its knobs to a stream: a pure function.

The outputs are cut into rounds, a round into slots with places on chip of their own, so that the load
engine fills one while the core works on the other. A round resets its slots, takes the input
channels chunk by chunk (first the loads of all slots, then their products), and ends each slot by its
epilogue and store. Tokens: a load waits until the products before last of its slot are done, products
wait for their load, a store for its epilogue, a reset for the store before of its slot.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

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
    group: int
    b: int
    co: int
    h: int
    w: int


@dataclass(frozen=True)
class _Chunk:
    """The products of a slot with some of the input channels; ``turn`` counts all that there are."""

    slot: _Slot
    ci: int
    turn: int


class _Generator:
    def __init__(
        self, conv: Convolution, epilogue: Epilogue, knobs: Knobs, config: Config
    ) -> None:
        self.conv, self.epilogue, self.knobs, self.config = conv, epilogue, knobs, config
        self.rows_in = (knobs.tile_h - 1) * conv.stride_h + conv.kernel_h
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

    def strides(self) -> dict[str, dict[str, int]]:
        """By how much each index grows along each dimension of a slot's tile."""
        knobs, conv = self.knobs, self.conv
        picture = knobs.tile_h * knobs.tile_w
        return {
            "dst": {"b": knobs.tile_co * picture, "co": picture, "h": knobs.tile_w, "w": 1},
            "src": {
                "b": knobs.tile_ci * self.rows_in * self.columns_in,
                "co": 0,
                "h": conv.stride_h * self.columns_in,
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
                f"a tile of {self.acc} outputs is too small: the same sum would be written twice within "
                f"{DISTANCE} steps"
            )
        size = best[0]
        self.each = size
        count = self.knobs.slots * size * (self.taps * self.knobs.tile_ci + 1)
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
        for slot in range(knobs.slots):
            dst = slot * self.acc + offsets("dst")
            products = isa.pack_uops(
                self.config,
                np.broadcast_to(dst, (len(src_taps), self.each)),
                slot * self.inp + src_taps + offsets("src"),
                slot * self.wgt + wgt_taps + offsets("wgt"),
            )
            biases = knobs.slots * self.acc + slot * self.bias + channel
            ending = isa.pack_uops(self.config, dst, biases if self.bias else dst)
            parts += [products, ending]
        return np.concatenate(parts)

    def range(self, slot: int, *, products: bool) -> tuple[int, int]:
        """The uops of a slot's products or of its epilogue: the first, and the one after the last."""
        count = self.each * self.taps * self.knobs.tile_ci
        first = slot * (count + self.each)
        return (first, first + count) if products else (first + count, first + count + self.each)

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
            first = (turn * chunks + number) * knobs.slots
            parts = [_Chunk(s, number * knobs.tile_ci, first + s.number) for s in slots]
            for part in parts:
                self.load(part)
            for part in parts:
                self.multiply(part, followed=not (last and number + 1 == chunks))
        for slot in slots:
            self.finish(slot)
            self.store(slot)

    def loops(self, slot: int, *, products: bool, source: str | None = None) -> dict[str, int]:
        """The fields that all instructions over a slot's tile have."""
        strides = self.strides()
        begin, end = self.range(slot, products=products)
        found = {"uop_bgn": begin, "uop_end": end}
        for dimension, part in zip(self.looped, ("out", "in"), strict=True):
            found[f"iter_{part}"] = self.extent[dimension]
            found[f"dst_factor_{part}"] = strides["dst"][dimension]
            if source == "products":
                found[f"src_factor_{part}"] = strides["src"][dimension]
                found[f"wgt_factor_{part}"] = strides["wgt"][dimension]
            elif source == "bias":
                found[f"src_factor_{part}"] = int(dimension == "co")
        return found

    def reset(self, slot: _Slot, *, again: bool) -> None:
        fields = self.loops(slot.number, products=False)
        self.steps.append((Gemm(**fields, reset=True, pop_next=again), NO_OPERAND))

    def load(self, chunk: _Chunk) -> None:
        found = [(load, X) for load in self.inputs(chunk)]
        found += [(self.weights(chunk), W)]
        for number, (load, operand) in enumerate(found):
            again = number == 0 and chunk.turn >= self.knobs.slots
            flags = {"pop_next": again, "push_next": number + 1 == len(found)}
            self.steps.append((Load(**(load | flags)), operand))

    def inputs(self, chunk: _Chunk) -> Iterator[dict[str, int]]:
        """The fields of the loads that bring a tile's input, its padding included."""
        conv, knobs, slot = self.conv, self.knobs, chunk.slot
        y, top, bottom = _window(
            slot.h * conv.stride_h - conv.pad_h, self.rows_in, conv.height, "rows"
        )
        x, left, right = _window(
            slot.w * conv.stride_w - conv.pad_w, self.columns_in, conv.width, "columns"
        )
        rows = self.rows_in - top - bottom
        columns = self.columns_in - left - right
        picture = conv.height * conv.width
        for b in range(knobs.tile_b):
            base = slot.number * self.inp + b * knobs.tile_ci * self.rows_in * self.columns_in
            channel = (slot.b + b) * conv.groups * self.ins + slot.group * self.ins + chunk.ci
            whole = {"memory": Memory.INP}
            if columns == self.columns_in == conv.width and rows == self.rows_in:
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
                    "x_stride": conv.width,
                    "y_pad_0": top,
                    "y_pad_1": bottom,
                    "x_pad_0": left,
                    "x_pad_1": right,
                }

    def weights(self, chunk: _Chunk) -> dict[str, int]:
        slot, row = chunk.slot, self.ins * self.taps
        return {
            "memory": Memory.WGT,
            "sram_base": slot.number * self.wgt,
            "dram_base": slot.co * row + chunk.ci * self.taps,
            "y_size": self.knobs.tile_co,
            "x_size": self.knobs.tile_ci * self.taps,
            "x_stride": row,
        }

    def multiply(self, chunk: _Chunk, *, followed: bool) -> None:
        fields = self.loops(chunk.slot.number, products=True, source="products")
        self.steps.append(
            (Gemm(**fields, pop_prev=True, push_prev=followed), NO_OPERAND)
        )

    def finish(self, slot: _Slot) -> None:
        """The epilogue; its last instruction, or the last products, let the store go on."""
        ends: list[Alu] = []
        if self.bias:
            if self.held.get(slot.number) != slot.co:
                base = self.knobs.slots * self.acc + slot.number * self.bias
                load = Load(
                    memory=Memory.ACC,
                    sram_base=base,
                    dram_base=slot.co,
                    x_size=self.bias,
                    x_stride=self.bias,
                )
                self.steps.append((load, BIAS))
                self.held[slot.number] = slot.co
            fields = self.loops(slot.number, products=False, source="bias")
            ends.append(Alu(**fields, op=AluOp.ADD, use_imm=False))
        fields = self.loops(slot.number, products=False)
        for op, amount in self.epilogue.operations():
            ends.append(Alu(**fields, op=op, use_imm=True, imm=amount))
        if not ends:  # hardware stores what the core has written last
            ends.append(Alu(**fields, op=AluOp.ADD, use_imm=True, imm=0))
        for number, instruction in enumerate(ends):
            if number + 1 == len(ends):
                instruction = _letting_go(instruction)
            self.steps.append((instruction, NO_OPERAND))

    def store(self, slot: _Slot) -> None:
        knobs, conv = self.knobs, self.conv
        picture = conv.out_height * conv.out_width
        channels = conv.out_channels // self.config.block
        found: list[dict[str, int]] = []
        for b in range(knobs.tile_b):
            for co in range(knobs.tile_co):
                plane = (slot.b + b) * channels + slot.co + co
                found.append(
                    {
                        "sram_base": slot.number * self.acc
                        + (b * knobs.tile_co + co) * knobs.tile_h * knobs.tile_w,
                        "dram_base": plane * picture + slot.h * conv.out_width + slot.w,
                        "y_size": knobs.tile_h,
                        "x_size": knobs.tile_w,
                        "x_stride": conv.out_width,
                    }
                )
            if knobs.tile_w == conv.out_width:  # whole rows: all channels at once
                first = found[-knobs.tile_co]
                del found[-knobs.tile_co :]
                rows = {"y_size": knobs.tile_co, "x_size": knobs.tile_h * knobs.tile_w}
                found.append(first | rows | {"x_stride": picture})
        for number, fields in enumerate(found):
            flags = {"pop_prev": number == 0, "push_prev": number + 1 == len(found)}
            self.steps.append((Store(**fields, **flags), Y))


def _letting_go(instruction: Alu) -> Alu:
    from dataclasses import replace

    return replace(instruction, push_next=True)


def _window(first: int, size: int, there: int, what: str) -> tuple[int, int, int]:
    """Where a tile's input begins in what is there, and how much padding lies before and behind."""
    before, behind = max(0, -first), max(0, first + size - there)
    if before + behind >= size:
        raise Misfit(f"a tile's {what} of input are nothing but padding")
    if before > _PADS or behind > _PADS:
        raise Misfit(f"{max(before, behind)} {what} of padding are needed: {_PADS} are possible")
    if size - before - behind > _SIZES:
        raise Misfit(f"{size} {what} are more than a load can bring")
    return first + before, before, behind
