"""From a packed convolution and its knobs to a stream: a pure function.

The outputs are cut into rounds, a round into slots with sums of their own, so that the load engine
fills what one needs while the core works on the other. A round resets its slots, takes the input
channels chunk by chunk (first the loads of all slots, then their products), and ends each slot by its
epilogue and store. Tokens: a load waits until the products before last of its slot are done, products
wait for their load, a store for its epilogue, a reset for the store before of its slot.

What slots share (:mod:`tvmtune_vta.tiling`) the first of them loads. The tokens stay the same: when a
slot may load for a chunk, all slots are done with the chunk before last.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvmtune.errors import TvmtuneError
from tvmtune_vta import isa
from tvmtune_vta.config import Config, Memory
from tvmtune_vta.isa import Alu, AluOp, Engine, Finish, Gemm, Instruction, Load, Store
from tvmtune_vta.knobs import Knobs, Misfit
from tvmtune_vta.program import NO_OPERAND, UOPS, Buffer, Program
from tvmtune_vta.tiling import Tiling
from tvmtune_vta.workload import Convolution, Epilogue

X, W, Y, BIAS = 0, 1, 2, 3
"""Operands."""
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
    return _Generator(conv, epilogue, knobs, config).program(name)


def outline(
    conv: Convolution, epilogue: Epilogue, knobs: Knobs, config: Config
) -> list[list[Instruction]]:
    """The instructions of :func:`generate`'s program in parts, as far as the time model needs to know
    them: parts that differ in nothing but addresses are the same list, which holds the first one's.
    A number that its field has no room for goes unnoticed; :func:`fits` has looked for those."""
    conv.check(config)
    return _Generator(conv, epilogue, knobs, config).outline()


@functools.lru_cache(maxsize=1 << 16)
def fits(conv: Convolution, epilogue: Epilogue, knobs: Knobs, config: Config) -> bool:
    """Whether :func:`generate` would take these knobs: as its first and last rounds tell, which have
    the largest paddings and addresses."""
    try:
        _Generator(conv, epilogue, knobs, config).probe()
    except Misfit:
        return False
    return True


def estimate(conv: Convolution, epilogue: Epilogue, knobs: Knobs, config: Config) -> float:
    """Cycles, very roughly, to rank knobs by without a stream: the port's work and the core's, of
    which two slots do one while the other is done. Infinite where the memories have no room."""
    try:
        tiling = Tiling(conv, epilogue, knobs, config)
    except Misfit:
        return float("inf")
    down, across = conv.units
    tiles = down // knobs.tile_h * (across // knobs.tile_w) * (conv.batch // config.batch)
    tiles = tiles // knobs.tile_b * (conv.out_channels // config.block // knobs.tile_co)
    chunks = conv.in_channels // conv.groups // config.block // knobs.tile_ci
    inputs = tiling.inp * config.element_bytes(Memory.INP) / knobs.oc_nthread
    weights = tiling.wgt * config.element_bytes(Memory.WGT) / knobs.h_nthread
    rows = knobs.tile_ci * tiling.rows_in / knobs.oc_nthread + knobs.tile_co / knobs.h_nthread
    loads = tiles * chunks * ((inputs + weights) / 8 + 8 * rows)
    stores = tiles * (tiling.acc * config.element_bytes(Memory.OUT) / 8 + 8 * tiling.rows_out)
    each = chunks * knobs.tile_ci * tiling.taps / len(tiling.ways) + 9
    core = tiles * tiling.acc * each
    port = loads + stores
    return max(core, port) + (min(core, port) if knobs.slots == 1 else 0.05 * port)


@dataclass(frozen=True)
class _Slot:
    """One tile of a round: where its outputs begin, in blocks and units of pixels."""

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
        self.tiling = Tiling(conv, epilogue, knobs, config)
        self.ins = conv.in_channels // conv.groups // config.block
        self.outs = conv.out_channels // conv.groups // config.block
        self.chunks: Sequence[int] = range(self.ins // knobs.tile_ci)
        self.steps: list[Step] = []
        self.held: dict[int, int] = {}
        """The output channels whose bias each slot holds."""

    def program(self, name: str) -> Program:
        conv, config = self.conv, self.config
        buffers = [
            Buffer(label, role, "int8", shape)
            for label, role, shape in zip(
                ("x", "w", "y"), ("input", "constant", "output"), conv.shapes(config), strict=True
            )
        ]
        if self.epilogue.bias:
            shape = (conv.out_channels // config.block, config.batch, config.block)
            buffers.append(Buffer("bias", "constant", "int32", shape))
        try:
            uops = self.tiling.uops()
            steps = self.all(list(self.cut()))
            return Program.build(config, steps, uops, buffers, name=name or str(conv))
        except Misfit:
            raise
        except TvmtuneError as error:  # a field has no room for a number
            raise Misfit(str(error).rstrip(".")) from None

    def all(self, rounds: Sequence[list[_Slot]]) -> list[Step]:
        """The steps from the load of the uops to the end."""
        count = self.tiling.count
        self.steps = [(Load(memory=Memory.UOP, x_size=count, x_stride=count), UOPS)]
        self.rounds(rounds)
        return self.steps

    def outline(self) -> list[list[Instruction]]:
        known: dict[Any, list[Instruction]] = {}
        parts = []
        rounds = list(self.cut())
        first = self.all([])
        for turn, slots in enumerate(rounds):
            last = turn + 1 == len(rounds)
            key = (turn > 0, last, *(self._likeness(slot) for slot in slots))
            if key not in known:
                self.steps = []
                self.round(turn, slots, last=last)
                known[key] = [instruction for instruction, _ in self.steps]
            self.held |= {slot.number: slot.co for slot in slots}
            parts.append(known[key])
        # the uops' load, what lies between the engines' last tokens and the end
        begin, end = first[:1], first[1:]
        return [[i for i, _ in begin], *parts, [i for i, _ in end]]

    def _likeness(self, slot: _Slot) -> tuple[Any, ...]:
        """What of a slot's instructions depends on where it is, but for addresses."""
        tiling, conv = self.tiling, self.conv
        (_, *rows), (_, *columns) = self.windows(slot)
        return (
            *(*rows, *columns, self.held.get(slot.number) == slot.co),
            min(tiling.rows_out, conv.out_height - slot.h * conv.up_h),
            min(tiling.columns_out, conv.out_width - slot.w * conv.up_w),
        )

    def probe(self) -> None:
        """Raise :class:`Misfit` if the first or last round does not fit its fields: as their first and
        last chunks tell."""
        places = [(each[0], each[-1]) for each in self.places()]
        first, last = (self.slots(*ends) for ends in zip(*places, strict=True))
        self.chunks = sorted({0, self.chunks[-1]})
        try:
            self.rounds([first, last])
            isa.encode_all([instruction for instruction, _ in self.steps], self.config)
        except Misfit:
            raise
        except TvmtuneError as error:
            raise Misfit(str(error).rstrip(".")) from None

    def cut(self) -> Iterator[list[_Slot]]:
        """The rounds, each as its slots."""
        return itertools.starmap(self.slots, itertools.product(*self.places()))

    def places(self) -> tuple[range, ...]:
        """Where rounds begin: groups, batches, output channels within a group, rows, columns."""
        knobs, conv = self.knobs, self.conv
        rows, columns = conv.units
        return (
            range(conv.groups),
            range(0, conv.batch // self.config.batch, knobs.tile_b),
            range(0, self.outs, knobs.tile_co * knobs.oc_nthread),
            range(0, rows, knobs.tile_h * knobs.h_nthread),
            range(0, columns, knobs.tile_w),
        )

    def slots(self, group: int, b: int, co: int, h: int, w: int) -> list[_Slot]:
        """Those of the round that begins there."""
        knobs, first = self.knobs, group * self.outs + co
        threads = itertools.product(range(knobs.oc_nthread), range(knobs.h_nthread))
        return [
            _Slot(number, c, r, group, b, first + c * knobs.tile_co, h + r * knobs.tile_h, w)
            for number, (c, r) in enumerate(threads)
        ]

    def rounds(self, rounds: Sequence[list[_Slot]]) -> None:
        for turn, slots in enumerate(rounds):
            self.round(turn, slots, last=turn + 1 == len(rounds))
        for _ in range(self.knobs.slots):
            self.steps.append((isa.noop(Engine.COMPUTE, pop_next=True), NO_OPERAND))
        self.steps.append((Finish(), NO_OPERAND))

    def round(self, turn: int, slots: list[_Slot], *, last: bool) -> None:
        knobs = self.knobs
        for slot in slots:
            for number, fields in enumerate(self.tiling.sums(slot.number)):
                again = turn > 0 and number == 0
                self.steps.append((Gemm(**fields, reset=True, pop_next=again), NO_OPERAND))
        count = self.ins // knobs.tile_ci
        for number in self.chunks:
            parts = [_Chunk(s, number * knobs.tile_ci, turn * count + number) for s in slots]
            for part in parts:
                self.load(part)
            for part in parts:
                self.multiply(part, followed=not (last and number + 1 == count))
        for slot in slots:
            self.finish(slot)
            self.store(slot)

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
        conv, knobs, tiling, slot = self.conv, self.knobs, self.tiling, chunk.slot
        step = tiling.row_step
        (y, top, bottom), (x, left, right) = self.windows(slot)
        rows = tiling.rows_in - top - bottom
        columns = tiling.columns_in - left - right
        picture = conv.height * conv.width
        tile = tiling.rows_in * tiling.columns_in
        for b in range(knobs.tile_b):
            base = tiling.input_place(slot.h_thread, chunk.turn % 2) + b * knobs.tile_ci * tile
            channel = (slot.b + b) * conv.groups * self.ins + slot.group * self.ins + chunk.ci
            whole: dict[str, Any] = {"memory": Memory.INP}
            dense = columns == tiling.columns_in == conv.width and rows == tiling.rows_in
            if dense and step == 1:
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
                    "sram_base": base + ci * tile,
                    "dram_base": (channel + ci) * picture + y * conv.width + x,
                    "y_size": rows,
                    "x_size": columns,
                    "x_stride": conv.width * step,
                    "y_pad_0": top,
                    "y_pad_1": bottom,
                    "x_pad_0": left,
                    "x_pad_1": right,
                }

    def windows(self, slot: _Slot) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Where the rows and the columns of a slot's input begin, and how much padding lies before and
        behind."""
        conv, tiling = self.conv, self.tiling
        row = slot.h * conv.stride_h + tiling.first_row
        column = slot.w * conv.stride_w + tiling.first_column
        return (
            _window(row, tiling.rows_in, conv.height, "rows", tiling.row_step),
            _window(column, tiling.columns_in, conv.width, "columns", 1),
        )

    def weights(self, chunk: _Chunk) -> dict[str, Any]:
        slot, taps = chunk.slot, self.tiling.taps
        row = self.ins * taps
        return {
            "memory": Memory.WGT,
            "sram_base": self.tiling.weight_place(slot.oc_thread, chunk.turn % 2),
            "dram_base": slot.co * row + chunk.ci * taps,
            "y_size": self.knobs.tile_co,
            "x_size": self.knobs.tile_ci * taps,
            "x_stride": row,
        }

    def multiply(self, chunk: _Chunk, *, followed: bool) -> None:
        found = self.tiling.products(chunk.slot.number, chunk.turn % self.tiling.sides)
        for number, fields in enumerate(found):
            ends = followed and number + 1 == len(found)
            step = Gemm(**fields, pop_prev=number == 0, push_prev=ends)
            self.steps.append((step, NO_OPERAND))

    def finish(self, slot: _Slot) -> None:
        """Piece by piece the epilogue, whose last instruction lets the store go on."""
        tiling = self.tiling
        if tiling.bias and self.held.get(slot.number) != slot.co:
            load = Load(
                memory=Memory.ACC,
                sram_base=tiling.bias_place(slot.number),
                dram_base=slot.co,
                x_size=tiling.bias,
                x_stride=tiling.bias,
            )
            self.steps.append((load, BIAS))
            self.held[slot.number] = slot.co
        for piece in range(tiling.pieces):
            ends: list[Alu] = []
            for fields in tiling.piece(slot.number, piece):
                known = len(ends)
                if tiling.bias:
                    ends.append(Alu(**fields, **tiling.biases(), op=AluOp.ADD, use_imm=False))
                for op, amount in self.epilogue.operations():
                    ends.append(Alu(**fields, op=op, use_imm=True, imm=amount))
                if len(ends) == known:  # hardware stores what the core has written last
                    ends.append(Alu(**fields, op=AluOp.ADD, use_imm=True, imm=0))
            ends[-1] = replace(ends[-1], push_next=True)
            self.steps += [(instruction, NO_OPERAND) for instruction in ends]

    def store(self, slot: _Slot) -> None:
        """The outputs of a slot, a piece after the other."""
        stores: list[Store] = []
        for piece in range(self.tiling.pieces):
            first, *others = self.piece(slot, piece)
            stores += [replace(first, pop_prev=True), *others]
        stores[-1] = replace(stores[-1], push_prev=True)
        self.steps += [(store, Y) for store in stores]

    def piece(self, slot: _Slot, piece: int) -> Iterator[Store]:
        knobs, conv, tiling = self.knobs, self.conv, self.tiling
        picture = conv.out_height * conv.out_width
        channels = conv.out_channels // self.config.block
        part, tile = knobs.tile_co // tiling.pieces, tiling.rows_out * tiling.columns_out
        y, x = slot.h * conv.up_h, slot.w * conv.up_w
        rows = min(tiling.rows_out, conv.out_height - y)
        columns = min(tiling.columns_out, conv.out_width - x)
        for b in range(knobs.tile_b):
            co = piece * part
            place = slot.number * tiling.acc + (b * knobs.tile_co + co) * tile
            plane = (slot.b + b) * channels + slot.co + co
            base = plane * picture + y * conv.out_width + x
            if columns == conv.out_width and rows * columns == tile:  # all channels at once
                yield Store(
                    sram_base=place, dram_base=base, y_size=part, x_size=tile, x_stride=picture
                )
                continue
            # what lies beyond the picture is left out: on chip rows follow one another
            together = rows if columns == tiling.columns_out else 1
            for channel, row in itertools.product(range(part), range(0, rows, together)):
                yield Store(
                    sram_base=place + channel * tile + row * tiling.columns_out,
                    dram_base=base + channel * picture + row * conv.out_width,
                    y_size=together,
                    x_size=columns,
                    x_stride=conv.out_width,
                )


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
