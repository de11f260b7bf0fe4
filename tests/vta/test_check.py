"""The check of a candidate sees wrong programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from tvmtune.measure import check_data
from tvmtune.passes.kernel_arguments import kernel_arguments
from tvmtune_vta.codegen.convolution import BIAS, W, X, Y
from tvmtune_vta.codegen.workload import Convolution, numpy_reference
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.simulator.fast import FastSimulator
from tvmtune_vta.tuning import conv2d_packed, measure
from vta.packed import feasible_knobs

DEEP = Convolution(1, 4, 4, 512, 16, 3, 3)
"""Four pixels of 16 channels, each a sum of 4608 products."""
SHALLOW = Convolution(1, 8, 8, 16, 32, 3, 3, 1, 1)
CONFIG = Config()


class Check:
    """The check of one convolution, whose program computes what :attr:`altered` makes of it."""

    def __init__(self, conv: Convolution, folder: Path) -> None:
        self.args = kernel_arguments(conv2d_packed.module(conv, CONFIG))
        self.alter: Callable[[dict[int, Any]], None] = lambda memory: None
        self.finish: Callable[[Any, Any], Any] = lambda after, before: after
        folder = folder / str(conv)
        folder.mkdir()
        reference = {"convolution": conv.to_json(), "epilogue": asdict(conv2d_packed.EPILOGUE)}
        (knobs,) = feasible_knobs(conv, CONFIG, 1)
        self.candidate, self.reference = folder / "candidate.json", folder / "reference.json"
        self.candidate.write_text(json.dumps(reference | {"knobs": knobs.to_json()}))
        self.reference.write_text(json.dumps(reference))

    def error(self) -> float:
        options = {"config": CONFIG.as_dict()}
        return measure.check(str(self.candidate), str(self.reference), self.args, options)


@pytest.fixture
def check(monkeypatch, tmp_path) -> Callable[[Convolution], Check]:
    simulate = FastSimulator.run

    def make(conv: Convolution) -> Check:
        made = Check(conv, tmp_path)

        def run(self: Any, memory: Any) -> Any:
            altered = {n: np.array(array) for n, array in memory.items()}
            made.alter(altered)
            before = memory.get(Y, np.zeros(self.program.buffers[Y].shape, np.int8))
            return {**memory, Y: made.finish(simulate(self, altered)[Y], before)}

        monkeypatch.setattr(FastSimulator, "run", run)
        return made

    return make


def test_a_right_program_has_no_error(check):
    for conv in (DEEP, SHALLOW):
        assert check(conv).error() == 0.0


@pytest.mark.slow
def test_one_weight_tile_of_hundreds_that_is_left_out_shows(check):
    made = check(DEEP)
    missed = []
    for tile in np.ndindex(1, 32, 3, 3):

        def without(memory: dict[int, Any], tile: Any = tile) -> None:
            memory[W][tile] = 0

        made.alter = without
        if made.error() == 0.0:
            missed.append(tile)
    assert missed == []


def test_zeros_that_are_never_written_show(check):
    made = check(SHALLOW)
    made.finish = lambda after, before: np.where(after == 0, before, after)
    assert made.error() > 0.0


@pytest.mark.parametrize("wrong", ["bias", "neighbor", "clip"])
def test_other_wrong_programs_show(check, wrong):
    made = check(SHALLOW)

    def alter(memory: dict[int, Any]) -> None:
        if wrong == "bias":
            memory[BIAS][-1] = memory[BIAS][0]
        if wrong == "neighbor":
            memory[X] = np.roll(memory[X], 1, axis=3)

    made.alter = alter
    if wrong == "clip":
        made.finish = lambda after, before: np.minimum(after, 126)
    assert made.error() > 0.0


@pytest.mark.parametrize("conv", [DEEP, SHALLOW])
def test_most_values_are_not_clipped(conv):
    """Where a sum is clipped, an error of it is invisible."""
    args = kernel_arguments(conv2d_packed.module(conv, CONFIG))
    for which in check_data.SETS:
        x, w, bias, _ = check_data.draw(args, which)
        y = numpy_reference(conv, conv2d_packed.EPILOGUE, x, w, bias)
        assert np.mean((y > 0) & (y < 127)) > check_data.TELLING


def test_the_workload_computes_what_programs_are_compared_with():
    """NumPy's integers, against the task's own workload, for values of the check."""
    mod = conv2d_packed.module(SHALLOW, CONFIG)
    for which in check_data.SETS:
        values = check_data.draw(kernel_arguments(mod), which)
        tensors = [tvm.runtime.tensor(value) for value in values]
        tvm.compile(mod, target="llvm")["main"](*tensors)
        expected = numpy_reference(SHALLOW, conv2d_packed.EPILOGUE, *values[:3])
        assert np.array_equal(tensors[3].numpy(), expected)
