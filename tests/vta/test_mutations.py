"""Programs with one flipped bit: rejected, diagnosed or run to some result, never a crash or a
hang."""

from __future__ import annotations

import dataclasses
import os
import random

import numpy as np
import pytest

from tvmtune.errors import TvmtuneError
from tvmtune_vta.hardware import rules
from tvmtune_vta.simulator import reference
from vta.small import Y, expected, memory, program

MANY = int(os.environ.get("TVMTUNE_SOAK_MUTANTS", "1000"))


def mutants(count: int):
    """Programs with one flipped bit in an instruction or uop."""
    original, rng = program(), random.Random(7)
    for _ in range(count):
        words, uops = original.instructions.copy(), original.uops.copy()
        bits = rng.randrange(128 * len(words) + 32 * len(uops))
        if bits < 128 * len(words):
            words.reshape(-1)[bits // 64] ^= np.uint64(1 << bits % 64)
        else:
            bits -= 128 * len(words)
            uops[bits // 32] ^= np.uint32(1 << bits % 32)
        yield dataclasses.replace(original, instructions=words, uops=uops)


@pytest.mark.parametrize("count", [200, pytest.param(MANY, marks=pytest.mark.slow)])
def test_a_flipped_bit_is_rejected_or_diagnosed_or_harmless(count):
    held, counted = memory(), {"refused": 0, "fault": 0, "right": 0, "wrong": 0}
    right = expected(held)
    for index, mutant in enumerate(mutants(count)):
        refused = rules.violations(mutant)
        try:
            result = reference.run(mutant, held, index)
        except TvmtuneError as error:
            assert str(error)
            assert "\n" not in str(error)
            # Shift amounts are the only faults that depend on data.
            assert refused or "from an accumulator" in str(error)
            counted["fault"] += 1
            continue
        assert sum(result.steps.values()) <= reference.STEPS * len(mutant.instructions)
        if refused:
            counted["refused"] += 1
            continue
        # The result of a program that the rules accept does not depend on the order.
        assert np.array_equal(reference.run(mutant, held, "lazy-loads").memory[Y], result.memory[Y])
        counted["right" if np.array_equal(result.memory[Y], right) else "wrong"] += 1
    assert sum(counted.values()) == count
    assert counted["fault"] > count // 4
    assert all(counted.values()), counted


def test_random_words_are_rejected():
    original, rng = program(), np.random.default_rng(3)
    for _ in range(50):
        words = rng.integers(0, 1 << 64, original.instructions.shape, np.uint64)
        mutant = dataclasses.replace(original, instructions=words)
        assert rules.violations(mutant)
