"""How a library's metadata describe its state.

The key ``state`` has an object for each tensor that the network keeps from run to run: the ``name`` of
the input, that of the ``output`` with its next value, and its ``initial`` values, null for zeros, else
base64 of their bytes in C order, little-endian.
"""

from __future__ import annotations

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

    from tvmtune.arrays import from_text, numpy_dtype

    dtype = numpy_dtype(spec.dtype)
    if entry["initial"] is None:
        return np.zeros(spec.shape, dtype)
    return from_text(entry["initial"], dtype).astype(dtype).reshape(spec.shape)


def split(data: JSON) -> tuple[list[JSON], list[JSON], list[JSON]]:
    """The inputs and outputs of a library's metadata without state, and the inputs that are state."""
    entries = data.get("state", ())
    before, after = ({entry[key] for entry in entries} for key in ("name", "output"))
    return (
        [spec for spec in data["inputs"] if spec["name"] not in before],
        [spec for spec in data["outputs"] if spec["name"] not in after],
        [spec for spec in data["inputs"] if spec["name"] in before],
    )


def _encode(name: str, value: np.ndarray | None) -> str | None:
    from tvmtune.arrays import to_text

    if value is None:
        return None
    if value.nbytes > _LARGEST:
        raise TvmtuneError(
            f"'{name}', which the network changes, is {value.nbytes / 1e6:.1f} MB that do not begin as "
            f"zeros, more than the {_LARGEST / 1e6:.1f} MB that a library can hold; make it an input "
            "and an output, and export the network again"
        )
    return to_text(value)
