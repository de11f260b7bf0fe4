"""The rules that real hardware requires of a program, checked statically.

Upstream's functional simulator accepts much that the FPGA designs do not. Sources: the VTA hardware
repository, ``hardware/xilinx/src/vta.cc`` (HLS) and ``hardware/chisel/src/main/scala/core``; the
minimum distance of writes is that of upstream's runtime (``VerifyDep``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tvmtune.errors import TvmtuneError
from tvmtune_vta.hardware import bounds, hazards, isa, tokens
from tvmtune_vta.hardware.bitfields import Columns
from tvmtune_vta.hardware.config import Config, Memory
from tvmtune_vta.hardware.isa import Alu, AluOp, Engine, Finish, Instruction, Loops, Transfer
from tvmtune_vta.hardware.program import NO_OPERAND, Program
from tvmtune_vta.hardware.uop_buffer import UopBuffer

SHIFTS = range(-16, 16)
"""Valid amounts of SHR on hardware: 5 bits, signed."""
HAZARD_STEPS = 2
"""An accumulator must not be written twice within this many steps: the pipeline would read it
before the first write has finished."""
MAX_CHECKED_STEPS = 1 << 17
"""Steps of an ALU instruction whose sources are checked: more than valid programs usually have."""
MAX_VIOLATIONS = 20
"""Default limit of violations reported."""


@dataclass(frozen=True)
class Violation:
    """A rule that an instruction breaks; ``index`` is None for the program as a whole."""

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
    index, text and the reason. ``config`` is the hardware to run on, by default the program's
    own."""
    if broken := violations(program, config, limit=1):
        raise TvmtuneError(f"not a valid VTA program: {broken[0]}")


def violations(
    program: Program, config: Config | None = None, *, limit: int = MAX_VIOLATIONS
) -> list[Violation]:
    """Up to ``limit`` rules that a program breaks. Later stages (tokens, then data hazards) run
    only if the earlier ones pass."""
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
    instructions, broken = [], []
    for index in range(len(program.instructions)):
        try:
            raw = data[index * isa.BYTES : (index + 1) * isa.BYTES]
            instructions.append(isa.decode(raw, program.config))
        except TvmtuneError as error:
            broken.append(Violation(index, "not decodable", str(error).rstrip(".")))
    for stage in (_single_instructions, _finish, _token_order, hazards.hazards):
        if broken:
            break
        for number, reason in stage(program, instructions):
            text = "" if number is None else isa.describe(instructions[number])
            broken.append(Violation(number, text, reason))
            if len(broken) >= limit:
                break
    return broken[:limit]


def _single_instructions(
    program: Program, instructions: list[Instruction]
) -> Iterator[tuple[int, str]]:
    """Rules that concern a single instruction and its uops."""
    uops = UopBuffer(program)
    operands = program.operands.tolist()
    checked: dict[Loops, str | None] = {}
    for index, instruction in enumerate(instructions):
        for flag in tokens.invalid_flags(instruction):
            yield index, f"the {instruction.engine.name.lower()} engine has no neighbor for {flag}"
        if isinstance(instruction, Transfer):
            reason = _transfer(instruction, operands[index], program)
            if reason is None and instruction.memory is Memory.UOP:
                uops.load(instruction)
                checked.clear()
        elif operands[index] != NO_OPERAND:
            reason = f"it has operand {operands[index]}, but no address"
        elif isinstance(instruction, Loops):
            if instruction not in checked:
                checked[instruction] = _loops(instruction, uops, program.config)
            reason = checked[instruction]
        else:
            reason = None
        if reason is not None:
            yield index, reason


def _transfer(transfer: Transfer, operand: int, program: Program) -> str | None:
    height, width = bounds.rows(transfer)
    if transfer.x_size == 0:
        if height or width:
            return "x_size is 0, which pads on some designs: y_size and pads must be 0"
        return None if operand == NO_OPERAND else "it transfers nothing, but has an operand"
    if transfer.y_size == 0:
        return "y_size is 0: an empty transfer has x_size 0"
    if problem := bounds.transfer_problem(transfer, operand, program):
        return problem
    if transfer.memory is Memory.ACC_8BIT:
        return "no bitstream loads accumulators from int8 (ACC_8BIT)"
    if transfer.memory is Memory.WGT and (height, width) != (transfer.y_size, transfer.x_size):
        return "hardware ignores the padding of weights"
    if transfer.memory is Memory.UOP and (height, width) != (1, transfer.x_size):
        return "hardware loads one row of uops and ignores y_size and padding"
    limit = program.config.uop_limit
    if transfer.memory is Memory.UOP and bounds.on_chip(transfer).stop > limit:
        return f"it loads uop {bounds.on_chip(transfer).stop - 1}: hardware holds {limit}"
    return None


