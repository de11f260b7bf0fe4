"""Programs of packed convolutions: a pure function of workload, epilogue and knobs.

The outputs are divided into rounds, and a round into slots with accumulators of their own, so that
the load engine fills one slot's buffers while the core works on another's. A round resets its
slots, processes the input channels chunk by chunk (first the loads of all slots, then their GEMMs),
and ends each slot with its epilogue and store. Tokens: a load waits for the slot's second-to-last
GEMM group, a GEMM group for its load, a store for its epilogue, and a reset for the slot's previous
store.

Buffers that slots share (:mod:`tvmtune_vta.codegen.tiling`) are loaded by the first of them. The
tokens stay the same: when a slot may load a chunk, all slots are done with the chunk before last.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvmtune.errors import TvmtuneError
from tvmtune_vta.codegen.knobs import InfeasibleKnobs, Knobs
from tvmtune_vta.codegen.tiling import Tiling
from tvmtune_vta.codegen.workload import Convolution, Epilogue
from tvmtune_vta.hardware import isa
from tvmtune_vta.hardware.config import Config, Memory
from tvmtune_vta.hardware.isa import Alu, AluOp, Engine, Finish, Gemm, Instruction, Load, Store
from tvmtune_vta.hardware.program import NO_OPERAND, UOPS, Buffer, Program, Step

X, W, Y, BIAS = 0, 1, 2, 3
"""Buffer indices."""
_MAX_PAD = 15
_MAX_SIZE = (1 << 16) - 1


def generate(
    conv: Convolution, epilogue: Epilogue, knobs: Knobs, config: Config, *, name: str = ""
) -> Program:
    """The program that computes ``conv`` with its ``epilogue``.

    Its buffers are the packed input, weights and output, and with a bias that, int32 (CO/c, b, c).
    Raises :class:`InfeasibleKnobs` for knobs that the hardware has no room for.
    """
    conv.check(config)
    return _Generator(conv, epilogue, knobs, config).program(name)


def instruction_segments(
    conv: Convolution, epilogue: Epilogue, knobs: Knobs, config: Config
) -> list[list[Instruction]]:
    """The instructions of :func:`generate`'s program in segments, for the time model: segments that
    differ in addresses only are the same list object, which holds the first one's instructions.
    Values that exceed their fields are not detected; :func:`is_feasible` does that."""
    conv.check(config)
    return _Generator(conv, epilogue, knobs, config).segments()


@functools.lru_cache(maxsize=1 << 16)
def is_feasible(conv: Convolution, epilogue: Epilogue, knobs: Knobs, config: Config) -> bool:
    """Whether :func:`generate` accepts these knobs. It checks the first and last rounds, which have
    the largest paddings and addresses."""
    return not why_infeasible(conv, epilogue, knobs, config)


def why_infeasible(conv: Convolution, epilogue: Epilogue, knobs: Knobs, config: Config) -> str:
    """Why :func:`generate` rejects these knobs; empty if it accepts them."""
    try:
        _Generator(conv, epilogue, knobs, config).check_limits()
    except InfeasibleKnobs as error:
        return str(error)
    return ""


@dataclass(frozen=True)
class _Slot:
    """One tile of a round; ``b``, ``co``, ``h`` and ``w`` are the start of its outputs, in blocks
    and units of pixels."""

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
    """The GEMMs of a slot over some of the input channels; ``turn`` counts the chunks."""

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
            steps = self.all_steps(list(self.all_rounds()))
            return Program.build(config, steps, uops, buffers, name=name or str(conv))
        except InfeasibleKnobs:
            raise
        except TvmtuneError as error:  # a value exceeds its field
            raise InfeasibleKnobs(str(error).rstrip(".")) from None

    def all_steps(self, rounds: Sequence[list[_Slot]]) -> list[Step]:
        """All steps from the load of the uops to FINISH."""
        count = self.tiling.count
        self.steps = [(Load(memory=Memory.UOP, x_size=count, x_stride=count), UOPS)]
        self.rounds(rounds)
        return self.steps

    def segments(self) -> list[list[Instruction]]:
        segments: dict[Any, list[Instruction]] = {}
        sequence = []
        rounds = list(self.all_rounds())
        first = self.all_steps([])
        for turn, slots in enumerate(rounds):
            last = turn + 1 == len(rounds)
            key = (turn > 0, last, *(self._timing_key(slot) for slot in slots))
            if key not in segments:
                self.steps = []
                self.round(turn, slots, last=last)
                segments[key] = [instruction for instruction, _ in self.steps]
            self.held |= {slot.number: slot.co for slot in slots}
            sequence.append(segments[key])
        # the load of the uops, and the no-ops and FINISH at the end
        begin, end = first[:1], first[1:]
        return [[i for i, _ in begin], *sequence, [i for i, _ in end]]

    def _timing_key(self, slot: _Slot) -> tuple[Any, ...]:
        """The properties of a slot that its instructions depend on, except addresses."""
        tiling, conv = self.tiling, self.conv
        (_, *rows), (_, *columns) = self.windows(slot)
        return (
            *(*rows, *columns, self.held.get(slot.number) == slot.co),
            min(tiling.rows_out, conv.out_height - slot.h * conv.up_h),
            min(tiling.columns_out, conv.out_width - slot.w * conv.up_w),
        )

    def check_limits(self) -> None:
        """Raise :class:`InfeasibleKnobs` if the first or last chunk of the first or last round does not
        fit."""
        starts = [(each[0], each[-1]) for each in self.round_starts()]
        first, last = (self.slots(*ends) for ends in zip(*starts, strict=True))
        self.chunks = sorted({0, self.chunks[-1]})
        try:
            self.rounds([first, last])
            isa.encode_all([instruction for instruction, _ in self.steps], self.config)
        except InfeasibleKnobs:
            raise
        except TvmtuneError as error:
            raise InfeasibleKnobs(str(error).rstrip(".")) from None

    def all_rounds(self) -> Iterator[list[_Slot]]:
        """The rounds, each as its slots."""
        return itertools.starmap(self.slots, itertools.product(*self.round_starts()))

    def round_starts(self) -> tuple[range, ...]:
        """Start indices of the rounds: groups, batches, output channels within a group, rows,
        columns."""
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
        """The slots of the round that starts there."""
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
                reuses_buffer = turn > 0 and number == 0
                self.steps.append((Gemm(**fields, reset=True, pop_next=reuses_buffer), NO_OPERAND))
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
        """Load what no earlier slot has loaded; for the last of four that is tokens only."""
        slot = chunk.slot
        loads = [(fields, X) for fields in self.inputs(chunk)] if slot.oc_thread == 0 else []
        loads += [(self.weights(chunk), W)] if slot.h_thread == 0 else []
        reuses_buffer = chunk.turn > 0
        if not loads:
            noop = isa.noop(Engine.LOAD, pop_next=reuses_buffer, push_next=True)
            self.steps.append((noop, NO_OPERAND))
        for number, (fields, operand) in enumerate(loads):
            flags = {
                "pop_next": reuses_buffer and number == 0,
                "push_next": number + 1 == len(loads),
            }
            self.steps.append((Load(**(fields | flags)), operand))

    def inputs(self, chunk: _Chunk) -> Iterator[dict[str, Any]]:
        """Fields of the loads of a tile's input, padding included."""
        conv, knobs, tiling, slot = self.conv, self.knobs, self.tiling, chunk.slot
        step = tiling.row_step
        (y, top, bottom), (x, left, right) = self.windows(slot)
        rows = tiling.rows_in - top - bottom
        columns = tiling.columns_in - left - right
        plane_size = conv.height * conv.width
        tile = tiling.rows_in * tiling.columns_in
        for b in range(knobs.tile_b):
            base = tiling.input_address(slot.h_thread, chunk.turn % 2) + b * knobs.tile_ci * tile
            channel = (slot.b + b) * conv.groups * self.ins + slot.group * self.ins + chunk.ci
            memory: dict[str, Any] = {"memory": Memory.INP}
            dense = columns == tiling.columns_in == conv.width and rows == tiling.rows_in
            if dense and step == 1:
                yield memory | {
                    "sram_base": base,
                    "dram_base": channel * plane_size + y * conv.width,
                    "y_size": knobs.tile_ci,
                    "x_size": rows * columns,
                    "x_stride": plane_size,
                }
                continue
            for ci in range(knobs.tile_ci):
                yield memory | {
                    "sram_base": base + ci * tile,
                    "dram_base": (channel + ci) * plane_size + y * conv.width + x,
                    "y_size": rows,
                    "x_size": columns,
                    "x_stride": conv.width * step,
                    "y_pad_0": top,
                    "y_pad_1": bottom,
                    "x_pad_0": left,
                    "x_pad_1": right,
                }

    def windows(self, slot: _Slot) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Start, leading padding and trailing padding of a slot's input rows and columns."""
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
            "sram_base": self.tiling.weight_address(slot.oc_thread, chunk.turn % 2),
            "dram_base": slot.co * row + chunk.ci * taps,
            "y_size": self.knobs.tile_co,
            "x_size": self.knobs.tile_ci * taps,
            "x_stride": row,
        }

    def multiply(self, chunk: _Chunk, *, followed: bool) -> None:
        gemms = self.tiling.products(chunk.slot.number, chunk.turn % self.tiling.sides)
        for number, fields in enumerate(gemms):
            ends = followed and number + 1 == len(gemms)
            step = Gemm(**fields, pop_prev=number == 0, push_prev=ends)
            self.steps.append((step, NO_OPERAND))

    def finish(self, slot: _Slot) -> None:
        """The epilogue piece by piece; the last instruction of each releases its store."""
        tiling = self.tiling
        if tiling.bias and self.held.get(slot.number) != slot.co:
            load = Load(
                memory=Memory.ACC,
                sram_base=tiling.bias_address(slot.number),
                dram_base=slot.co,
                x_size=tiling.bias,
                x_stride=tiling.bias,
            )
            self.steps.append((load, BIAS))
            self.held[slot.number] = slot.co
        for piece in range(tiling.pieces):
            ends: list[Alu] = []
            for fields in tiling.piece(slot.number, piece):
                before = len(ends)
                if tiling.bias:
                    ends.append(Alu(**fields, **tiling.biases(), op=AluOp.ADD, use_imm=False))
                for op, amount in self.epilogue.operations():
                    ends.append(Alu(**fields, op=op, use_imm=True, imm=amount))
                if len(ends) == before:  # STORE reads what the core has written last
                    ends.append(Alu(**fields, op=AluOp.ADD, use_imm=True, imm=0))
            ends[-1] = replace(ends[-1], push_next=True)
            self.steps += [(instruction, NO_OPERAND) for instruction in ends]

    def store(self, slot: _Slot) -> None:
        """Store the outputs of a slot, one piece after the other."""
        stores: list[Store] = []
        for piece in range(self.tiling.pieces):
            first, *others = self.piece(slot, piece)
            stores += [replace(first, pop_prev=True), *others]
        stores[-1] = replace(stores[-1], push_prev=True)
        self.steps += [(store, Y) for store in stores]

    def piece(self, slot: _Slot, piece: int) -> Iterator[Store]:
        knobs, conv, tiling = self.knobs, self.conv, self.tiling
        plane_size = conv.out_height * conv.out_width
        channels = conv.out_channels // self.config.block
        part, tile = knobs.tile_co // tiling.pieces, tiling.rows_out * tiling.columns_out
        y, x = slot.h * conv.up_h, slot.w * conv.up_w
        rows = min(tiling.rows_out, conv.out_height - y)
        columns = min(tiling.columns_out, conv.out_width - x)
        for b in range(knobs.tile_b):
            co = piece * part
            place = slot.number * tiling.acc + (b * knobs.tile_co + co) * tile
            plane = (slot.b + b) * channels + slot.co + co
            base = plane * plane_size + y * conv.out_width + x
            if columns == conv.out_width and rows * columns == tile:  # all channels at once
                yield Store(
                    sram_base=place, dram_base=base, y_size=part, x_size=tile, x_stride=plane_size
                )
                continue
            # rows are contiguous on chip; outputs beyond the plane are not stored
            together = rows if columns == tiling.columns_out else 1
            for channel, row in itertools.product(range(part), range(0, rows, together)):
                yield Store(
                    sram_base=place + channel * tile + row * tiling.columns_out,
                    dram_base=base + channel * plane_size + row * conv.out_width,
                    y_size=together,
                    x_size=columns,
                    x_stride=conv.out_width,
                )


def _window(first: int, size: int, extent: int, what: str, step: int) -> tuple[int, int, int]:
    """Start, leading padding and trailing padding of a tile's input: ``size`` elements, ``step``
    apart, of an extent."""
    before = max(0, -(first // step))
    after = max(0, size - (extent - 1 - first) // step - 1)
    if before + after >= size:
        raise InfeasibleKnobs(f"a tile's input {what} are all padding")
    if before > _MAX_PAD or after > _MAX_PAD:
        raise InfeasibleKnobs(
            f"{max(before, after)} {what} of padding are needed, at most {_MAX_PAD} are possible"
        )
    if size - before - after > _MAX_SIZE:
        raise InfeasibleKnobs(f"{size} {what} exceed the size field of a load")
    return first + before * step, before, after
