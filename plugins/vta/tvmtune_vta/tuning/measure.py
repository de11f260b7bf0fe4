"""Functions that workers run: model a candidate's time, and check what it computes.

An artifact is JSON from which a program can be generated, with its time: the time model needs
instructions, not their encoding.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune.measure.comparison import Values, stored_reference, worst_error
from tvmtune.types import TensorSpec, Timing
from tvmtune_vta.codegen.convolution import BIAS, W, X, Y, generate, instruction_segments
from tvmtune_vta.codegen.knobs import Knobs
from tvmtune_vta.codegen.workload import Convolution, Epilogue, numpy_reference
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.hardware.program import Program
from tvmtune_vta.timing import cycle_count
from tvmtune_vta.timing.time_model import TimingConstants

if TYPE_CHECKING:
    import tvm


def build(
    mod: tvm.IRModule, target: dict[str, Any], options: dict[str, Any], directory: str
) -> str:
    """Write a workload as JSON, for a scheduled one with its knobs and modelled seconds; returns
    the file's path. ``options``: the ``config`` and the model's ``constants``."""
    from tvmtune_vta.tuning import conv2d_packed, space

    candidate = json.loads(str(mod["main"].attrs[conv2d_packed.ATTRIBUTE]))
    knobs = space.read_knobs(mod)
    if knobs is not None:
        config, constants = _config(options), TimingConstants(**options["constants"])
        parts = instruction_segments(*_workload(candidate), knobs, config)
        candidate["knobs"] = knobs.to_json()
        candidate["seconds"] = constants.seconds(cycle_count.count_cycles(parts, config, constants))
    path = Path(directory) / f"{uuid.uuid4().hex}.json"
    path.write_text(json.dumps(candidate))
    return str(path)


def run(
    artifact: str, args: Sequence[TensorSpec], timing: Timing, options: dict[str, Any]
) -> list[float]:
    """The modelled seconds of one launch; the model is deterministic."""
    return [float(json.loads(Path(artifact).read_text())["seconds"])]


def check(
    artifact: str, reference_artifact: str, args: Sequence[TensorSpec], options: dict[str, Any]
) -> float:
    """The error of the simulated program against NumPy integers, on the same values as for other
    devices: 0 unless a bit differs. The program must also keep the hardware's rules, so that no
    execution order changes the result."""
    from tvmtune_vta.simulator.fast import FastSimulator

    simulator = FastSimulator(_program(json.loads(Path(artifact).read_text()), options))
    workload = _workload(json.loads(Path(reference_artifact).read_text()))

    def simulate(values: Values) -> Values:
        x, w, bias, y = values
        after = simulator.run({X: x, W: w, BIAS: bias, Y: y})
        return [after[n] for n in (X, W, BIAS, Y)]

    def compute(values: Values) -> Values:
        x, w, bias, _ = values
        return [x, w, bias, numpy_reference(*workload, x, w, bias)]

    return worst_error(
        args,
        simulate,
        lambda which: stored_reference(args, which, compute, Path(reference_artifact)),
    )


def _workload(candidate: dict[str, Any]) -> tuple[Convolution, Epilogue]:
    return Convolution(**candidate["convolution"]), Epilogue(**candidate["epilogue"])


def _program(candidate: dict[str, Any], options: dict[str, Any]) -> Program:
    return generate(*_workload(candidate), Knobs(**candidate["knobs"]), _config(options))


def _config(options: dict[str, Any]) -> Config:
    return Config.parse(options["config"], "the device's configuration")
