"""How much work a program is, without running it.

A program of a few hundred bytes may keep a simulator busy for years: one GEMM makes up to 2^28 passes
over its uops. Whoever serves others refuses such programs when they are loaded.
"""

from __future__ import annotations

from tvmtune.errors import TvmtuneError
from tvmtune_vta.hardware.isa import Gemm, Loops, Transfer
from tvmtune_vta.hardware.program import Program

MOST_INSTRUCTIONS = 1 << 19
"""Instructions of a served program; to check as many takes half a minute. VGG-16 has a tenth of it."""


def operations(program: Program) -> int:
    """Products of its GEMMs, plus the values that other instructions write."""
    config = program.config
    vector = config.batch * config.block
    total = 0
    for instruction in program.decode():
        if isinstance(instruction, Loops):
            uops = max(0, instruction.uop_end - instruction.uop_bgn)
            steps = instruction.iter_out * instruction.iter_in * uops
            multiplies = isinstance(instruction, Gemm) and not instruction.reset
            total += steps * vector * (config.block if multiplies else 1)
        elif isinstance(instruction, Transfer):
            total += instruction.y_size * instruction.x_size * vector
    return total


def check(program: Program, most: int) -> None:
    """Raise :class:`TvmtuneError` for a program of more than ``most`` operations, or of too many
    instructions."""
    if len(program.instructions) > MOST_INSTRUCTIONS:
        raise TvmtuneError(
            f"the program has {len(program.instructions)} instructions, and this server takes at most "
            f"{MOST_INSTRUCTIONS}"
        )
    if (found := operations(program)) > most:
        raise TvmtuneError(
            f"the program takes {found:.2g} operations, and this server takes at most {most:.2g}: "
            "simulate it on your own machine (device=sim), or split it"
        )
