"""A session with a board, in a process that may be killed; called by :mod:`tvmtune.farm.boards`.

What is called with a board at hand returns a pair: ``("value", result)``, or the kind of failure and its
message: ``("run", ...)``, the call failed and the session goes on; ``("crash", ...)``, the board's
process died of it; ``("lost", ...)``, the connection broke.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmtune.farm.nursery import DIED
from tvmtune.farm.protocol import Address, Tracker, Unreachable
from tvmtune.measure import local
from tvmtune.measure.workers import brief
from tvmtune.types import TensorSpec, Timing

Result = tuple[str, Any]

_BROKEN = re.compile(
    r"connection (was )?(reset|closed|refused|aborted)|broken pipe|socket error|timed out"
    r"|not connected|no route|unreachable|transport endpoint|Close the connection",
    re.IGNORECASE,
)
"""How TVM's RPC and the system say that the other side is gone."""

_options: dict[str, Any] = {}
_board: Board | None = None
_library: tuple[Any, Any]
"""The virtual machine of the library that was opened, and its device."""
_arguments: tuple[Board | None, Any] = (None, None)
"""What candidates of the last workload are called with, and the board that holds it."""


class Board:
    """A board that has been lent, with a session open."""

    def __init__(self, address: Address, session: Any) -> None:
        self.address = address
        self.session = session

    def function(self, name: str) -> Any | None:
        """A function of the board's, or None if it has none of that name."""
        try:
            return self.session.get_function(name)
        except Exception as error:
            if _BROKEN.search(str(error)):
                raise
            return None

    def close(self) -> None:
        """End the session; everything of the board's that is still held becomes invalid."""
        self.session = None
        gc.collect()


def lend(tracker: Address, key: str, wait: float) -> Board | None:
    """A board of that key, or None if none became free within ``wait`` seconds.

    Raises :class:`Unreachable` if the tracker, or every board that it named, is.
    """
    from tvm import rpc

    with Tracker(tracker) as line:
        found = line.request(key, wait)
    if found is None:
        return None
    address, match = found
    try:
        return Board(address, rpc.connect(address.host, address.port, match))
    except Exception as error:
        raise Unreachable(f"the board '{key}' at {address} cannot be reached: {brief(error)}") from None


@contextlib.contextmanager
def borrow(tracker: Address, key: str, wait: float) -> Iterator[Board]:
    """:func:`lend` for a while; raises :class:`Unreachable` where none is to be had."""
    board = lend(tracker, key, wait)
    if board is None:
        raise Unreachable(f"no board '{key}' became free within {wait:g} s: all are in use")
    try:
        yield board
    finally:
        board.close()


def init(options: dict[str, Any]) -> None:
    """Called once in each process."""
    global _options
    _options = options


def ensure(tracker: str, key: str, wait: float) -> str | None:
    """Have a board; its address, or None if none is to be had now."""
    global _board
    if _board is None:
        with contextlib.suppress(Unreachable):
            _board = lend(Address.parse(tracker), key, wait)
        if _board is not None and _options.get("threads"):
            # -1: TVM's mode for the quick cores of a board that has slow ones as well
            _board.session.get_function("runtime.config_threadpool")(
                int(_options.get("cores", -1)), int(_options["threads"])
            )
    return None if _board is None else str(_board.address)


def release() -> None:
    """Give the board back."""
    global _board, _arguments
    _arguments = (None, None)
    board, _board = _board, None
    if board is not None:
        board.close()


def _with_board(function: Callable[..., Any]) -> Callable[..., Result]:
    @functools.wraps(function)
    def call(*arguments: Any) -> Result:
        if _board is None:
            return "lost", "there is no session with a board"
        try:
            return "value", function(_board, *arguments)
        except Exception as error:
            text = str(error)
            if DIED in text:
                how = text[text.index(DIED) :].splitlines()[0]
                return "crash", how.rstrip("'\" ")
            return ("lost" if _BROKEN.search(text) else "run"), brief(error)

    return call


@_with_board
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


@_with_board
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


@_with_board
def describe(board: Board) -> dict[str, Any] | None:
    """What the board says of itself; None where TVM's own server serves it."""
    function = board.function("tvmtune.board.describe")
    return None if function is None else json.loads(str(function()))


@_with_board
def open_library(board: Board, path: str, runtime: str) -> None:
    """Upload a compiled network and load it into the board's virtual machine."""
    from tvm.runtime.vm import VirtualMachine

    global _library
    board.session.upload(path, "library.so")
    device = board.session.device(runtime, 0)
    _library = (VirtualMachine(board.session.load_module("library.so"), device), device)
    board.session.remove("library.so")


@_with_board
def set_inputs(board: Board, arrays: Sequence[np.ndarray]) -> None:
    import tvm

    machine, device = _library
    machine.set_input("main", *[tvm.runtime.tensor(a, device) for a in arrays])


@_with_board
def invoke(board: Board, count: int) -> float:
    """Seconds that ``count`` calls take, by the board's clock."""
    machine, device = _library
    timer = machine.time_evaluator("invoke_stateful", device, number=count, repeat=1)
    return float(timer("main").mean) * count


@_with_board
def outputs(board: Board) -> list[np.ndarray]:
    found = _library[0].get_outputs("main")
    return [t.numpy() for t in _flat(found)]


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in _flat(part)]
    return [value]
