"""Which library is handed over: the tuned one, unless the untuned one is quicker or it is wrong."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from tvmtune.accuracy import relative_error, tolerance
from tvmtune.deploy.atomic import replacing
from tvmtune.deploy.bench import BenchResult, bench
from tvmtune.deploy.compile import Compiled
from tvmtune.deploy.library import Library
from tvmtune.deploy.verify import CheckResult, run_check
from tvmtune.errors import TvmtuneError

if TYPE_CHECKING:
    import numpy as np

    from tvmtune.deploy.peers import Peer
    from tvmtune.types import Network

ROUNDS = 4
"""Turns that the tuned and the untuned library take before one of them is chosen."""
DRAW = 0.98
"""The untuned library has to be quicker than this part of the tuned one's time to be chosen."""


@dataclass(frozen=True)
class Shipped:
    """What was handed over, and why."""

    compiled: Compiled
    bench: BenchResult
    verdict: CheckResult
    untuned_ms: float
    """Median of the untuned library in the same minutes."""
    remark: str | None = None
    """Why it is not the tuned one, if so."""
    given_error: float | None = None
    """max|y - ref| / max|ref| for the user's own inputs, if there were any."""


def ship(
    tuned: Compiled,
    untuned: Compiled,
    network: Network,
    output: Path,
    *,
    peers: Sequence[Peer] = (),
    inputs: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
) -> Shipped:
    """Check both libraries, time both in turns, and copy the better one to ``output``.

    ``inputs`` are checked and timed, too, instead of random ones. Raises :class:`TvmtuneError` if the
    outputs of both are wrong, or those for ``inputs``; nothing is written then.
    """
    first, second = Library.open(tuned.path), Library.open(untuned.path)
    verdict = run_check(first, tuned.metadata["check"])
    own, other = _in_turns(first, second)
    best, library, remark = tuned, first, None
    if not verdict.passed or other < DRAW * own:
        remark = f"the tuned library is {'slower' if verdict.passed else str(verdict)}"
        verdict = run_check(second, untuned.metadata["check"])
        best, library = untuned, second
    if not verdict.passed:
        raise TvmtuneError(f"the outputs are {verdict}, tuned and untuned: nothing is written")
    given = None
    if inputs is not None:
        pairs = zip(library.run(inputs), network.reference(inputs), strict=True)
        errors = [(relative_error(got, want), want.dtype.name) for got, want in pairs]
        given = max((error for error, _ in errors), default=0.0)
        if not all(error <= tolerance(dtype, network=True) for error, dtype in errors):
            raise TvmtuneError(
                "the outputs for the given inputs are wrong (max|y - ref| / max|ref| = "
                f"{given:.1e}): nothing is written"
            )
    result = bench(library, inputs=inputs, seed=seed, peers=peers, network=network)
    result.runs[0].check = verdict
    with replacing(output) as fresh:
        shutil.copyfile(best.path, fresh)
    return Shipped(replace(best, path=output), result, verdict, 1e3 * other, remark, given)


def _in_turns(first: Library, second: Library) -> tuple[float, float]:
    """Median seconds of each."""
    from tvmtune.networks.inputs import random_inputs

    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for library, seconds in zip((first, second), times, strict=True):
            seconds += library.time(random_inputs(library.inputs, 0), repeat=5)
    return median(times[0]), median(times[1])
