"""How a library's metadata describe its state.

The key ``state`` has an object for each tensor that the network keeps from run to run: the ``name`` of
the input, that of the ``output`` with its next value, and its ``initial`` values, null for zeros, else
base64 of their bytes in C order, little-endian.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from tvmtune.errors import TvmtuneError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from tvmtune.types import JSON, State, TensorSpec

_LARGEST = 1 << 20
"""Bytes of other values than zero that the metadata may hold of each tensor."""


def encode(state: Mapping[str, State]) -> list[JSON]:
    """The entries of this state, by the names of inputs.

    Raises :class:`TvmtuneError` if a large tensor begins with other values than zero.
    """
    return [
        {"name": name, "output": each.output, "initial": _encode(name, each.initial)}
        for name, each in state.items()
    ]


def decode(entry: JSON, spec: TensorSpec) -> np.ndarray:
    """The values with which the tensor of an entry begins, writable.

    Raises ValueError if they do not fit ``spec``.
    """
    import numpy as np

    from tvmtune.arrays import numpy_dtype

    dtype = numpy_dtype(spec.dtype)
    if entry["initial"] is None:
        return np.zeros(spec.shape, dtype)
    raw = np.frombuffer(base64.b64decode(entry["initial"]), dtype.newbyteorder("<"))
    return raw.astype(dtype).reshape(spec.shape)


def _encode(name: str, value: np.ndarray | None) -> str | None:
    if value is None:
        return None
    if value.nbytes > _LARGEST:
        raise TvmtuneError(
            f"'{name}', which the network changes, is {value.nbytes / 1e6:.1f} MB that do not begin as "
            f"zeros, more than the {_LARGEST / 1e6:.1f} MB that a library can hold; make it an input "
            "and an output, and export the network again"
        )
    return base64.b64encode(value.astype(value.dtype.newbyteorder("<")).tobytes()).decode()
