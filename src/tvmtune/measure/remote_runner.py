"""Time and check a candidate on a board.

Runs in a process that holds a session with one, see :mod:`tvmtune.remote.client.board_client`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmtune.machine.clock_steps import without_step
from tvmtune.measure import local
from tvmtune.remote import board_functions
from tvmtune.remote.client.board_client import FROM_THE_BOARD, LeasedBoard, with_board
from tvmtune.types import JSON, TensorSpec, Timing
from tvmtune.workers import brief


@with_board
def run(
    board: LeasedBoard,
    artifact: str,
    args: Sequence[TensorSpec],
    timing: Timing,
    options: dict[str, Any],
) -> list[float]:
    """Seconds per call by the board's clock; as :func:`tvmtune.measure.local.run`.

    ``options["device"]``: TVM's name of the device that runs the kernels; ``options["flush"]``: the
    board's function that empties caches. A board without TVM's function for CPUs keeps its caches as
    they are. Boards that ``tvmtune serve`` serves notice if their time of day, which TVM's timer reads,
    is set meanwhile.
    """
    module, device = _load(board, artifact, options)
    arrays = _arguments(board, args, device)
    flush = str(options.get("flush", "")) if timing.number == 1 else ""
    if flush and board.function(flush) is None:
        if flush != local.FLUSH:
            raise RuntimeError(f"the board has no {flush}: run tvmtune serve there")
        flush = ""

    clock = board.function(board_functions.CLOCK) or (lambda: 0.0)

    def measure(repeat: int, number: int, least_ms: int, before: str) -> list[float]:
        evaluator = module.time_evaluator(
            "main", device, number=number, repeat=repeat, min_repeat_ms=least_ms, f_preproc=before
        )
        results = without_step(lambda: evaluator(*arrays), clock).results
        return [float(s) for s in results]

    return local.sample(
        lambda: measure(1, 1, 0, "")[0],
        lambda repeat: measure(repeat, timing.number, timing.min_repeat_ms, flush),
        timing,
        options.get("best"),
    )


@with_board
def describe(board: LeasedBoard) -> JSON | None:
    """The board's description of itself; None if TVM's own server serves it."""
    return board.describe()


@with_board
def check(
    board: LeasedBoard,
    artifact: str,
    reference: str,
    args: Sequence[TensorSpec],
    options: dict[str, Any],
) -> float:
    """As :func:`tvmtune.measure.local.check`; the reference runs on this machine."""
    module, device = _load(board, artifact, options)

    def after(values: Sequence[np.ndarray]) -> list[np.ndarray]:
        import tvm

        tensors = [tvm.runtime.tensor(v, device) for v in values]
        module["main"](*tensors)
        return [t.numpy() for t in tensors]

    return local.compare(after, reference, args)


def _load(board: LeasedBoard, artifact: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """Upload and load the library at ``artifact``; returns it and its device."""
    name = Path(artifact).name
    try:
        board.session.upload(artifact)
    except Exception as error:
        if FROM_THE_BOARD not in str(error):
            raise
        raise RuntimeError(
            f"a library cannot be written on the board at {board.address} ({brief(error)}): free some "
            "space in its temporary folder"
        ) from None
    try:
        module = board.session.load_module(name)
    finally:
        board.session.remove(name)
    return module, board.session.device(options.get("device", "cpu"), 0)


def _arguments(board: LeasedBoard, args: Sequence[TensorSpec], device: Any) -> list[Any]:
    """Arguments for a candidate, which stay on the board; see
    :class:`tvmtune.measure.local.Arguments`."""
    if "arguments" not in board.held:
        board.held["arguments"] = local.Arguments(device, board.function(board_functions.FILL))
    return board.held["arguments"].of(args)
