"""The rules of real hardware: each broken once, in an otherwise valid program."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tvmtune.errors import TvmtuneError
from tvmtune_vta.hardware import isa, rules, tokens
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.hardware.isa import Alu, AluOp, Engine, Finish, Gemm, Load, Memory
from tvmtune_vta.hardware.program import NO_OPERAND, UOPS, Buffer, Program
from vta.small import Y, change, program, steps

LOOPS = {"uop_bgn": 0, "uop_end": 4}


def insert(index, *instructions):
    """The steps with instructions, each with its operand, inserted before another."""
    altered = steps()
    altered[index:index] = instructions
    return altered


def test_a_valid_program_breaks_no_rule():
    rules.check(program())
    assert rules.violations(program()) == []


@pytest.mark.parametrize(
    ("index", "fields", "reason"),
    [
        # STORE reads a buffer that only GEMM and ALU write: see below.
        (1, {"x_pad_0": 1, "x_size": 3}, "hardware ignores the padding of weights"),
        (1, {"y_pad_1": 1}, "hardware ignores the padding of weights"),
        (0, {"y_size": 2, "x_size": 2, "x_stride": 2}, "one row of uops and ignores y_size"),
        (0, {"x_pad_1": 1}, "one row of uops and ignores y_size and padding"),
        (0, {"sram_base": 2044}, "it loads uop 2047: hardware holds 2047"),
        (5, {"op": AluOp.MUL}, "no bitstream multiplies"),
        (5, {"imm": 16}, "shifts by 16: must be -16 to 15"),
        (5, {"imm": -17}, "shifts by -17: must be -16 to 15"),
        (4, {"dst_factor_in": 3}, "accumulator 3 is written twice within 2 steps"),
        (4, {"dst_factor_in": 2}, "accumulator 2 is written twice within 2 steps"),
        (4, {"dst_factor_in": 0, "uop_end": 2}, "accumulator 0 is written twice within 2 steps"),
        (4, {"dst_factor_in": 0, "uop_end": 1}, "accumulator 0 is written twice within 2 steps"),
        (4, {"dst_factor_out": 2, "uop_end": 2, "dst_factor_in": 2}, "accumulator 2 is written"),
        (4, {"dst_factor_out": 2, "uop_end": 1, "dst_factor_in": 1}, None),
        (5, {"use_imm": False}, "accumulator 6 is read within 2 steps after it is written"),
        (4, {"iter_out": 0}, "loop counts must be at least 1"),
        (4, {"iter_in": 0}, "loop counts must be at least 1"),
        (4, {"uop_end": 0}, "the range of uops is empty"),
        (4, {"uop_end": 2048}, "it uses uop 2047: hardware holds 2047"),
        (4, {"uop_end": 5}, "uop 4 has not been loaded"),
        (17, {"pop_prev": True}, "FINISH must not take tokens"),
        # Ranges.
        (1, {"sram_base": 1021}, "elements 1021 to 1024 of WGT, which has 1024"),
        (2, {"y_pad_0": 15, "x_pad_0": 15, "y_size": 120}, "elements 0 to 3104 of INP"),
        (2, {"dram_base": 9}, "elements 9 to 16 of 'x' in DRAM, which has 16"),
        (2, {"y_size": 2, "x_stride": 9}, "elements 0 to 16 of 'x' in DRAM"),
        (8, {"sram_base": 2041}, "elements 2041 to 2048 of OUT, which has 2048"),
        (0, {"x_size": 5}, "elements 0 to 4 of 'uops' in DRAM, which has 4"),
        (4, {"dst_factor_in": 2045}, "its dst index reaches 2048, and ACC has 2048"),
        (4, {"src_factor_in": 2042}, "its src index reaches 2049, and INP has 2048"),
        (4, {"wgt_factor_in": 1023}, "its wgt index reaches 1024, and WGT has 1024"),
        (5, {"src_factor_in": 2047}, "its src index reaches 2053, and ACC has 2048"),
        # Memories and operands.
        (8, {"memory": Memory.ACC}, "STORE reads OUT, not ACC"),
        (8, {"y_pad_0": 1}, "STORE has no padding"),
        (1, {"memory": Memory.OUT}, "OUT cannot be loaded"),
        (1, {"operand": NO_OPERAND}, "it has no operand"),
        (1, {"operand": UOPS}, "its operand is uops, not one for WGT"),
        (0, {"operand": Y}, "its operand is y, not one for UOP"),
        (4, {"operand": Y}, "it has operand 2, but no address"),
        (16, {"operand": Y}, "it transfers nothing, but has an operand"),
        (16, {"y_pad_0": 1}, "x_size is 0, which pads on some designs"),
        (2, {"y_size": 0}, "y_size is 0: an empty transfer has x_size 0"),
        (2, {"pop_prev": True}, "the load engine has no neighbor for pop_prev"),
        (8, {"push_next": True}, "the store engine has no neighbor for push_next"),
    ],
)
def test_a_broken_rule_is_reported_with_the_instruction(index, fields, reason):
    broken = program(changed=change(index, **fields))
    reported = rules.violations(broken)
    if reason is None:
        assert not any("twice" in violation.reason for violation in reported)
        return
    assert reported[0].index == index
    assert reason in reported[0].reason
    text = isa.describe(broken.decode()[index])
    with pytest.raises(TvmtuneError) as raised:
        rules.check(broken)
    assert str(raised.value).startswith(f"not a valid VTA program: instruction {index} ({text}): ")


def expect(changed, reason):
    with pytest.raises(TvmtuneError, match=reason):
        rules.check(program(changed=changed))


def test_hardware_stores_only_results_of_gemm_and_alu():
    reset = Gemm(**LOOPS, reset=True, push_next=True)
    altered = insert(8, (reset, NO_OPERAND))
    altered[7] = (dataclasses.replace(altered[7][0], push_next=False), NO_OPERAND)
    expect(
        altered, "it reads element 0, last written by instruction 8 .GEMM reset .*: hardware writes"
    )
    load = Load(memory=Memory.ACC, sram_base=5, push_next=True)
    altered[8] = (load, 3)
    buffers = [*program().buffers, Buffer("bias", "constant", "int32", (1, 16))]
    built = Program.build(Config(), altered, program().uops, buffers)
    with pytest.raises(TvmtuneError, match="it reads element 5, last written by .*LOAD ACC"):
        rules.check(built)
    move = (
        Alu(op=AluOp.ADD, **LOOPS, iter_in=2, dst_factor_in=4, use_imm=True, push_next=True),
        -1,
    )
    altered[8] = (dataclasses.replace(load, push_next=False), 3)
    altered.insert(9, move)
    rules.check(Program.build(Config(), altered, program().uops, buffers))


def test_accumulators_are_not_loaded_from_int8():
    load = Load(memory=Memory.ACC_8BIT)
    expect(insert(3, (load, Y)), "no bitstream loads accumulators from int8")


def test_uninitialized_reads_are_violations():
    expect(steps()[:1] + steps()[2:], "it reads element 0 of WGT, which nothing has written")
    expect(change(8, sram_base=1), "it reads element 8 of OUT, which nothing has written")
    add = (Alu(op=AluOp.ADD, **LOOPS, src_factor_out=0), NO_OPERAND)
    expect(insert(1, add), "it reads accumulator 0, which nothing has written")
    expect(change(5, use_imm=False, src_factor_in=9), "it reads accumulator 9, which nothing")


def test_finish_must_be_unique_and_last():
    expect(steps()[:-1], "the last instruction must be FINISH")
    expect([], "the last instruction must be FINISH")
    expect(insert(3, (Finish(), NO_OPERAND)), "instruction 3 .FINISH.: FINISH must be the last")


def test_tokens_must_balance():
    expect(change(2, push_next=False), "instruction 4 .* waits for a token from load to compute")
    expect(change(11, push_prev=True), "1 token from compute to load is never taken")
    altered = change(15, push_prev=False)
    altered[16] = (dataclasses.replace(altered[16][0], pop_next=False), NO_OPERAND)
    expect(altered, "FINISH does not wait for instruction 15 .STORE")


def test_token_queues_have_a_capacity():
    give = (isa.noop(Engine.LOAD, push_next=True), NO_OPERAND)
    take = (isa.noop(Engine.COMPUTE, pop_prev=True), NO_OPERAND)
    rules.check(program(changed=insert(1, *[give] * 253, *[take] * 253)))
    expect(insert(1, *[give] * 255, *[take] * 255), "can be pending, more than 254")
    # Taking tokens alternately does not bound the queue unless the sender waits, too.
    expect(insert(1, *[give, take] * 255), "tokens from load to compute can be pending")
    waits = (isa.noop(Engine.LOAD, push_next=True, pop_next=True), NO_OPERAND)
    answers = (isa.noop(Engine.COMPUTE, pop_prev=True, push_prev=True), NO_OPERAND)
    rules.check(program(changed=insert(1, give, *[answers, waits] * 600, take)))


def test_fetching_stops_at_a_full_command_queue():
    """An engine waits for a token of an instruction beyond the capacity of a command queue."""
    wait = isa.noop(Engine.LOAD, pop_next=True, push_next=True)
    idle = isa.noop(Engine.LOAD)
    give = isa.noop(Engine.COMPUTE, push_prev=True)
    assert tokens.order([wait, *[idle] * 510, give]).waiting == []
    stuck = tokens.order([wait, *[idle] * 512, give]).waiting
    assert stuck == [(0, [tokens.TokenQueue.COMPUTE_TO_LOAD])]


def test_loads_of_stored_data_must_be_ordered():
    again = (Load(memory=Memory.INP, x_size=1), Y)
    expect(insert(16, again, (isa.noop(Engine.COMPUTE), NO_OPERAND)), "FINISH does not wait")
    ordered = [
        (isa.noop(Engine.COMPUTE, pop_next=True, push_prev=True), NO_OPERAND),
        (Load(memory=Memory.INP, x_size=1, pop_next=True, push_next=True), Y),
        (isa.noop(Engine.COMPUTE, pop_prev=True), NO_OPERAND),
    ]
    altered = steps()
    altered[16:17] = ordered
    rules.check(program(changed=altered))
    altered[16:19] = [
        (isa.noop(Engine.COMPUTE, pop_next=True), NO_OPERAND),
        (Load(memory=Memory.INP, x_size=1, push_next=True, sram_base=99), Y),
        ordered[2],
    ]
    expect(altered, "instruction 8 .STORE .* uses the same part of 'y', and no token orders them")


def test_a_program_for_another_configuration_is_rejected():
    other = Config(log_uop_buff_size=14)
    with pytest.raises(TvmtuneError, match="1x16_i8w8a32_14_15_18_17: LOG_UOP_BUFF_SIZE differ"):
        rules.check(program(), other)
    rules.check(program(), Config.named("pynq"))


def test_undecodable_words_are_listed():
    built = program()
    words = built.instructions.copy()
    words[3, 0] |= np.uint64(7)
    words[5, 1] |= np.uint64(7 << 44)
    reported = rules.violations(dataclasses.replace(built, instructions=words))
    assert [(v.index, v.reason.split(" (")[0]) for v in reported] == [
        (3, "no instruction has opcode 7"),
        (5, "ALU: no ALU operation has the number 7"),
    ]


def test_violations_are_reported_up_to_a_limit():
    altered = steps()
    for index in (3, 4, 10, 11):
        altered[index] = (dataclasses.replace(altered[index][0], iter_in=0), NO_OPERAND)
    reported = rules.violations(program(changed=altered))
    assert [violation.index for violation in reported] == [3, 4, 10, 11]
    assert rules.violations(program(changed=altered), limit=2) == reported[:2]
