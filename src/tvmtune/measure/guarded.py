"""Arguments between guard zones, which show whether a kernel leaves them.

What lies beside an argument belongs to another one in a library. In a check it is often padding of the
allocator, so that a kernel that writes to it would pass. All bits of a zone are set: floats that are
read from it are NaN, integers -1 or the highest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

ZONE = 4096
"""Bytes on either side of an argument."""
_ALIGNMENT = 64
"""Of arguments, in bytes, as TVM allocates them."""


class OutOfBounds(RuntimeError):
    """A kernel wrote to a guard zone."""


class GuardedArguments:
    """Copies of ``values`` in this machine's memory, as TVM tensors."""

    def __init__(self, values: Sequence[np.ndarray]) -> None:
        self._values = values
        self._memories = [np.full(v.nbytes + 2 * ZONE + _ALIGNMENT, 0xFF, np.uint8) for v in values]
        self._bodies: list[np.ndarray] = []
        for memory, value in zip(self._memories, values, strict=True):
            begin = ZONE + -(memory.ctypes.data + ZONE) % _ALIGNMENT
            body = memory[begin : begin + value.nbytes]
            body[:] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            self._bodies.append(body)

    def tensors(self) -> list[Any]:
        """They share the memory of this object."""
        import tvm

        return [
            tvm.runtime.from_dlpack(body)._create_view(value.shape, value.dtype.name)
            if value.size
            else tvm.runtime.tensor(value)
            for body, value in zip(self._bodies, self._values, strict=True)
        ]

    def arrays(self) -> list[np.ndarray]:
        """Their current values, copied. Raises :class:`OutOfBounds` if a zone has changed."""
        for memory, body in zip(self._memories, self._bodies, strict=True):
            begin = body.ctypes.data - memory.ctypes.data if body.size else 0
            zones = memory[:begin], memory[begin + body.size :]
            if not all((zone == 0xFF).all() for zone in zones):
                raise OutOfBounds("it writes beyond its arguments")
        return [
            body.copy().view(value.dtype).reshape(value.shape)
            for body, value in zip(self._bodies, self._values, strict=True)
        ]
