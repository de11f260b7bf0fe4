"""What a stream must keep to so that real hardware computes what it says.

Upstream's functional simulator accepts much that the FPGA designs do not. Sources: the VTA hardware
repository, ``hardware/xilinx/src/vta.cc`` (HLS) and ``hardware/chisel/src/main/scala/core``; the
distance of writes is that of upstream's runtime (``VerifyDep``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tvmtune.errors import TvmtuneError
from tvmtune_vta import bounds, flow, isa, tokens
from tvmtune_vta.config import Config, Memory
from tvmtune_vta.isa import Alu, AluOp, Engine, Finish, Instruction, Loops, Transfer
from tvmtune_vta.layout import Columns
from tvmtune_vta.program import NO_OPERAND, Program

SHIFTS = range(-16, 16)
"""Amounts that SHR has room for on hardware: 5 bits, signed."""
DISTANCE = 2
"""Steps within which the same accumulator is not written twice: a sum is read before the one that is
still in the pipeline has been written."""
LOOKED_AT = 1 << 17
"""Steps of an ALU instruction whose sources are looked at: more than a sound one has, as a rule."""
SHOWN = 20
"""Violations that are looked for."""


@dataclass(frozen=True)
class Violation:
    """A rule that an instruction breaks; ``index`` is None where the whole stream does."""

    index: int | None
    text: str
    """The instruction, disassembled."""
    reason: str

    def __str__(self) -> str:
        if self.index is None:
            return self.reason
        return f"instruction {self.index} ({self.text}): {self.reason}"


def check(program: Program, config: Config | None = None) -> None:
    """Raise :class:`TvmtuneError` with the first rule that a program breaks: the instruction's
    number, text and the reason. ``config`` is the hardware that it is to run on, if not its own."""
    if found := violations(program, config, limit=1):
        raise TvmtuneError(f"not a valid VTA program: {found[0]}.")


def violations(
    program: Program, config: Config | None = None, *, limit: int = SHOWN
) -> list[Violation]:
    """Up to ``limit`` rules that a program breaks. Later kinds of rules (tokens, then what memories
    hold) are looked at only where the earlier ones are kept."""
    if config is not None and (keys := program.config.differences(config)):
        return [
            Violation(
                None,
                "",
                f"it is for {program.config.bitstream}, not {config.bitstream}: "
                f"{', '.join(keys)} differ",
            )
        ]
    data = isa.to_bytes(program.instructions)
    instructions, found = [], []
    for index in range(len(program.instructions)):
        try:
            raw = data[index * isa.BYTES : (index + 1) * isa.BYTES]
            instructions.append(isa.decode(raw, program.config))
        except TvmtuneError as error:
            found.append(Violation(index, "not decodable", str(error).rstrip(".")))
    for stage in (_alone, _finish, _tokens, flow.problems):
        if found:
            break
        for number, reason in stage(program, instructions):
            text = "" if number is None else isa.describe(instructions[number])
            found.append(Violation(number, text, reason))
            if len(found) >= limit:
                break
    return found[:limit]


def _alone(program: Program, instructions: list[Instruction]) -> Iterator[tuple[int, str]]:
    """Rules for which one instruction, and the uops that it uses, are enough."""
    uops = flow.UopBuffer(program)
    operands = program.operands.tolist()
    judged: dict[Loops, str | None] = {}
    for index, instruction in enumerate(instructions):
        for flag in tokens.strays(instruction):
            yield index, f"the {instruction.engine.name.lower()} engine has no neighbour for {flag}"
        if isinstance(instruction, Transfer):
            reason = _transfer(instruction, operands[index], program)
            if reason is None and instruction.memory is Memory.UOP:
                uops.load(instruction)
                judged.clear()
        elif operands[index] != NO_OPERAND:
            reason = f"its operand is {operands[index]}, and it has no address"
        elif isinstance(instruction, Loops):
            if instruction not in judged:
                judged[instruction] = _loops(instruction, uops, program.config)
            reason = judged[instruction]
        else:
            reason = None
        if reason is not None:
            yield index, reason


def _transfer(transfer: Transfer, operand: int, program: Program) -> str | None:
    height, width = bounds.rows(transfer)
    if transfer.x_size == 0:
        if height or width:
            return (
                "with x_size 0 it does nothing on one design and pads on another: y_size and pads 0"
            )
        return None if operand == NO_OPERAND else "it transfers nothing, and has an operand"
    if transfer.y_size == 0:
        return "y_size is 0: a transfer of nothing has x_size 0"
    if problem := bounds.transfer_problem(transfer, operand, program):
        return problem
    if transfer.memory is Memory.ACC_8BIT:
        return "no bitstream loads accumulators from int8 (ACC_8BIT)"
    if transfer.memory is Memory.WGT and (height, width) != (transfer.y_size, transfer.x_size):
        return "hardware ignores the padding of weights"
    if transfer.memory is Memory.UOP and (height, width) != (1, transfer.x_size):
        return "hardware loads one row of uops, and ignores y_size and padding"
    limit = program.config.uop_limit
    if transfer.memory is Memory.UOP and bounds.on_chip(transfer).stop > limit:
        return f"it loads uop {bounds.on_chip(transfer).stop - 1}: hardware has room for {limit}"
    return None


def _loops(loops: Loops, uops: flow.UopBuffer, config: Config) -> str | None:
    if reason := _range(loops, uops, config):
        return reason
    columns = uops.of(loops)
    return (
        bounds.loops_problem(loops, columns, config)
        or _operation(loops)
        or _written_twice(loops, columns)
        or _read_too_early(loops, columns)
    )


def _range(loops: Loops, uops: flow.UopBuffer, config: Config) -> str | None:
    if loops.iter_out < 1 or loops.iter_in < 1:
        return "loop counts are at least 1: hardware does not come to an end otherwise"
    if loops.uop_bgn >= loops.uop_end:
        return "the range of uops is empty: hardware does not come to an end"
    if loops.uop_end > config.uop_limit:
        return f"it uses uop {loops.uop_end - 1}: hardware has room for {config.uop_limit}"
    if (missing := uops.missing(loops)) is not None:
        return f"uop {missing} has not been loaded"
    return None


def _operation(loops: Loops) -> str | None:
    if not isinstance(loops, Alu):
        return None
    if loops.op is AluOp.MUL:
        return "no bitstream multiplies (ALU MUL)"
    if loops.op is AluOp.SHR and loops.use_imm and loops.imm not in SHIFTS:
        return f"it shifts by {loops.imm}: {SHIFTS[0]} to {SHIFTS[-1]} are possible"
    return None


def _written_twice(loops: Loops, uops: Columns) -> str | None:
    """Iterations differ from the first ones only by an offset, so all neighbours that there are occur
    in the first iterations and around the first step of the outer loop."""
    total = loops.iter_out * loops.iter_in
    for first, end in ((0, 1 + DISTANCE), (loops.iter_in - DISTANCE, loops.iter_in + 1 + DISTANCE)):
        steps = np.arange(max(0, first), min(end, total))
        written = bounds.at(loops, "dst", uops["dst"], steps).reshape(-1)
        for distance in range(1, 1 + DISTANCE):
            same = np.flatnonzero(written[distance:] == written[:-distance])
            if len(same):
                return (
                    f"accumulator {written[same[0]]} is written twice within {DISTANCE} steps: "
                    "the second does not see the first"
                )
    return None


def _read_too_early(loops: Loops, uops: Columns) -> str | None:
    """An ALU instruction's source is read as its destination is: not before what is in the pipeline
    has been written."""
    if not isinstance(loops, Alu) or loops.use_imm:
        return None
    most = 1 + DISTANCE + LOOKED_AT // (loops.uop_end - loops.uop_bgn)
    steps = np.arange(min(loops.iter_out * loops.iter_in, most))
    read, written = (
        bounds.at(loops, name, uops[name], steps).reshape(-1) for name in ("src", "dst")
    )
    for distance in range(1, 1 + DISTANCE):
        same = np.flatnonzero(read[distance:] == written[:-distance])
        if len(same):
            return (
                f"accumulator {written[same[0]]} is read within {DISTANCE} steps after it is written: "
                "the value before may be seen"
            )
    return None


def _finish(program: Program, instructions: list[Instruction]) -> Iterator[tuple[int | None, str]]:
    if not instructions or not isinstance(instructions[-1], Finish):
        yield None, "the last instruction must be FINISH"
    for index, instruction in enumerate(instructions):
        if isinstance(instruction, Finish):
            if index + 1 < len(instructions):
                yield index, "FINISH must be the last instruction"
            if tokens.pops(instruction):
                yield index, "FINISH must not take tokens: a transfer of nothing before it can"


def _tokens(program: Program, instructions: list[Instruction]) -> Iterator[tuple[int | None, str]]:
    found = tokens.order(instructions)
    for index, queues in found.waiting:
        lacking = " and ".join(str(q) for q in queues)
        yield index, f"deadlock: it waits for a token from {lacking} that never comes"
    if found.waiting:
        return
    for queue, count in found.left.items():
        yield (
            None,
            f"{count} token{'s' if count > 1 else ''} from {queue} {_are(count)} never taken",
        )
    for queue, (count, index) in found.pending.items():
        if count > tokens.PENDING:
            yield (
                index,
                f"{count} tokens from {queue} can lie in the queue, and {tokens.PENDING} may",
            )
    last = len(instructions) - 1
    for engine in (Engine.LOAD, Engine.STORE):
        mine = [i for i, instruction in enumerate(instructions) if instruction.engine is engine]
        sure = int(found.before[last, engine])
        if sure < len(mine):
            late = mine[sure]
            yield (
                last,
                f"FINISH does not wait for instruction {late} ({isa.describe(instructions[late])})",
            )


def _are(count: int) -> str:
    return "are" if count > 1 else "is"
