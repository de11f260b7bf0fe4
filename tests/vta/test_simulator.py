"""The reference simulator: results in every order that tokens allow, and diagnoses."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tvmtune.errors import TvmtuneError, UsageError
from tvmtune_vta.hardware import isa, rules, tokens
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.hardware.isa import Alu, AluOp, Engine, Finish, Gemm, Load, Memory, Store
from tvmtune_vta.hardware.program import NO_OPERAND, UOPS, Buffer, Program
from tvmtune_vta.simulator import reference
from tvmtune_vta.simulator.reference import ORDERS, Fault
from vta.small import Y, change, expected, memory, program, steps

FLAGS = [
    (index, flag)
    for index, (instruction, _) in enumerate(steps())
    for flag in ("pop_prev", "pop_next", "push_prev", "push_next")
    if getattr(instruction, flag)
]


@pytest.mark.parametrize("order", [*ORDERS, 1, 2, 3])
def test_a_matrix_product_in_every_order(order):
    held = memory()
    result = reference.run(program(), held, order)
    assert np.array_equal(result.memory[Y], expected(held))
    assert len(np.unique(result.memory[Y])) > 20
    assert sorted(result.sequence) == list(range(len(steps())))
    assert result.steps == {"gemm": 32, "reset": 16, "alu": 48}
    assert result.traffic == {"uop": 16, "wgt": 1024, "inp": 256, "acc": 0, "out": 256}


@pytest.mark.parametrize(
    "config", [Config(log_batch=1), Config(log_block=5), Config(log_block=3, log_batch=2)]
)
def test_other_hardware_computes_the_same(config):
    held = memory(config)
    rules.check(program(config))
    result = reference.run_all_orders(program(config), held)
    assert np.array_equal(result.memory[Y], expected(held))


def test_orders_are_adversarial():
    """Loads run ahead of compute or behind it; stores the other way round."""
    early = reference.run(program(), memory(), "eager-loads").sequence
    late = reference.run(program(), memory(), "lazy-loads").sequence
    load, store = 9, 8
    assert isinstance(steps()[load][0], Load)
    assert isinstance(steps()[store][0], Store)
    assert early.index(load) < early.index(store)
    assert late.index(store) < late.index(load)


@pytest.mark.parametrize(("index", "flag"), FLAGS)
def test_a_missing_flag_is_diagnosed(index, flag):
    broken = program(changed=change(index, **{flag: False}))
    assert rules.violations(broken)
    with pytest.raises(Fault, match="deadlock: |are never taken|depends on|ends the run before"):
        reference.run_all_orders(broken, memory())


def without(pairs):
    altered = steps()
    for index, flag in pairs:
        instruction, operand = altered[index]
        assert getattr(instruction, flag)
        altered[index] = (dataclasses.replace(instruction, **{flag: False}), operand)
    return program(changed=altered)


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        # The first GEMM runs before its inputs are loaded, and so on.
        ([(2, "push_next"), (4, "pop_prev")], "may read element 0 of INP before .* has written"),
        ([(4, "push_prev"), (9, "pop_next")], "may overwrite element 0 of INP before"),
        ([(7, "push_next"), (8, "pop_prev")], "may read element 0 of OUT before"),
        ([(8, "push_prev"), (10, "pop_next")], "may overwrite element 0 of OUT before"),
        ([(15, "push_prev"), (16, "pop_next")], "FINISH does not wait for instruction 15 .STORE"),
    ],
)
def test_a_missing_pair_of_flags_is_detected(pairs, reason):
    """No token is left over and nothing deadlocks, but the result depends on the engines' speed:
    the rules detect that statically, and adversarial orders expose it."""
    broken = without(pairs)
    with pytest.raises(TvmtuneError, match=reason):
        rules.check(broken)
    with pytest.raises(Fault, match="depends on the engines' speed|ends the run before"):
        reference.run_all_orders(broken, memory(), seeds=4)


def test_a_deadlock_names_the_missing_tokens():
    broken = program(changed=change(2, push_next=False))
    with pytest.raises(Fault) as raised:
        reference.run(broken, memory())
    message = str(raised.value)
    assert message.startswith(
        "deadlock: load waits for a token from compute to load at instruction 9 ("
    )
    assert (
        "compute waits for a token from load to compute at instruction 4 (GEMM uop=0:4" in message
    )
    assert "store waits for a token from compute to store at instruction 8 (STORE OUT" in message


def test_leftover_tokens_are_counted():
    with pytest.raises(Fault, match="1 tokens from compute to load are never taken"):
        reference.run(program(changed=change(11, push_prev=True)), memory())


@pytest.mark.parametrize(
    ("index", "fields", "reason"),
    [
        (1, {"sram_base": 1021}, "elements 1021 to 1024 of WGT, which has 1024"),
        (2, {"dram_base": 9}, "elements 9 to 16 of 'x' in DRAM, which has 16"),
        (2, {"dram_base": 0xFFFFFFFF}, "in DRAM, which has 16"),
        (8, {"y_size": 3}, "elements 0 to 19 of 'y' in DRAM, which has 16"),
        (8, {"x_pad_0": 1}, "STORE has no padding"),
        (0, {"x_size": 5}, "elements 0 to 4 of 'uops' in DRAM, which has 4"),
        (4, {"uop_end": 5}, "uop 4 has not been loaded"),
        (4, {"uop_end": 8193}, "there is no uop 8192"),
        (4, {"dst_factor_in": 2045}, "its dst index reaches 2048, and ACC has 2048"),
        (4, {"src_factor_out": 2042}, "its src index reaches 2048, and INP has 2048"),
        (4, {"iter_out": 600, "wgt_factor_out": 2}, "its wgt index reaches 1200, and WGT has 1024"),
        (4, {"iter_in": 0}, "it has no iterations"),
        (4, {"iter_out": 16383, "src_factor_out": 0, "wgt_factor_out": 0} | {"iter_in": 200}
         | {"dst_factor_in": 0, "wgt_factor_in": 0}, "takes over 1179648 steps .13106408."),
        (5, {"imm": 16}, "shifts by 16"),
        (1, {"operand": NO_OPERAND}, "it has no operand"),
        (1, {"operand": UOPS}, "its operand is uops, not one for WGT"),
        (1, {"push_prev": True}, "no neighbor for push_prev"),
        (1, {"memory": Memory.OUT}, "OUT cannot be loaded"),
    ],
)  # fmt: skip
def test_undefined_behavior_is_a_fault(index, fields, reason):
    with pytest.raises(Fault, match=reason) as raised:
        reference.run(program(changed=change(index, **fields)), memory())
    assert raised.value.index == index
    assert str(raised.value).startswith(f"instruction {index} (")


def test_finish_must_be_present_and_last():
    with pytest.raises(Fault, match="no FINISH"):
        reference.run(program(changed=steps()[:-1]), memory())
    with pytest.raises(
        Fault, match="instruction 16 .FINISH.: it ends the run before instruction 15"
    ):
        altered = steps()
        altered[16:] = altered[:15:-1]
        reference.run(program(changed=altered), memory())


def test_arrays_must_match_their_buffers():
    held = memory()
    with pytest.raises(TvmtuneError, match="the input 'x' .operand 0. is missing"):
        reference.run(program(), {1: held[1]})
    with pytest.raises(
        TvmtuneError, match="memory of 'x': int8 .8, 2, 1, 16. is needed, not int32"
    ):
        reference.run(program(), held | {0: held[0].astype(np.int32)})
    with pytest.raises(TvmtuneError, match="operand 7, which does not exist"):
        reference.run(program(), held | {7: held[0]})
    with pytest.raises(UsageError, match="order 'fast' is not known: use greedy"):
        reference.run(program(), held, "fast")


def accumulators(config, instructions, uops, bias, size):
    """Run ALU instructions on accumulators loaded from ``bias``, and return the low bytes."""
    buffers = [
        Buffer("bias", "input", "int32", bias.shape),
        Buffer("out", "output", "int8", (size, *bias.shape[1:])),
    ]
    flow = [(Load(memory=Memory.UOP, x_size=len(uops)), UOPS)]
    flow.append((Load(memory=Memory.ACC, x_size=len(bias), x_stride=len(bias)), 0))
    flow += [(i, NO_OPERAND) for i in instructions]
    flow.append((isa.noop(Engine.COMPUTE, push_next=True), NO_OPERAND))
    flow.append((Store(x_size=size, pop_prev=True, push_prev=True), 1))
    flow.append((isa.noop(Engine.COMPUTE, pop_next=True), NO_OPERAND))
    flow.append((Finish(), NO_OPERAND))
    return reference.run(Program.build(config, flow, uops, buffers), {0: bias}).memory[1]


@pytest.mark.parametrize(
    ("op", "imm", "compute"),
    [
        (AluOp.MIN, -7, lambda a: np.minimum(a, -7)),
        (AluOp.MAX, 300, lambda a: np.maximum(a, 300)),
        (AluOp.ADD, -32768, lambda a: a - 32768),
        (AluOp.SHR, 15, lambda a: a >> 15),
        (AluOp.SHR, -16, lambda a: a << 16),
        (AluOp.SHR, -3, lambda a: a << 3),
        (AluOp.MUL, 77, lambda a: a * 77),
    ],
)
def test_alu_operations_wrap_at_32_bits_and_stores_truncate_to_8(op, imm, compute):
    bias = np.random.default_rng(1).integers(-(2**31), 2**31, (6, 1, 16), np.int64)
    bias = bias.astype(np.int32)
    shift = Alu(op=AluOp.SHR, uop_bgn=0, uop_end=6, use_imm=True, imm=11)
    does = Alu(op=op, uop_bgn=0, uop_end=6, use_imm=True, imm=imm)
    uops = isa.pack_uops(Config(), np.arange(6))
    done = compute(bias.astype(np.int64)).astype(np.int32)
    assert np.array_equal(accumulators(Config(), [does], uops, bias, 6), done.astype(np.int8))
    done >>= 11
    assert np.array_equal(
        accumulators(Config(), [does, shift], uops, bias, 6), done.astype(np.int8)
    )


def test_alu_steps_see_what_earlier_ones_wrote():
    """A running sum, a reduction and a shift by another accumulator, one step at a time."""
    bias = np.arange(8 * 16, dtype=np.int32).reshape(8, 1, 16) % 11
    add = Alu(op=AluOp.ADD, uop_bgn=0, uop_end=1, iter_out=7, dst_factor_out=1, src_factor_out=1)
    uops = isa.pack_uops(Config(), [1], [0])
    assert np.array_equal(accumulators(Config(), [add], uops, bias, 8), np.cumsum(bias, 0))
    total = Alu(op=AluOp.ADD, uop_bgn=0, uop_end=1, iter_out=7, src_factor_out=1)
    uops = isa.pack_uops(Config(), [0], [1])
    assert np.array_equal(accumulators(Config(), [total], uops, bias, 1), bias.sum(0)[None])
    shift = Alu(op=AluOp.SHR, uop_bgn=0, uop_end=1)
    assert np.array_equal(accumulators(Config(), [shift], uops, bias, 1), bias[:1] >> bias[1:2])
    with pytest.raises(Fault, match="it shifts by -5 from an accumulator: must be 0 to 15"):
        accumulators(Config(), [shift], uops, -bias, 1)


def test_loads_pad_with_zeros_and_step_by_the_stride():
    """A padded image, read back through an identity weight."""
    config = Config()
    picture = np.random.default_rng(2).integers(-128, 128, (5, 7, 1, 16), np.int8)
    pads = {"y_pad_0": 2, "y_pad_1": 1, "x_pad_0": 3, "x_pad_1": 1}
    load = Load(memory=Memory.INP, dram_base=8, y_size=3, x_size=4, x_stride=7, **pads)
    count = 6 * 8
    buffers = [
        Buffer("x", "input", "int8", picture.shape),
        Buffer("w", "constant", "int8", (1, 1, 16, 16)),
        Buffer("y", "output", "int8", (count, 1, 16)),
    ]
    loops = {"uop_bgn": 0, "uop_end": 1, "iter_out": count, "dst_factor_out": 1}
    flow = [
        (Load(memory=Memory.UOP), UOPS),
        (Load(memory=Memory.WGT), 1),
        (dataclasses.replace(load, push_next=True), 0),
        (Gemm(**loops, reset=True), NO_OPERAND),
        (Gemm(**loops, src_factor_out=1, pop_prev=True, push_next=True), NO_OPERAND),
        (Store(x_size=count, pop_prev=True, push_prev=True), 2),
        (isa.noop(Engine.COMPUTE, pop_next=True), NO_OPERAND),
        (Finish(), NO_OPERAND),
    ]
    built = Program.build(config, flow, isa.pack_uops(config, [0]), buffers)
    rules.check(built)
    held = {0: picture, 1: np.eye(16, dtype=np.int8).reshape(1, 1, 16, 16)}
    result = reference.run_all_orders(built, held).memory[2]
    padded = np.pad(picture[1:4, 1:5], ((2, 1), (3, 1), (0, 0), (0, 0)))
    assert np.array_equal(result.reshape(6, 8, 1, 16), padded)


def test_sums_wrap_at_32_bits():
    """2^31 is reached by adding to a bias, and by products with one weight on one accumulator."""
    config = Config()
    loops = {"uop_bgn": 0, "uop_end": 1, "iter_out": 4096}
    buffers = [
        Buffer("x", "input", "int8", (1, 1, 16)),
        Buffer("w", "constant", "int8", (1, 1, 16, 16)),
        Buffer("y", "output", "int8", (1, 1, 16)),
        Buffer("bias", "input", "int32", (1, 1, 16)),
    ]
    shift = {"op": AluOp.SHR, "uop_bgn": 0, "uop_end": 1, "use_imm": True, "imm": 15}
    flow = [
        (Load(memory=Memory.UOP), UOPS),
        (Load(memory=Memory.ACC), 3),
        (Load(memory=Memory.WGT), 1),
        (Load(memory=Memory.INP, push_next=True), 0),
        (Gemm(**loops, pop_prev=True), NO_OPERAND),
        (Alu(**shift), NO_OPERAND),
        (Alu(**shift | {"imm": 9}, push_next=True), NO_OPERAND),
        (Store(pop_prev=True, push_prev=True), 2),
        (isa.noop(Engine.COMPUTE, pop_next=True), NO_OPERAND),
        (Finish(), NO_OPERAND),
    ]
    built = Program.build(config, flow, isa.pack_uops(config, [0]), buffers)
    held = {0: np.full((1, 1, 16), -128, np.int8), 1: np.full((1, 1, 16, 16), -128, np.int8)}
    held[3] = np.full((1, 1, 16), 1 << 30, np.int32)
    result = reference.run(built, held)
    # 2^30 + 4096 * 16 * 2^14 = 2^30 + 2^30
    assert (result.memory[2] == (-(2**31) >> 24)).all()


def test_tokens_follow_the_published_queues():
    load = Load(memory=Memory.INP, pop_next=True, push_next=True)
    acc = Load(memory=Memory.ACC, pop_prev=True, pop_next=True, push_prev=True, push_next=True)
    store = Store(pop_prev=True, push_prev=True)
    names = [
        [str(q) for q in f(i)] for i in (load, acc, store) for f in (tokens.pops, tokens.pushes)
    ]
    assert names == [
        ["compute to load"],
        ["load to compute"],
        ["load to compute", "store to compute"],
        ["compute to load", "compute to store"],
        ["compute to store"],
        ["store to compute"],
    ]
