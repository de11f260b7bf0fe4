"""A small hand-written matrix product in which all engines wait for one another."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tvmtune_vta.hardware import isa
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.hardware.isa import Alu, AluOp, Engine, Finish, Gemm, Load, Memory, Store
from tvmtune_vta.hardware.program import NO_OPERAND, UOPS, Buffer, Program

ROWS, ROUND, DEEP, WIDE = 8, 4, 2, 2
"""Input elements of DEEP blocks each, in rounds of ROUND, by WIDE output blocks."""
SHIFT = 7
X, W, Y = 0, 1, 2


def steps() -> list[tuple[Any, int]]:
    """Two rounds at the same on-chip addresses: y = clip(x . w^T >> 7, -5, 100)."""
    every = {"uop_bgn": 0, "uop_end": ROUND, "iter_in": WIDE, "dst_factor_in": ROUND}
    program_steps = [(Load(memory=Memory.UOP, x_size=ROUND, x_stride=ROUND), UOPS)]
    program_steps.append((Load(memory=Memory.WGT, x_size=WIDE * DEEP, x_stride=WIDE * DEEP), W))
    for turn in range(ROWS // ROUND):
        size = ROUND * DEEP
        again, last = turn > 0, turn == ROWS // ROUND - 1
        load = Load(
            memory=Memory.INP,
            dram_base=turn * size,
            x_size=size,
            x_stride=size,
            pop_next=again,
            push_next=True,
        )
        gemm = Gemm(
            **every,
            iter_out=DEEP,
            src_factor_out=1,
            wgt_factor_out=1,
            wgt_factor_in=DEEP,
            pop_prev=True,
            push_prev=not last,
        )
        store = Store(
            dram_base=turn * ROUND,
            y_size=WIDE,
            x_size=ROUND,
            x_stride=ROWS,
            pop_prev=True,
            push_prev=True,
        )
        program_steps += [
            (load, X),
            (Gemm(**every, reset=True, pop_next=again), NO_OPERAND),
            (gemm, NO_OPERAND),
            (Alu(**every, op=AluOp.SHR, use_imm=True, imm=SHIFT), NO_OPERAND),
            (Alu(**every, op=AluOp.MAX, use_imm=True, imm=-5), NO_OPERAND),
            (Alu(**every, op=AluOp.MIN, use_imm=True, imm=100, push_next=True), NO_OPERAND),
            (store, Y),
        ]
    program_steps.append((isa.noop(Engine.COMPUTE, pop_next=True), NO_OPERAND))
    program_steps.append((Finish(), NO_OPERAND))
    return program_steps


def program(config: Config | None = None, changed: list[tuple[Any, int]] | None = None) -> Program:
    config = config or Config()
    batch, block = config.batch, config.block
    buffers = [
        Buffer("x", "input", "int8", (ROWS, DEEP, batch, block)),
        Buffer("w", "constant", "int8", (WIDE, DEEP, block, block)),
        Buffer("y", "output", "int8", (WIDE, ROWS, batch, block)),
    ]
    m = np.arange(ROUND)
    uops = isa.pack_uops(config, m, m * DEEP)
    return Program.build(
        config, steps() if changed is None else changed, uops, buffers, name="product"
    )


def memory(config: Config | None = None, seed: int = 1) -> dict[int, np.ndarray]:
    config = config or Config()
    rng = np.random.default_rng(seed)
    batch, block = config.batch, config.block
    return {
        X: rng.integers(-128, 128, (ROWS, DEEP, batch, block), np.int8),
        W: rng.integers(-128, 128, (WIDE, DEEP, block, block), np.int8),
    }


def expected(held: dict[int, np.ndarray]) -> np.ndarray:
    sums = np.einsum("mkbi,nkoi->nmbo", held[X].astype(np.int64), held[W].astype(np.int64))
    return np.clip(sums >> SHIFT, -5, 100).astype(np.int8)


def change(index: int, **fields: Any) -> list[tuple[Any, int]]:
    """The steps with one instruction changed; ``operand`` changes its operand."""
    program_steps = steps()
    instruction, operand = program_steps[index]
    operand = fields.pop("operand", operand)
    program_steps[index] = (dataclasses.replace(instruction, **fields), operand)
    return program_steps
