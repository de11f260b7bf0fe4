"""What workers do with a candidate: make its stream, model its time, compare what it computes.

Between them goes what a stream is made from, and its time: the model needs instructions, and no
bytes of them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.accuracy import relative_error
from tvmtune.types import TensorSpec, Timing
from tvmtune_vta import quick_clock
from tvmtune_vta.clock import Constants
from tvmtune_vta.config import Config
from tvmtune_vta.convolution import BIAS, W, X, Y, generate, outline
from tvmtune_vta.knobs import Knobs
from tvmtune_vta.program import Program
from tvmtune_vta.workload import Convolution, Epilogue, reference

if TYPE_CHECKING:
    import tvm


def build(
    mod: tvm.IRModule, target: dict[str, Any], options: dict[str, Any], directory: str
) -> str:
    """The numbers of a workload, and for a scheduled one its knobs and modelled seconds, in a file of
    JSON. ``options``: the ``config`` and the model's ``constants``."""
    from tvmtune_vta import compute, space

    told = json.loads(str(mod["main"].attrs[compute.ATTRIBUTE]))
    knobs = space.read(mod)
    if knobs is not None:
        config, constants = _config(options), Constants(**options["constants"])
        parts = outline(*_workload(told), knobs, config)
        told["knobs"] = knobs.to_json()
        told["seconds"] = constants.seconds(quick_clock.cycles(parts, config, constants))
    path = Path(directory) / f"{uuid.uuid4().hex}.json"
    path.write_text(json.dumps(told))
    return str(path)


def run(
    artifact: str, args: Sequence[TensorSpec], timing: Timing, options: dict[str, Any]
) -> list[float]:
    """The modelled seconds of one launch; a model says the same each time."""
    return [float(json.loads(Path(artifact).read_text())["seconds"])]


def check(
    artifact: str, reference_artifact: str, args: Sequence[TensorSpec], options: dict[str, Any]
) -> float:
    """max|y - ref| / max|ref| between the simulated stream and whole numbers summed by NumPy. The
    stream also has to keep the hardware's rules, so that no order of the engines changes it."""
    from tvmtune_vta.quick import Machine

    told = json.loads(Path(artifact).read_text())
    machine = Machine(_program(told, options))
    rng = np.random.default_rng(0)
    x, w, bias = (_values(spec, rng) for spec in args[:3])
    found = machine.run({X: x, W: w, BIAS: bias})[Y]
    told = json.loads(Path(reference_artifact).read_text())
    wanted = reference(*_workload(told), x, w, bias)
    return relative_error(found.astype(np.float64), wanted.astype(np.float64))


def _workload(told: dict[str, Any]) -> tuple[Convolution, Epilogue]:
    return Convolution(**told["convolution"]), Epilogue(**told["epilogue"])


def _program(told: dict[str, Any], options: dict[str, Any]) -> Program:
    return generate(*_workload(told), Knobs(**told["knobs"]), _config(options))


def _config(options: dict[str, Any]) -> Config:
    return Config.parse(options["config"], "the device's configuration")


def _values(spec: TensorSpec, rng: np.random.Generator) -> Any:
    """All of int8, and biases that matter beside sums of such products."""
    most = 128 if spec.dtype == "int8" else 1 << 15
    return rng.integers(-most, most, spec.shape).astype(spec.dtype)
