"""Time and check a candidate on a board; each function runs in a process that keeps one, see
:mod:`tvmtune.farm.lending`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvmtune.farm.lending import Board, with_board
from tvmtune.measure import local
from tvmtune.types import TensorSpec, Timing

_arguments: tuple[Board | None, Any] = (None, None)
"""What candidates of the last workload are called with, and the board that holds it."""


@with_board
def run(
    board: Board,
    artifact: str,
    args: Sequence[TensorSpec],
    timing: Timing,
    options: dict[str, Any],
) -> list[float]:
    """Seconds per call on the board; as :func:`tvmtune.measure.local.run`."""
    module, device = _load(board, artifact, options)
    arrays = _kept(board, args, device)

    def measure(repeat: int, number: int = timing.number) -> list[float]:
        evaluator = module.time_evaluator(
            "main",
            device,
            number=number,
            repeat=repeat,
            min_repeat_ms=timing.min_repeat_ms if number == timing.number else 0,
            f_preproc=str(options.get("flush", "")) if timing.number == 1 else "",
        )
        return [float(s) for s in evaluator(*arrays).results]

    return local.sample(lambda: measure(1, 1)[0], measure, timing, options.get("best"))


@with_board
def check(
    board: Board,
    artifact: str,
    reference: str,
    args: Sequence[TensorSpec],
    options: dict[str, Any],
) -> float:
    """As :func:`tvmtune.measure.local.check`; the reference runs on this machine."""
    module, device = _load(board, artifact, options)

    def after(values: list[Any]) -> list[Any]:
        import tvm

        tensors = [tvm.runtime.tensor(v, device) for v in values]
        module["main"](*tensors)
        return [t.numpy() for t in tensors]

    return local.compare(after, reference, args)


def _load(board: Board, artifact: str, options: dict[str, Any]) -> tuple[Any, Any]:
    name = Path(artifact).name
    board.session.upload(artifact)
    module = board.session.load_module(name)
    board.session.remove(name)
    return module, board.session.device(options.get("device", "cpu"), 0)


def _kept(board: Board, args: Sequence[TensorSpec], device: Any) -> list[Any]:
    """Arrays to call a candidate with; see :class:`tvmtune.measure.local.Arguments`, which spares here
    that weights go over the line for each candidate."""
    global _arguments
    if _arguments[0] is not board:
        _arguments = (board, local.Arguments(device))
    return _arguments[1].of(args)
