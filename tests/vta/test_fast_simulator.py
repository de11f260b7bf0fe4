"""The fast simulator is bit-identical to the reference on every kind of valid program."""

from __future__ import annotations

import dataclasses
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tvmtune.errors import TvmtuneError
from tvmtune_vta.codegen.convolution import BIAS, W, X, Y, generate
from tvmtune_vta.codegen.knobs import InfeasibleKnobs, Knobs, points
from tvmtune_vta.codegen.workload import Convolution, Epilogue
from tvmtune_vta.hardware import isa
from tvmtune_vta.hardware.config import Config, Memory
from tvmtune_vta.hardware.isa import Alu, AluOp, Engine, Finish, Gemm, Load, Store
from tvmtune_vta.hardware.program import NO_OPERAND, UOPS, Buffer, Program
from tvmtune_vta.simulator import reference
from tvmtune_vta.simulator.fast import FastSimulator
from tvmtune_vta.simulator.reference import Fault
from vta import small
from vta.packed import arrays, feasible_knobs
from vta.test_convolution import OTHERS, RESNET_18, config
from vta.test_time_model import GOOD

TINY = Config(
    log_block=0, log_inp_buff_size=8, log_wgt_buff_size=8, log_acc_buff_size=9, log_uop_buff_size=8
)
"""A GEMM core of one multiplier."""


def assert_same(program: Program, memory: dict[int, np.ndarray], *, checked: bool = False) -> None:
    want = reference.run(program, memory).memory
    got = FastSimulator(program, checked=checked).run(memory)
    assert list(got) == list(want)
    for number, array in want.items():
        assert got[number].dtype == array.dtype
        assert np.array_equal(got[number], array), program.buffers[number].name


def smaller(conv: Convolution) -> Convolution:
    """A layer with a quarter of the channels, and half of the rows and columns if there are
    many."""
    size = conv.height if conv.height < 28 else conv.height // 2
    ins, outs = conv.in_channels // 4, conv.out_channels // 4
    return dataclasses.replace(conv, height=size, width=size, in_channels=ins, out_channels=outs)


@pytest.mark.sweep
@pytest.mark.parametrize("conv", [smaller(conv) for conv in RESNET_18], ids=str)
def test_a_small_layer_like_those_of_resnet_18(conv):
    on = Config()
    memory, want = arrays(conv, Epilogue(True), on)
    for knobs in feasible_knobs(conv, on, 2):
        program = generate(conv, Epilogue(True), knobs, on)
        assert_same(program, memory)
        assert np.array_equal(FastSimulator(program).run(memory)[Y], want)


@pytest.mark.parametrize("conv", [*RESNET_18][::7], ids=str)
def test_a_full_layer_of_resnet_18(conv):
    memory, want = arrays(conv, Epilogue(True), Config())
    program = generate(conv, Epilogue(True), GOOD[conv], Config())
    assert np.array_equal(FastSimulator(program).run(memory)[Y], want)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(8))
