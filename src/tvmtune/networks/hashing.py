"""The structure hash and the weights hash of a network, collected while its graph is walked.

Every format walks its own graph and uses this class for its tensors. Which integers shape a program and
how a dtype is written differ between the formats: logs and libraries hold the hashes, so that neither
may change.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from tvmtune.types import digest

_SMALL = 64
"""Tensors of up to this many integers count as axes, shapes or indices, which shape the program."""


class NetworkHasher:
    """Collects the description of a network's structure, and digests its weights."""

    def __init__(self) -> None:
        self._weights = hashlib.sha256()
        self._structure: list[Any] = []

    def add(self, description: Any) -> None:
        """Append a part of the structure, as JSON has it."""
        self._structure.append(description)

    def constant(self, array: np.ndarray, dtype: str = "") -> list[Any]:
        """Describe a constant for the structure; small integers and booleans by value.

        ``dtype`` stands for the array's own where NumPy has no such type.
        """
        by_value = array.dtype.kind in "iub" and not dtype
        return self.tensor(array, [dtype or array.dtype.name, list(array.shape)], by_value=by_value)

    def tensor(self, array: np.ndarray, header: list[Any], *, by_value: bool) -> list[Any]:
        """Describe a tensor for the structure by ``header``, its dtype and shape.

        ``by_value`` adds the values of a small tensor. All other values go into the weights hash, in
        the order of these calls.
        """
        if by_value and array.size <= _SMALL:
            return [*header, array.tolist()]
        self._weights.update(repr(header).encode())
        self._weights.update(_content(array))
        return header

    def weights_hash(self) -> str:
        """16 hex digits."""
        return self._weights.hexdigest()[:16]

    def hashes(self) -> tuple[str, str]:
        """Structure hash of what was added, and weights hash, 16 hex digits each."""
        return digest(self._structure), self.weights_hash()


def _content(array: np.ndarray) -> bytes | memoryview:
    if array.dtype == object:  # strings
        return repr(array.tolist()).encode()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
