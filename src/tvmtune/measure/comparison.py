"""Compare a kernel with its reference, on the values of :mod:`tvmtune.measure.check_data`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmtune.accuracy import integer_error, relative_error
from tvmtune.measure import check_data
from tvmtune.passes.kernel_arguments import KernelArgument
from tvmtune.types import TensorSpec

LEVEL = "level"
"""Name of the level in a file of a reference's results."""

Values = list[np.ndarray]
"""One array for each argument."""
Run = Callable[[Values], Values]
"""Runs a kernel: given the values of all arguments, returns their values after the call."""


def worst_error(
    args: Sequence[TensorSpec],
    run: Run,
    expected: Callable[[int], tuple[Values, Values]],
    calls: int = 1,
) -> float:
    """The largest error of all arguments after ``run``, for each set of values.

    ``expected(which)`` returns the values of a set before the call, and after that of the reference.
    ``calls``: how often it runs on the first set; each time all values are as before the first call.
    The error is max|y - ref| / max|ref|; that of integers that are computed exactly is max|y - ref|,
    which is at least 1 and so beyond every tolerance.
    """
    worst = 0.0
    for which in check_data.SETS:
        before, after = expected(which)
        known = after
        for _ in range(calls if which == check_data.SETS[0] else 1):
            found = run(before)
            for spec, got, want, same in zip(args, found, after, known, strict=True):
                if not _same_bits(got, same):
                    worst = max(worst, _error(spec, got, want))
            known = found
        if worst == math.inf:
            break
    return worst


def stored_reference(
    args: Sequence[TensorSpec], which: int, run: Run, artifact: Path
) -> tuple[Values, Values]:
    """All values of a set before the call, and after that of the reference ``run``.

    The reference is slow and is needed again for the next candidate, so what it changed is stored
    beside its ``artifact``.
    """
    path = artifact.with_name(f"{artifact.stem}-{which}.npz")
    if not path.exists():
        _write(path, _reference(args, which, run))
    with np.load(path) as stored:
        before = check_data.draw(args, which, int(stored[LEVEL]))
        # The file keeps the bits of bfloat16, but not the type.
        after = [stored.get(str(n), old).view(old.dtype) for n, old in enumerate(before)]
    return before, after


def _reference(args: Sequence[TensorSpec], which: int, run: Run) -> dict[str, Any]:
    """The level of the data that shows errors best, and the arguments that the reference changed, by
    number."""
    best, chosen = -1.0, {}
    for level in check_data.LEVELS:
        before = check_data.draw(args, which, level)
        changed = {
            str(n): new
            for n, (old, new) in enumerate(zip(before, run(before), strict=True))
            if not np.array_equal(old, new)  # NaN differs from itself: an unwritten output counts
        }
        shown = check_data.shows_errors([*changed.values()])
        if shown > best:
            best, chosen = shown, {LEVEL: level, **changed}
        if shown >= check_data.TELLING:
            break
    return chosen


def _write(path: Path, arrays: dict[str, Any]) -> None:
    """Atomically: other checks may read it now, and a full disk must not leave half of it."""
    fresh = path.with_name(f"{path.stem}-{os.getpid()}.tmp")
    try:
        with fresh.open("wb") as file:
            np.savez(file, **arrays)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def _error(spec: TensorSpec, got: np.ndarray, want: np.ndarray) -> float:
    exact = isinstance(spec, KernelArgument) and spec.exact
    return (integer_error if exact else relative_error)(got, want)


def _same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    """Nearly all arguments are inputs, which stay as they were; their errors need not be computed."""
    return bool(np.array_equal(left.reshape(-1).view(np.uint8), right.reshape(-1).view(np.uint8)))
