"""What workers do with a candidate: make its stream, model its time, compare what it computes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.accuracy import relative_error
from tvmtune.types import TensorSpec, Timing
from tvmtune_vta import clock, simulator
from tvmtune_vta.clock import Constants
from tvmtune_vta.config import Config
from tvmtune_vta.convolution import BIAS, W, X, Y, generate
from tvmtune_vta.program import Program
from tvmtune_vta.workload import Convolution, Epilogue, reference

if TYPE_CHECKING:
    import tvm


def build(
    mod: tvm.IRModule, target: dict[str, Any], options: dict[str, Any], directory: str
) -> str:
    """The stream of a candidate, as a file; of a workload that is not scheduled, its numbers."""
    from tvmtune_vta import compute, space

    conv, epilogue = compute.read(mod)
    knobs = space.read(mod)
    path = Path(directory) / uuid.uuid4().hex
    if knobs is None:
        path = path.with_suffix(".json")
        path.write_text(str(mod["main"].attrs[compute.ATTRIBUTE]))
    else:
        path = path.with_suffix(".npz")
        config = Config.parse(options["config"], "the device's configuration")
        generate(conv, epilogue, knobs, config).save(path)
    return str(path)


def run(
    artifact: str, args: Sequence[TensorSpec], timing: Timing, options: dict[str, Any]
) -> list[float]:
    """The modelled seconds of one launch; a model says the same each time."""
    constants = Constants(**options["constants"])
    return [clock.model(Program.load(artifact), constants).seconds]


def check(
    artifact: str, reference_artifact: str, args: Sequence[TensorSpec], options: dict[str, Any]
) -> float:
    """max|y - ref| / max|ref| between the simulated stream, in an order that depends on the file's
    name, and whole numbers summed by NumPy. The stream also has to keep the hardware's rules."""
    from tvmtune_vta import rules

    told = json.loads(Path(reference_artifact).read_text())
    conv, epilogue = Convolution(**told["convolution"]), Epilogue(**told["epilogue"])
    rng = np.random.default_rng(len(artifact))
    x, w, bias = (_values(spec, rng) for spec in args[:3])
    program = Program.load(artifact)
    rules.check(program)
    memory = {X: x, W: w, **({BIAS: bias} if epilogue.bias else {})}
    found = simulator.run(program, memory, order=len(program.instructions)).memory[Y]
    wanted = reference(conv, epilogue, x, w, bias)
    return relative_error(found.astype(np.float64), wanted.astype(np.float64))


def _values(spec: TensorSpec, rng: np.random.Generator) -> Any:
    """All of int8, and biases that matter beside sums of such products."""
    most = 128 if spec.dtype == "int8" else 1 << 15
    return rng.integers(-most, most, spec.shape).astype(spec.dtype)
