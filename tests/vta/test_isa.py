"""Encoding of instructions: against the published table, and round trips."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from tvmtune.errors import TvmtuneError
from tvmtune_vta.hardware import isa
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.hardware.isa import (
    Alu,
    AluOp,
    Engine,
    Finish,
    Gemm,
    Load,
    Memory,
    Opcode,
    Store,
    Uop,
)

CONFIGS = [
    Config(),
    Config(log_batch=1),
    Config(log_block=5),
    Config(log_uop_buff_size=10, log_acc_buff_size=14, log_inp_buff_size=12),
]


def word(*parts: tuple[int, int]) -> bytes:
    return sum(value << low for value, low in parts).to_bytes(16, "little")


@pytest.mark.parametrize(
    ("instruction", "data"),
    [
        (
            Load(
                memory=Memory.INP,
                sram_base=0x1234,
                dram_base=0xDEADBEEF,
                y_size=14,
                x_size=15,
                x_stride=56,
                y_pad_0=1,
                y_pad_1=2,
                x_pad_0=3,
                x_pad_1=4,
                pop_next=True,
            ),
            word((1, 4), (2, 7), (0x1234, 10), (0xDEADBEEF, 26), (14, 64), (15, 80), (56, 96))[:14]
            + bytes([0x21, 0x43]),
        ),
        (
            Store(sram_base=3, dram_base=9, x_size=4, x_stride=4, pop_prev=True, push_prev=True),
            word((1, 0), (1, 3), (1, 5), (4, 7), (3, 10), (9, 26), (1, 64), (4, 80), (4, 96)),
        ),
        (
            Gemm(
                uop_bgn=5,
                uop_end=8192,
                iter_out=16383,
                iter_in=7,
                dst_factor_out=2047,
                dst_factor_in=1,
                src_factor_out=2,
                src_factor_in=3,
                wgt_factor_out=1023,
                wgt_factor_in=512,
                reset=True,
                push_next=True,
            ),
            word((2, 0), (1, 6), (1, 7), (5, 8), (8192, 21), (16383, 35), (7, 49), (2047, 64))[:8]
            + word((2047, 0), (1, 11), (2, 22), (3, 33), (1023, 44), (512, 54))[:8],
        ),
        (
            Alu(op=AluOp.SHR, uop_bgn=0, uop_end=1, use_imm=True, imm=-3, src_factor_in=2047),
            word((4, 0), (1, 21), (1, 35), (1, 49), (2047, 97), (3, 108), (1, 111), (0xFFFD, 112)),
        ),
        (Finish(push_prev=True), bytes([3 | 1 << 5]) + bytes(15)),
    ],
)
def test_words_match_the_published_table(instruction, data):
    assert isa.encode(instruction, Config()) == data
    assert isa.decode(data, Config()) == instruction
    assert isa.to_bytes(isa.encode_all([instruction], Config())) == data


def test_a_uop_holds_dst_src_wgt_from_the_lowest_bit():
    words = isa.pack_uops(Config(), [1, 2047], [2, 2047], [3, 1023])
    assert words.tolist() == [1 | 2 << 11 | 3 << 22, 0xFFFFFFFF]
    assert isa.decode_uops(words, Config()) == [Uop(1, 2, 3), Uop(2047, 2047, 1023)]


def draw(config: Config, rng: random.Random) -> isa.Instruction:
    cls = rng.choice([Load, Store, Gemm, Alu, Finish])
    values = {}
    for field in config.instructions[cls.opcode.name].fields[1:]:
        least, most = field.limits
        value = rng.choice([least, most, rng.randint(least, most)])
        if field.width == 1:
            value = bool(value)
        values[field.name] = value
    if cls is Alu:
        del values["reset"]
        values["op"] = rng.choice(list(AluOp))
    if "memory" in values:
        values["memory"] = rng.choice(list(Memory))
    return cls(**values)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.bitstream)
def test_decode_inverts_encode(config):
    rng = random.Random(1)
    instructions = [draw(config, rng) for _ in range(1000)]
    words = isa.encode_all(instructions, config)
    assert isa.decode_all(words, config) == instructions
    # The vectorized helpers report the same.
    for opcode in Opcode:
        mine = words[isa.opcodes(words) == opcode]
        columns = isa.unpack(opcode, mine, config)
        assert np.array_equal(isa.pack(**columns_of(columns), **shape(opcode, mine, config)), mine)


def columns_of(columns):
    return {name: column for name, column in columns.items() if name != "opcode"}


def shape(opcode, words, config):
    return {"opcode": opcode, "config": config, "count": len(words)}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.bitstream)
def test_encode_inverts_decode(config):
    rng = random.Random(2)
    decoded = 0
    for _ in range(4000):
        data = rng.randbytes(16)
        try:
            instruction = isa.decode(data, config)
        except TvmtuneError:
            continue
        decoded += 1
        assert isa.encode(instruction, config) == data
    assert decoded > 10


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.bitstream)
def test_values_beyond_a_field_are_rejected(config):
    rng = random.Random(3)
    for cls in (Load, Store, Gemm, Alu):
        for field in config.instructions[cls.opcode.name].fields[1:]:
            instruction = draw(config, rng)
            while type(instruction) is not cls:
                instruction = draw(config, rng)
            if cls is Alu and field.name == "reset":
                continue
            for value in (field.limits[0] - 1, field.limits[1] + 1, 1 << 80):
                changed = dataclasses.replace(instruction, **{field.name: value})
                message = f"{cls.opcode.name}: {field.name}={value} does not fit its field: "
                with pytest.raises(
                    TvmtuneError, match=f"{message}{field.limits[0]} to {field.limits[1]}"
                ):
                    isa.encode(changed, config)
            with pytest.raises(
                TvmtuneError, match=f"{field.name}={field.limits[1] + 1} does not fit"
            ):
                isa.pack(cls.opcode, config, 2, **{field.name: [0, field.limits[1] + 1]})


def test_errors_name_the_instruction():
    with pytest.raises(TvmtuneError, match="instruction 1: LOAD: x_size=65536 .* 0 to 65535"):
        isa.encode_all([Finish(), Load(memory=Memory.INP, x_size=65536)], Config())
    with pytest.raises(TvmtuneError, match="uop: wgt=1024 does not fit its field: 0 to 1023"):
        isa.pack_uops(Config(), [1, 2], 0, [5, 1024])
    with pytest.raises(TvmtuneError, match="x_size=1.5 is not an integer"):
        isa.encode(Load(memory=Memory.INP, x_size=1.5), Config())
    with pytest.raises(TvmtuneError, match="LOAD has no field 'size'"):
        isa.pack(Opcode.LOAD, Config(), 1, size=1)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (bytes(15), "16 bytes, not 15"),
        (word((5, 0)), "no instruction has opcode 5"),
        (word((6, 7)), "LOAD: no memory has the number 6"),
        (word((4, 0), (5, 108)), "ALU: no ALU operation has the number 5"),
        (word((4, 0), (1, 7)), "ALU: the reset bit belongs to GEMM"),
        (word((1, 58)), "bit 58 of a LOAD is unused"),
        (word((2, 0), (1, 63)), "bit 63 of a GEMM is unused"),
        (word((3, 0), (1, 7)), "bit 7 of a FINISH is unused"),
    ],
)
def test_invalid_words_are_rejected(data, named):
    with pytest.raises(TvmtuneError, match=named):
        isa.decode(data, Config())


def test_disassembly_is_readable():
    instructions = [
        Load(memory=Memory.INP, sram_base=4, y_size=14, x_size=15, x_stride=56, y_pad_0=1),
        Gemm(uop_bgn=0, uop_end=8, iter_out=3, dst_factor_in=4, pop_prev=True, push_prev=True),
        Gemm(uop_bgn=0, uop_end=8, reset=True),
        Alu(op=AluOp.SHR, uop_bgn=0, uop_end=8, use_imm=True, imm=7, push_next=True),
        isa.noop(Engine.COMPUTE, pop_next=True),
        Finish(),
    ]
    words = isa.encode_all(instructions, Config())
    words[5, 1] = 1
    assert isa.disassemble(words, Config()) == [
        "    0  load     LOAD INP sram=4 dram=0 size=14x15 stride=56 pad=y1,0 x0,0",
        "    1  compute  GEMM uop=0:8 out=3 in=1 dst+0,4 src+0,0 wgt+0,0 pop_prev push_prev",
        "    2  compute  GEMM reset uop=0:8 out=1 in=1 dst+0,0 src+0,0 wgt+0,0",
        "    3  compute  ALU SHR uop=0:8 out=1 in=1 dst+0,0 src+0,0 imm=7 push_next",
        "    4  compute  LOAD UOP nothing pop_next",
        "    5  ?        bit 64 of a FINISH is unused and must be 0 "
        "(0x00000000000000010000000000000003)",
    ]
    assert str(instructions[3]).startswith("ALU SHR uop=0:8")
    assert isa.disassemble_uops(isa.pack_uops(Config(), 1, 2, 3), Config()) == [
        "    0  dst=1 src=2 wgt=3"
    ]
