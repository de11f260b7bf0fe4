"""The factors of discrete Fourier transforms, by which importers multiply."""

from __future__ import annotations

import numpy as np

LARGEST = 1 << 28
"""Bytes of a matrix in float32, at most."""


def factors(
    samples: int, results: int, points: int, *, parts: int, inverse: bool = False
) -> np.ndarray:
    """The (samples, results) factors of the first samples and results of a transform of so many points,
    in complex128 and not scaled.

    Raises ValueError if the matrix of their real and imaginary parts, for samples of one or two
    ``parts``, were larger than :data:`LARGEST`.
    """
    if 4 * samples * parts * results * 2 > LARGEST:
        raise ValueError(f"a transform of {points} points is too large")
    places = np.outer(np.arange(samples), np.arange(results)) % points
    found = np.exp((2j if inverse else -2j) * np.pi * places / points)
    # Exact zeros keep results real that are so by definition, and their angles.
    found.real[4 * places % (2 * points) == points] = 0
    found.imag[2 * places % points == 0] = 0
    return found
