"""Run a library on a board, over TVM's RPC; the board's own clock times it.

Functions marked :func:`with_board` run in the process that holds the session with the board, see
:meth:`tvmtune.remote.client.lease.BoardLease.ask`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.library import metadata, thread_pool
from tvmtune.remote.client.board_client import (
    OVERHEAD,
    SLOW_LINE,
    LeasedBoard,
    tensors,
    with_board,
)
from tvmtune.remote.client.lease import RUN, BoardLease, CallPace
from tvmtune.runtime import board_functions
from tvmtune.runtime.session import ENTRY, KernelTime, chosen, flatten

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from tvmtune.types import JSON

_BIG_CORES = 1
"""Mode of TVM's thread pool that uses the big cores of big.LITTLE systems."""


class RemoteSession:
    """Implements :class:`tvmtune.runtime.session.LibrarySession` on a board."""

    def __init__(
        self, path: Path, metadata_: JSON, board: BoardLease, threads: int | None = None
    ) -> None:
        """Upload and load the library at ``path``, whose metadata were checked against the board.

        ``threads``: by default as many as it was tuned for, or as the board has if these are fewer.
        Raises :class:`TvmtuneError` if the board cannot load it, :class:`UsageError` if the board has
        fewer CPUs than ``threads``.
        """
        board.provide(board_functions.MODULE)
        self.board: BoardLease | None = board
        self._lease = board
        self._pace = CallPace()
        description = board.described or {}
        cpus = int(description.get("cpus") or 0)
        if threads is not None and not 1 <= threads <= (cpus or threads):
            raise UsageError(
                f"the number of threads must be from 1 to {cpus}, the CPUs of the board "
                f"'{board.key}', not {threads}"
            )
        size, free = path.stat().st_size, int(description.get("free_bytes") or 0)
        if 0 < free < size:
            raise TvmtuneError(
                f"the board '{board.key}' has {free / 1e6:.0f} MB of free memory, and {path} alone is "
                f"{size / 1e6:.0f} MB. Stop what else runs there, or use another board."
            )
        tuned = int(metadata_["threads"])
        wanted = threads or (min(tuned, cpus) if cpus else tuned)
        device = metadata_["device"]
        runtime = metadata.runtime(metadata_)
        backend = device["backend"] if device.get("needs_init") else ""
        limit = size / SLOW_LINE + RUN
        self._number: int
        self._number, self.threads = board.ask(
            _open_library, str(path), runtime, wanted, backend, limit=limit
        )

    def set_inputs(self, arrays: Sequence[np.ndarray | None]) -> None:
        limit = total_bytes([a for a in arrays if a is not None]) / SLOW_LINE + OVERHEAD
        self._lease.ask(_set_inputs, self._number, list(arrays), limit=limit)

    def invoke(self, count: int = 1) -> float:
        limit = self._pace.limit(count)
        seconds = self._lease.ask(_invoke, self._number, count, limit=limit)
        return self._pace.seen(float(seconds), count)

    def keep(self, outputs: Mapping[int, int]) -> None:
        self._lease.ask(_keep, self._number, dict(outputs), limit=RUN)

    def kept(self, number: int) -> np.ndarray:
        array: np.ndarray = self._lease.ask(_kept, self._number, number, limit=RUN)
        return array

    def outputs(self, numbers: Sequence[int] | None = None) -> list[np.ndarray]:
        arrays: list[np.ndarray] = self._lease.ask(_outputs, self._number, numbers, limit=RUN)
        return arrays

    def device_seconds(self, count: int) -> float | None:
        return None  # libraries on boards are timed by the wall clock only

    def rest(self) -> None:
        self._lease.ask(_rest, limit=RUN)

    def profile(self, repeat: int) -> list[KernelTime]:
        raise TvmtuneError(
            "a library on a board cannot be profiled: TVM's RPC cannot instrument its calls"
        )


class _LoadedLibrary(NamedTuple):
    machine: Any
    """TVM's virtual machine."""
    device: Any
    on_cpu: bool
    kept: dict[int, Any]
    """Tensors on the board, by the inputs that they may be."""


_libraries: list[_LoadedLibrary] = []
"""Libraries of this process's session, by their numbers."""


@with_board
def _open_library(
    board: LeasedBoard, path: str, runtime: str, wanted: int, backend: str
) -> tuple[int, int]:
    """Upload a library and load it; returns its number and the number of threads that it uses.

    ``backend``: the backend whose ``serve_init`` must run first; empty for none.
    """
    from tvm.runtime.vm import VirtualMachine

    if backend:
        board.own_function("tvmtune.board.initialise")(backend)
    name = f"library-{len(_libraries)}.so"
    board.session.upload(path, name)
    device = board.session.device(runtime, 0)
    module = board.session.load_module(name)
    threads = thread_pool.set_threads(module, wanted) or _set_threads(board, wanted)
    machine = VirtualMachine(module, device)
    _libraries.append(_LoadedLibrary(machine, device, runtime == "cpu", {}))
    board.session.remove(name)
    return len(_libraries) - 1, threads


@with_board
def _set_inputs(board: LeasedBoard, number: int, arrays: Sequence[np.ndarray | None]) -> None:
    library = _libraries[number]
    sent = iter(tensors([a for a in arrays if a is not None], library.device))
    inputs = [library.kept[n] if a is None else next(sent) for n, a in enumerate(arrays)]
    library.machine.set_input(ENTRY, *inputs)


@with_board
def _keep(board: LeasedBoard, number: int, outputs: dict[int, int]) -> None:
    library = _libraries[number]
    found = flatten(library.machine.get_outputs(ENTRY))
    library.kept.clear()
    library.kept.update({place: found[output] for place, output in outputs.items()})


@with_board
def _kept(board: LeasedBoard, number: int, place: int) -> np.ndarray:
    array: np.ndarray = _libraries[number].kept[place].numpy()
    return array


@with_board
def _invoke(board: LeasedBoard, number: int, count: int) -> float:
    """Seconds that ``count`` calls take, by the board's clock."""
    library = _libraries[number]
    time_calls = board.function(board_functions.TIME)
    if time_calls is not None and library.on_cpu:
        return float(time_calls(library.machine.module, count))
    # This makes one more call before those that it times.
    timer = library.machine.time_evaluator(
        "invoke_stateful", library.device, number=count, repeat=1
    )
    return float(timer(ENTRY).mean) * count


@with_board
def _outputs(board: LeasedBoard, number: int, numbers: Sequence[int] | None) -> list[np.ndarray]:
    outputs = _libraries[number].machine.get_outputs(ENTRY)
    return [tensor.numpy() for tensor in chosen(outputs, numbers)]


@with_board
def _rest(board: LeasedBoard) -> None:
    """Wait until the threads of the board's process sleep; do nothing on TVM's own server."""
    rest = board.function(board_functions.REST)
    if rest is not None:
        rest()


def _set_threads(board: LeasedBoard, threads: int) -> int:
    """Set the number of threads that kernels use; returns the number that they really use."""
    share = board.function(board_functions.SHARE)
    if share is not None:
        share(threads)
        return threads
    # TVM's own server: its pool has the size that it was started with, and can use fewer threads.
    board.session.get_function("runtime.config_threadpool")(_BIG_CORES, threads)
    count = board.function("runtime.NumThreads")
    return threads if count is None else int(count())


def total_bytes(arrays: Sequence[np.ndarray]) -> int:
    """Bytes of all arrays together."""
    return sum(array.nbytes for array in arrays)
