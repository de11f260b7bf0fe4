"""Functions of a board's sessions for measuring, beside TVM's own.

Clients look them up by name (:data:`SET_THREADS`, :data:`FILL`, :data:`CLOCK`); boards that TVM's own
server serves do not have them. Imports numpy, TVM and nothing of the tuning side.
"""

from __future__ import annotations

from typing import Any

SET_THREADS = "tvmtune.board.settle"
FILL = "tvmtune.board.fill"
CLOCK = "tvmtune.board.clock"


def register() -> None:
    """Make them available to the session's client."""
    import tvm_ffi

    from tvmtune.machine import clock_steps

    tvm_ffi.register_global_func(SET_THREADS, set_threads, override=True)
    tvm_ffi.register_global_func(FILL, fill, override=True)
    tvm_ffi.register_global_func(CLOCK, clock_steps.ahead, override=True)


def set_threads(threads: int) -> int:
    """Run kernels with ``threads`` threads; see :func:`tvmtune.machine.threads.bind_pool`.

    Raises :class:`tvmtune.errors.UsageError` if there are fewer CPUs.
    """
    from tvmtune.machine import threads as thread_pool

    thread_pool.bind_pool(threads)
    return threads


def fill(tensor: Any, seed: int) -> None:
    """Fill a tensor on the board as :func:`tvmtune.test_data.fill` would: 46 MB of weights need not be
    uploaded."""
    from tvmtune.test_data import fill as values
    from tvmtune.types import TensorSpec

    spec = TensorSpec("", tuple(int(d) for d in tensor.shape), str(tensor.dtype))
    tensor.copyfrom(values(spec, seed))