def test_any_convolution(seed):
    """Strides, paddings, kernels of 1 to 7, channels, groups, batches, epilogues, knobs."""
    rng = random.Random(seed)
    done = 0
    while done < 4:
        k, groups = rng.choice([1, 2, 3, 5, 7]), rng.choice([1, 1, 2])
        ins, outs = (16 * groups * rng.randint(1, 3) for _ in range(2))
        conv = Convolution(
            *(rng.choice([1, 2]), rng.randint(k, 14), rng.randint(k, 14), ins, outs, k, k),
            *(rng.randint(0, k // 2), rng.randint(0, k // 2)),
            *(rng.choice([1, 2, 3]), rng.choice([1, 2]), groups),
        )
        low, high = rng.choice([(0, 127), (None, 127), (-128, None), (None, None)])
        epilogue = Epilogue(rng.random() < 0.5, rng.choice([0, 5, 8, 17, 30]), low, high)
        try:
            program = generate(conv, epilogue, rng.choice(list(points(conv, Config()))), Config())
        except InfeasibleKnobs:
            continue
        assert_same(program, arrays(conv, epilogue, Config(), seed)[0])
        done += 1


@pytest.mark.sweep
@pytest.mark.parametrize("changed", OTHERS.values(), ids=OTHERS)
def test_a_convolution_on_other_hardware(changed):
    on = config(**changed)
    conv = Convolution(2, 9, 9, 64, 96, 3, 3, 1, 1, 2, 2)
    for knobs in feasible_knobs(conv, on, 2):
        assert_same(generate(conv, Epilogue(True), knobs, on), arrays(conv, Epilogue(True), on)[0])


@pytest.mark.sweep
@pytest.mark.parametrize(
    "on",
    [
        Config(),
        Config(log_batch=1),
        Config(log_block=5),
        Config(log_block=6, log_wgt_buff_size=20),
        Config(log_block=3, log_batch=2),
        TINY,
    ],
    ids=lambda on: on.bitstream,
)
def test_a_matrix_product_on_any_gemm_core(on):
    held = small.memory(on)
    assert_same(small.program(on), held)
    assert np.array_equal(FastSimulator(small.program(on)).run(held)[small.Y], small.expected(held))


def accumulate(instructions, uops, load, stored, config=None):
    """A program that loads accumulators, runs ALU instructions, and stores the first ``stored``."""
    config = config or Config()
    shape = (config.batch, config.block)
    buffers = [
        Buffer("bias", "input", "int32", (64, *shape)),
        Buffer("out", "output", "int8", (stored, *shape)),
    ]
    flow = [(Load(memory=Memory.UOP, x_size=len(uops)), UOPS)]
    flow.append((load, 0))
    flow += [(instruction, NO_OPERAND) for instruction in instructions]
    flow.append((isa.noop(Engine.COMPUTE, push_next=True), NO_OPERAND))
    flow.append((Store(x_size=stored, pop_prev=True, push_prev=True), 1))
    flow.append((isa.noop(Engine.COMPUTE, pop_next=True), NO_OPERAND))
    flow.append((Finish(), NO_OPERAND))
    return Program.build(config, flow, uops, buffers)


def biases(config=None):
    config = config or Config()
    shape = (64, config.batch, config.block)
    return np.random.default_rng(3).integers(-(2**31), 2**31, shape, np.int64).astype(np.int32)


SIXTEEN = Load(memory=Memory.ACC, x_size=16, x_stride=16)
LOW_TO_HIGH = Alu(op=AluOp.SHR, uop_bgn=0, uop_end=8, use_imm=True, imm=13)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "on", [Config(), Config(log_batch=1, log_block=5)], ids=lambda on: on.bitstream
)
@pytest.mark.parametrize(
    ("op", "imm"),
    [
        *((op, imm) for op in (AluOp.MIN, AluOp.MAX, AluOp.ADD) for imm in (-32768, -7, 0, 300)),
        *((AluOp.SHR, imm) for imm in (-16, -3, 0, 1, 15)),
        *((op, None) for op in (AluOp.MIN, AluOp.MAX, AluOp.ADD)),
    ],
)
def test_alu_operations(op, imm, on):
    """With an immediate or another accumulator; additions and left shifts wrap."""
    uops = isa.pack_uops(on, np.arange(8), np.arange(8) + 8)
    does = Alu(op=op, uop_bgn=0, uop_end=8, use_imm=imm is not None, imm=imm or 0)
    for instructions in ([does], [does, LOW_TO_HIGH], [does, LOW_TO_HIGH, LOW_TO_HIGH]):
        program = accumulate(instructions, uops, SIXTEEN, stored=8, config=on)
        assert_same(program, {0: biases(on)})


def test_a_shift_by_an_accumulator():
    uops = isa.pack_uops(Config(), np.arange(8), np.arange(8) + 8)
    shift = Alu(op=AluOp.SHR, uop_bgn=0, uop_end=8)
    program = accumulate([shift], uops, SIXTEEN, stored=8)
    machine, bias = FastSimulator(program), biases()
    bias[8:16] = np.random.default_rng(1).integers(0, 16, bias[8:16].shape)
    assert_same(program, {0: bias})
    for amount in (-1, 16):
        wrong = bias.copy()
        wrong[11, 0, 5], wrong[12, 0, 0] = amount, -77
        with pytest.raises(Fault, match=f"2 .ALU SHR.* shifts by {amount} from an acc") as raised:
            machine.run({0: wrong})
        assert raised.value.index == 2
    assert np.array_equal(machine.run({0: bias})[1], (bias[:8] >> bias[8:16]).astype(np.int8))


def test_alu_steps_see_what_earlier_ones_wrote():
    """A running sum, spaced widely enough for hardware, in two loops."""
    loops = {"iter_out": 3, "iter_in": 4, "dst_factor_out": 4, "src_factor_out": 4}
    add = Alu(op=AluOp.ADD, uop_bgn=0, uop_end=4, **loops)
    touch = Alu(op=AluOp.ADD, uop_bgn=4, uop_end=8, use_imm=True, imm=1)
    uops = isa.pack_uops(Config(), [4, 5, 6, 7, 0, 1, 2, 3], [0, 1, 2, 3, 0, 1, 2, 3])
    program = accumulate([add, touch], uops, SIXTEEN, stored=16)
    assert_same(program, {0: biases()})


def test_loads_of_accumulators_pad():
    pads = {"y_pad_0": 2, "y_pad_1": 1, "x_pad_0": 3, "x_pad_1": 1}
    load = Load(memory=Memory.ACC, dram_base=5, y_size=3, x_size=4, x_stride=7, **pads)
    touch = Alu(op=AluOp.ADD, uop_bgn=0, uop_end=8, iter_in=6, dst_factor_in=8, use_imm=True)
    program = accumulate([touch], isa.pack_uops(Config(), np.arange(8)), load, stored=48)
    assert_same(program, {0: biases()})


def test_sums_wrap_at_32_bits():
    """Products added to biases near both limits overflow them."""
    config = Config()
    loops = {"uop_bgn": 0, "uop_end": 4, "iter_out": 40, "iter_in": 50}
    shift = {"op": AluOp.SHR, "uop_bgn": 0, "uop_end": 4, "use_imm": True, "imm": 12}
    buffers = [
        Buffer("x", "input", "int8", (4, 1, 16)),
        Buffer("w", "constant", "int8", (1, 16, 16)),
        Buffer("y", "output", "int8", (4, 1, 16)),
        Buffer("bias", "input", "int32", (4, 1, 16)),
    ]
    flow = [
        (Load(memory=Memory.UOP, x_size=4), UOPS),
        (Load(memory=Memory.ACC, x_size=4), 3),
        (Load(memory=Memory.WGT), 1),
        (Load(memory=Memory.INP, x_size=4, push_next=True), 0),
        (Gemm(**loops, pop_prev=True), NO_OPERAND),
        (Alu(**shift), NO_OPERAND),
        (Alu(**shift, push_next=True), NO_OPERAND),
        (Store(x_size=4, pop_prev=True, push_prev=True), 2),
        (isa.noop(Engine.COMPUTE, pop_next=True), NO_OPERAND),
        (Finish(), NO_OPERAND),
    ]
    program = Program.build(config, flow, isa.pack_uops(config, range(4), range(4)), buffers)
    inputs = np.repeat(np.array([-128, 127, -128, 127], np.int8), 16).reshape(4, 1, 16)
    ends = np.array([2**31 - 9, -(2**31) + 9, -(2**31), 2**31 - 1], np.int32)
    held = {
        0: inputs,
        1: np.full((1, 16, 16), -128, np.int8),
        3: np.repeat(ends, 16).reshape(4, 1, 16),
    }
    assert_same(program, held)
    sums = held[3].astype(np.int64) + 2000 * 16 * -128 * inputs.astype(np.int64)
    assert (np.abs(sums) > 2**31).any()
    wrapped = sums.astype(np.int32) >> 24
    assert np.array_equal(FastSimulator(program).run(held)[2], wrapped.astype(np.int8))


@pytest.mark.parametrize("on", [Config(), Config(log_batch=1), TINY], ids=lambda on: on.bitstream)
@pytest.mark.parametrize("seed", range(10))
def test_any_loops(on, seed):
    """Random uops and factors, with more dependences than hardware allows: steps are still
    sequential. Uops are reloaded in between."""
    rng = np.random.default_rng(seed)
    depths = {"dst": 64, "src": 32, "wgt": 16}
    uops = isa.pack_uops(on, *(rng.integers(0, depths[n] // 4, 24) for n in depths))
    shape = (on.batch, on.block)
    buffers = [
        Buffer("x", "input", "int8", (32, *shape)),
        Buffer("w", "constant", "int8", (16, on.block, on.block)),
        Buffer("bias", "input", "int32", (64, *shape)),
        Buffer("y", "output", "int8", (64, *shape)),
    ]
    flow = [
        (Load(memory=Memory.WGT, x_size=16), 1),
        (Load(memory=Memory.INP, x_size=32, push_next=True), 0),
        (Load(memory=Memory.ACC, x_size=64), 2),
        (isa.noop(Engine.COMPUTE, pop_prev=True), NO_OPERAND),
    ]
    for turn in range(12):
        if turn % 3 == 0:
            flow.append((Load(memory=Memory.UOP, dram_base=turn, x_size=12), UOPS))
        begin = int(rng.integers(0, 8))
        loops = {"uop_bgn": begin, "uop_end": int(rng.integers(begin + 1, 13))}
        loops |= {"iter_out": int(rng.integers(1, 5)), "iter_in": int(rng.integers(1, 4))}
        for name, most in (("dst", 8), ("src", 4)):
            loops |= {f"{name}_factor_{part}": int(rng.integers(0, most)) for part in ("out", "in")}
        if turn % 2:
            op = AluOp(int(rng.integers(0, 4)))
            imm = bool(op is AluOp.SHR or rng.integers(0, 2))
            flow.append((Alu(**loops, op=op, use_imm=imm, imm=int(rng.integers(-9, 9))), -1))
        else:
            steps = {f"wgt_factor_{part}": int(rng.integers(0, 3)) for part in ("out", "in")}
            flow.append((Gemm(**loops, **steps, reset=bool(rng.random() < 0.2)), -1))
    flow += [
        (isa.noop(Engine.COMPUTE, push_next=True), NO_OPERAND),
        (Store(x_size=64, pop_prev=True, push_prev=True), 3),
        (isa.noop(Engine.COMPUTE, pop_next=True), NO_OPERAND),
        (Finish(), NO_OPERAND),
    ]
    program = Program.build(on, flow, uops, buffers)
    held = {
        number: rng.integers(-128, 128, buffer.shape, buffer.dtype)
        for number, buffer in enumerate(buffers[:3])
    }
    assert_same(program, held, checked=True)


def test_stored_data_can_be_loaded_again():
    """x, doubled in the accumulators, is loaded back as an input and doubled again."""
    config = Config()
    loops = {"uop_bgn": 0, "uop_end": 4}
    inp = Load(memory=Memory.INP, x_size=4, push_next=True)
    store = Store(x_size=4, pop_prev=True, push_prev=True)
    flow = [(Load(memory=Memory.UOP, x_size=4), UOPS), (Load(memory=Memory.WGT), 1)]
    for source, into in ((0, 2), (2, 3)):
        flow += [
            (dataclasses.replace(inp, pop_next=source == 2), source),
            (Gemm(**loops, reset=True), NO_OPERAND),
            (Gemm(**loops, pop_prev=True, push_next=True), NO_OPERAND),
            (store, into),
            (isa.noop(Engine.COMPUTE, pop_next=True, push_prev=source == 0), NO_OPERAND),
        ]
    flow.append((Finish(), NO_OPERAND))
    buffers = [
        Buffer("x", "input", "int8", (4, 1, 16)),
        Buffer("w", "constant", "int8", (1, 16, 16)),
        Buffer("between", "scratch", "int8", (4, 1, 16)),
        Buffer("y", "output", "int8", (4, 1, 16)),
    ]
    program = Program.build(config, flow, isa.pack_uops(config, range(4), range(4)), buffers)
    x = np.arange(64, dtype=np.int8).reshape(4, 1, 16) - 32
    held = {0: x, 1: 2 * np.eye(16, dtype=np.int8)[None]}
    assert_same(program, held)
    assert np.array_equal(FastSimulator(program).run(held)[3], 4 * x)


def prepared() -> tuple[Program, FastSimulator]:
    """A convolution with its weights and biases in the program, for a batch of two images."""
    conv, epilogue = Convolution(2, 8, 8, 32, 32, 3, 3, 1, 1), Epilogue(True)
    program = generate(conv, epilogue, Knobs(1, 4, 8, 1, 1, 2, 1), Config())
    memory, _ = arrays(conv, epilogue, Config())
    program = dataclasses.replace(program, contents={n: memory[n] for n in (W, BIAS)})
    return program, FastSimulator(program)


def pictures(program: Program, count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.integers(-128, 128, program.buffers[X].shape, np.int8) for _ in range(count)]


def test_repeated_runs_leave_the_inputs_unchanged():
    program, machine = prepared()
    for x in pictures(program, 4):
        held, want = x.copy(), reference.run(program, {X: x}).memory[Y]
        first = machine.run({X: x})[Y]
        again = machine.run({X: x})[Y]
        assert np.array_equal(first, want)
        assert np.array_equal(again, want)
        assert not np.shares_memory(first, again)
        assert np.array_equal(x, held)


def test_only_stored_buffers_are_copied():
    program, machine = prepared()
    (x,) = pictures(program, 1)
    y = np.full(program.buffers[Y].shape, 77, np.int8)
    got = machine.run({X: x, Y: y})
    assert got[X] is x
    assert got[W] is program.contents[W]
    assert (y == 77).all()
    assert np.array_equal(got[Y], machine.run({X: x})[Y])


def test_buffers_without_stores_are_unchanged():
    flow = [
        (dataclasses.replace(i, y_size=1) if isinstance(i, Store) else i, operand)
        for i, operand in small.steps()
    ]
    y = np.full((2, 8, 1, 16), 111, np.int8)
    program = small.program(changed=flow)
    assert_same(program, small.memory() | {small.Y: y})
    assert (FastSimulator(program).run(small.memory() | {small.Y: y})[small.Y][1] == 111).all()


def test_memory_overrides_contents_in_any_memory_order():
    program, machine = prepared()
    (x,) = pictures(program, 1)
    other = np.asfortranarray(np.flip(program.contents[W], axis=-1))
    got = machine.run({X: x[:, ::-1][:, ::-1], W: other})[Y]
    assert np.array_equal(got, reference.run(program, {X: x, W: other}).memory[Y])
    assert not np.array_equal(got, machine.run({X: x})[Y])


def test_threads_run_independently():
    """Two simulators, one of them in several threads at once, with milliseconds of work per run."""
    conv, epilogue = [*RESNET_18][3], Epilogue(True)
    program = generate(conv, epilogue, GOOD[conv], Config())
    machines = [FastSimulator(program), FastSimulator(program)]
    held = [arrays(conv, epilogue, Config(), seed)[0] for seed in range(4)]
    want = [machines[0].run(memory)[Y] for memory in held]
    tasks = [(machine, number) for number in range(len(held)) for machine in machines] * 4
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda task: task[0].run(held[task[1]])[Y], tasks))
    for (_, number), got in zip(tasks, results, strict=True):
        assert np.array_equal(got, want[number])


def test_arrays_must_match_their_buffers():
    machine, held = FastSimulator(small.program()), small.memory()
    with pytest.raises(TvmtuneError, match="the input 'x' .operand 0. is missing"):
        machine.run({1: held[1]})
    with pytest.raises(TvmtuneError, match="of 'x': int8 .8, 2, 1, 16. is needed, not int32"):
        machine.run(held | {0: held[0].astype(np.int32)})
    with pytest.raises(TvmtuneError, match="int8 .8, 2, 1, 16. is needed, not int8 .8, 2, 16."):
        machine.run(held | {0: held[0][:, :, 0]})
    with pytest.raises(TvmtuneError, match="operand 7, which does not exist"):
        machine.run(held | {7: held[0]})


@pytest.mark.parametrize(
    ("index", "fields", "reason"),
    [
        (4, {"dst_factor_in": 2045}, "its dst index reaches 2048, and ACC has 2048"),
        (8, {"y_size": 3}, "elements 0 to 19 of 'y' in DRAM, which has 16"),
        (2, {"push_next": False}, "deadlock"),
        (5, {"op": AluOp.MUL}, "no bitstream multiplies"),
    ],
)
def test_a_program_that_breaks_a_rule_is_rejected(index, fields, reason):
    broken = small.program(changed=small.change(index, **fields))
    with pytest.raises(TvmtuneError, match=f"not a valid VTA program: instruction .*{reason}"):
        FastSimulator(broken)
