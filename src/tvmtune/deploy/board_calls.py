"""Calls to a board, each made in the process that keeps it (:mod:`tvmtune.farm.lending`), see
:meth:`tvmtune.deploy.remote.Borrowed.ask`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune.deploy import on_board
from tvmtune.farm.lending import Board, with_board

if TYPE_CHECKING:
    import numpy as np

_BIG_CORES = 1
"""TVM's mode of its thread pool for the quick cores of big.LITTLE systems."""

_machines: list[tuple[Any, Any, bool]] = []
"""The virtual machine of each library, its device, and whether that is the CPU."""


@with_board
def provide(board: Board) -> None:
    """Have the board load what the other calls need."""
    function = board.function("tvmtune.board.provide")
    if function is not None:
        function(on_board.MODULE)


@with_board
def open_library(
    board: Board, path: str, runtime: str, threads: int, backend: str
) -> tuple[int, int]:
    """Upload a compiled network and load it; its number, and with how many threads it computes.
    ``backend``: whose ``serve_init`` has to come before; empty for none."""
    from tvm.runtime.vm import VirtualMachine

    if backend:
        _own(board, "tvmtune.board.initialise")(backend)
    count = _settle(board, threads)
    name = f"library-{len(_machines)}.so"
    board.session.upload(path, name)
    device = board.session.device(runtime, 0)
    machine = VirtualMachine(board.session.load_module(name), device)
    _machines.append((machine, device, runtime == "cpu"))
    board.session.remove(name)
    return len(_machines) - 1, count


@with_board
def set_inputs(board: Board, library: int, arrays: Sequence[np.ndarray]) -> None:
    machine, device, _ = _machines[library]
    machine.set_input("main", *_tensors(arrays, device))


@with_board
def invoke(board: Board, library: int, count: int) -> float:
    """Seconds that ``count`` calls take, by the board's clock."""
    machine, device, on_cpu = _machines[library]
    own = board.function(on_board.TIME)
    if own is not None and on_cpu:
        return float(own(machine.module, count))
    # It makes one more call before those that it times.
    timer = machine.time_evaluator("invoke_stateful", device, number=count, repeat=1)
    return float(timer("main").mean) * count


@with_board
def outputs(board: Board, library: int) -> list[np.ndarray]:
    return [tensor.numpy() for tensor in _flat(_machines[library][0].get_outputs("main"))]


@with_board
def rest(board: Board) -> None:
    """Wait until the board's process has gone quiet, where it can tell."""
    function = board.function(on_board.REST)
    if function is not None:
        function()


@with_board
def peer_installed(board: Board, name: str) -> str:
    """Why the board does not have a runtime; empty if it has."""
    return str(_own(board, on_board.INSTALLED)(name))


@with_board
def peer_load(board: Board, name: str, network: str, path: str, threads: int) -> str:
    """Have the runtime load the network whose ONNX form is at ``path``; the runtime's version."""
    load = _own(board, on_board.LOAD)
    file = Path(path).name
    board.session.upload(path, file)
    place = str(board.session.get_function("tvm.rpc.server.workpath")(file))
    try:
        return str(load(name, network, place, threads))
    finally:
        board.session.remove(file)


@with_board
def peer_set_inputs(board: Board, name: str, arrays: Sequence[np.ndarray]) -> None:
    tensors = _tensors(arrays, board.session.cpu(0))
    _own(board, on_board.SET_INPUTS)(name, *tensors)


@with_board
def peer_invoke(board: Board, name: str, count: int) -> float:
    """Seconds that ``count`` calls take, by the board's clock."""
    return float(_own(board, on_board.INVOKE)(name, count))


@with_board
def peer_outputs(board: Board, name: str) -> list[np.ndarray]:
    output = _own(board, on_board.OUTPUT)
    found: list[np.ndarray] = []
    while (tensor := output(name, len(found))) is not None:
        found.append(tensor.numpy())
    return found


def _settle(board: Board, threads: int) -> int:
    """Have kernels computed by ``threads`` threads; how many there really are."""
    own = board.function(on_board.SHARE)
    if own is not None:
        own(threads)
        return threads
    # TVM's own server: it has as many as it was started with, and can use fewer.
    board.session.get_function("runtime.config_threadpool")(_BIG_CORES, threads)
    count = board.function("runtime.NumThreads")
    return threads if count is None else int(count())


def _own(board: Board, name: str) -> Any:
    function = board.function(name)
    if function is None:
        raise RuntimeError(
            f"the board has no function {name}: serve it with tvmtune serve, of this version"
        )
    return function


def _tensors(arrays: Sequence[np.ndarray], device: Any) -> list[Any]:
    import numpy as np
    import tvm

    # not ascontiguousarray, which makes a vector of a scalar
    return [tvm.runtime.tensor(np.asarray(array, order="C"), device) for array in arrays]


def _flat(value: Any) -> list[Any]:
    """The tensors in a tuple of tuples of tensors, or the only one."""
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in _flat(part)]
    return [value]