def _loops(loops: Loops, uops: UopBuffer, config: Config) -> str | None:
    if reason := _range(loops, uops, config):
        return reason
    columns = uops.of(loops)
    return (
        bounds.loops_problem(loops, columns, config)
        or _operation(loops)
        or _written_twice(loops, columns)
        or _read_too_early(loops, columns)
    )


def _range(loops: Loops, uops: UopBuffer, config: Config) -> str | None:
    if loops.iter_out < 1 or loops.iter_in < 1:
        return "loop counts must be at least 1: hardware would not terminate"
    if loops.uop_bgn >= loops.uop_end:
        return "the range of uops is empty: hardware would not terminate"
    if loops.uop_end > config.uop_limit:
        return f"it uses uop {loops.uop_end - 1}: hardware holds {config.uop_limit}"
    if (missing := uops.missing(loops)) is not None:
        return f"uop {missing} has not been loaded"
    return None


def _operation(loops: Loops) -> str | None:
    if not isinstance(loops, Alu):
        return None
    if loops.op is AluOp.MUL:
        return "no bitstream multiplies (ALU MUL)"
    if loops.op is AluOp.SHR and loops.use_imm and loops.imm not in SHIFTS:
        return f"it shifts by {loops.imm}: must be {SHIFTS[0]} to {SHIFTS[-1]}"
    return None


def _written_twice(loops: Loops, uops: Columns) -> str | None:
    """Iterations differ only by an offset, so all pairs of neighbors occur in the first iterations
    and around the first step of the outer loop."""
    total = loops.iter_out * loops.iter_in
    for first, end in (
        (0, 1 + HAZARD_STEPS),
        (loops.iter_in - HAZARD_STEPS, loops.iter_in + 1 + HAZARD_STEPS),
    ):
        steps = np.arange(max(0, first), min(end, total))
        written = bounds.indices_at(loops, "dst", uops["dst"], steps).reshape(-1)
        for distance in range(1, 1 + HAZARD_STEPS):
            same = np.flatnonzero(written[distance:] == written[:-distance])
            if len(same):
                return (
                    f"accumulator {written[same[0]]} is written twice within {HAZARD_STEPS} steps: "
                    "the second write misses the first"
                )
    return None


def _read_too_early(loops: Loops, uops: Columns) -> str | None:
    """An ALU instruction must not read a source that is still in the pipeline."""
    if not isinstance(loops, Alu) or loops.use_imm:
        return None
    most = 1 + HAZARD_STEPS + MAX_CHECKED_STEPS // (loops.uop_end - loops.uop_bgn)
    steps = np.arange(min(loops.iter_out * loops.iter_in, most))
    read, written = (
        bounds.indices_at(loops, name, uops[name], steps).reshape(-1) for name in ("src", "dst")
    )
    for distance in range(1, 1 + HAZARD_STEPS):
        same = np.flatnonzero(read[distance:] == written[:-distance])
        if len(same):
            return (
                f"accumulator {written[same[0]]} is read within {HAZARD_STEPS} steps after it is "
                "written: it may see the old value"
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
                yield index, "FINISH must not take tokens: let a no-op before it take them"


def _token_order(
    program: Program, instructions: list[Instruction]
) -> Iterator[tuple[int | None, str]]:
    order = tokens.order(instructions)
    for index, queues in order.waiting:
        missing_tokens = " and ".join(str(q) for q in queues)
        yield index, f"deadlock: it waits for a token from {missing_tokens} that never comes"
    if order.waiting:
        return
    for queue, count in order.left.items():
        yield (
            None,
            f"{count} token{'s' if count > 1 else ''} from {queue} {_are(count)} never taken",
        )
    for queue, (count, index) in order.pending.items():
        if count > tokens.PENDING:
            yield (
                index,
                f"{count} tokens from {queue} can be pending, more than {tokens.PENDING}",
            )
    last = len(instructions) - 1
    for engine in (Engine.LOAD, Engine.STORE):
        issued = [i for i, instruction in enumerate(instructions) if instruction.engine is engine]
        finished = int(order.before[last, engine])
        if finished < len(issued):
            late = issued[finished]
            yield (
                last,
                f"FINISH does not wait for instruction {late} ({isa.describe(instructions[late])})",
            )


def _are(count: int) -> str:
    return "are" if count > 1 else "is"
