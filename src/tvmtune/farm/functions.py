"""What a session on a board offers to those who measure there, beside TVM's own functions.

Clients find them by name (:data:`SETTLE`, :data:`FILL`) and do without on boards that TVM's own server
serves. numpy, TVM and nothing of the host's part are imported.
"""

from __future__ import annotations

from typing import Any

SETTLE = "tvmtune.board.settle"
FILL = "tvmtune.board.fill"


def register() -> None:
    """Make them known to the session's clients."""
    import tvm_ffi

    tvm_ffi.register_global_func(SETTLE, settle, override=True)
    tvm_ffi.register_global_func(FILL, fill, override=True)


def settle(threads: int) -> int:
    """Have kernels computed by ``threads`` threads, see
    :func:`tvmtune.threads.settle`.

    Raises :class:`tvmtune.errors.UsageError` if there are not so many.
    """
    from tvmtune import threads as pool

    pool.settle(threads)
    return threads


def fill(tensor: Any, seed: int) -> None:
    """Give a tensor of the board's the values that :func:`tvmtune.filling.fill` has for it: 46 MB of
    weights need not go over the line."""
    from tvmtune.filling import fill as values
    from tvmtune.types import TensorSpec

    spec = TensorSpec("", tuple(int(d) for d in tensor.shape), str(tensor.dtype))
    tensor.copyfrom(values(spec, seed))
