"""Choose the library to ship: the tuned one, unless it is wrong or another is faster."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from tvmtune.atomic_write import replacing
from tvmtune.bench.baselines import AsWritten, NumPy, Untuned
from tvmtune.bench.bench import bench
from tvmtune.bench.peers.remote_peer import RemotePeer
from tvmtune.bench.results import BenchResult
from tvmtune.bench.verify import CheckResult, allowed_errors, run_check
from tvmtune.compiling.compile import Compiled, compile_library
from tvmtune.errors import TvmtuneError
from tvmtune.machine import scratch
from tvmtune.remote.client.lease import BoardLease
from tvmtune.runtime.library import Library
from tvmtune.types import JSON, Device, Trial, is_operator

if TYPE_CHECKING:
    import numpy as np

    from tvmtune.bench.peers import Peer
    from tvmtune.compiling.accuracy_fallbacks import Attempt
    from tvmtune.tasks.plan import Plan
    from tvmtune.types import Network

TUNED = "tuned"
ROUNDS = 4
"""Rounds in which the libraries take turns before one of them is chosen."""
LONG_CALL = 0.2
"""Seconds per call from which on a round has one call instead of :data:`REPEAT`."""
REPEAT = 5
MAX_TIME_RATIO = 0.98
"""Another library is chosen only if it takes less than this part of the tuned one's time."""


@dataclass(frozen=True)
class Shipped:
    """What was shipped, and why."""

    compiled: Compiled
    bench: BenchResult
    verdict: CheckResult
    kind: str = TUNED
    """``tuned``, ``untuned`` (default schedules) or ``as written`` (no schedule)."""
    remark: str | None = None
    """If it is not the tuned one, the reason."""
    given_error: float | None = None
    """The largest error of an output for the user's own inputs, if there were any; see
    :class:`tvmtune.bench.verify.OutputCheck`."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """What the choice rests on: the median latency of each library whose outputs are right, by kind;
    the modelled latency where the accelerator is simulated."""

    @property
    def modelled(self) -> bool:
        return "modelled" in self.compiled.metadata

    @property
    def untuned_ms(self) -> float:
        """Median of the untuned library in the benchmark table."""
        return next(run.median_ms for run in self.bench.runs if run.runtime == Untuned.name)

    def __str__(self) -> str:
        """The latency of the library that was written, after that of the one it was chosen over."""
        other = Untuned.name if self.kind == TUNED else TUNED
        before = after = ""
        if self.kind == TUNED and not self.modelled:  # both are in the table
            before, ms = f"{other} {self.untuned_ms:.3f} ms, ", self.bench.runs[0].median_ms
            if ms >= self.untuned_ms:
                longer = 1 / MAX_TIME_RATIO - 1
                after = f" (in turns before, it took at most {longer:.0%} longer)"
        else:
            ms = 1e3 * self.seconds[self.kind]
            if other in self.seconds:
                before = f"{other} {1e3 * self.seconds[other]:.3f} ms, "
        return f"{before}{self.kind} (written) {ms:.3f} ms{after}"


@dataclass(frozen=True)
class _CandidateLibrary:
    """A library that may be shipped, opened and checked."""

    kind: str
    compiled: Compiled
    library: Library
    verdict: CheckResult


def ship(
    plan: Plan,
    attempts: Sequence[Attempt],
    untuned: Compiled,
    output: Path,
    *,
    peers: Sequence[Peer] = (),
    inputs: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
    repeat: int | None = None,
    wait: float | None = None,
    say: Callable[[str], None] = lambda message: None,
) -> Shipped:
    """Compile the tuned library, check and time it beside the others, and copy the best to ``output``.

    The tuned library is that of the first of ``attempts`` whose outputs are right; later ones are not
    compiled. An operator also competes as it was written, without any schedule. ``inputs`` are checked
    and timed in place of random ones, ``repeat`` times (:func:`tvmtune.bench.bench.bench`). Libraries
    for a board are checked and timed on one, in turns with the ``peers`` installed there; ``wait`` is
    how many seconds to wait for a board, and ``say`` receives messages about it. Raises
    :class:`TvmtuneError` if all outputs are wrong, or those for ``inputs``, or if there is no board;
    nothing is written then.
    """
    check = untuned.metadata["check"]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch.folder(scratch.WORK))
        # Compiling takes seconds: what is needed in any case comes before a board is leased.
        compiled = _compile_attempt(plan, attempts[0], folder, check)
        written = _compile_as_written(plan, folder, check)
        board = None
        if remote := untuned.metadata["device"].get("remote"):
            board = stack.enter_context(
                BoardLease(remote, wait=wait, report=say, known=True, identity=plan.device.board)
            )
            peers = [RemotePeer(peer.name, board) for peer in peers]

        tuned = _open_and_check(TUNED, compiled, board)
        for attempt in attempts[1:]:
            if tuned.verdict.passed:
                break
            compiled = _compile_attempt(plan, attempt, folder, check)
            tuned = _open_and_check(TUNED, compiled, board)
        candidates = [tuned, _open_and_check(Untuned.name, untuned, board)]
        if written is not None:
            candidates.append(_open_and_check(AsWritten.name, written, board))
        best, seconds = _choose(candidates)
        given_error = None
        if inputs is not None:
            given_error = _check_given(best.library, plan.network, inputs)
        baselines: list[Peer] = [Untuned(candidates[1].library)]
        if written is not None:
            baselines.append(AsWritten(candidates[2].library))
        if is_operator(plan.network) and board is None:
            baselines.append(NumPy())
        table = bench(
            best.library,
            inputs=inputs,
            seed=seed,
            repeat=repeat,
            peers=[*baselines, *peers],
            network=plan.network,
        )
        table.runs[0].check = best.verdict
        with replacing(output) as fresh:
            shutil.copyfile(best.compiled.path, fresh)
    remark = None
    if best is not tuned:
        why = "slower" if tuned.verdict.passed else str(tuned.verdict)
        remark = f"the tuned library is {why}: the {best.kind} one is written"
    shipped = replace(best.compiled, path=output)
    return Shipped(shipped, table, best.verdict, best.kind, remark, given_error, seconds)


def check_on_board(
    compiled: Compiled,
    device: Device,
    wait: float | None = None,
    say: Callable[[str], None] = lambda message: None,
) -> None:
    """Run a library on a board of ``device`` and compare its outputs with its check.

    Waits up to ``wait`` seconds for a board. Raises :class:`TvmtuneError` if the outputs are wrong, or
    if there is no board.
    """
    assert device.remote is not None
    with BoardLease(device.remote, wait=wait, report=say, identity=device.board) as board:
        verdict = _open_and_check(Untuned.name, compiled, board).verdict
    if not verdict.passed:
        raise TvmtuneError(f"on the board '{board.key}' the output is {verdict}")


def _compile_attempt(plan: Plan, attempt: Attempt, folder: Path, check: JSON) -> Compiled:
    # Each has a file name of its own, because the loader takes equal names for the same library.
    path = folder / f"tuned-{attempt.fallbacks}.so"
    compiled = compile_library(
        plan, attempt.records, path, check=check, exact_defaults=attempt.exact_defaults
    )
    return replace(compiled, fallbacks=attempt.fallbacks)


def _compile_as_written(plan: Plan, folder: Path, check: JSON) -> Compiled | None:
    """An operator without any schedule; None for networks, and for GPUs, where every loop nest needs
    threads."""
    if not is_operator(plan.network) or plan.device.runtime != "cpu":
        return None
    task = plan.tasks[0]
    empty = Trial(task.key, task.implementations[0].name, task.key, candidate="", trace=[[], []])
    return compile_library(plan, {task.key: empty}, folder / "as_written.so", check=check)


def _open_and_check(kind: str, compiled: Compiled, board: BoardLease | None) -> _CandidateLibrary:
    library = Library.open(compiled.path, board=board)
    return _CandidateLibrary(
        kind, compiled, library, run_check(library, compiled.metadata["check"])
    )


def _choose(
    candidates: Sequence[_CandidateLibrary],
) -> tuple[_CandidateLibrary, Mapping[str, float]]:
    """The best of those whose outputs are right, and their latencies in seconds by kind; the first of
    ``candidates`` is the tuned one."""
    right = [candidate for candidate in candidates if candidate.verdict.passed]
    if not right:
        raise TvmtuneError(
            f"the output of the tuned library is {candidates[0].verdict}, and the untuned one is wrong "
            "too: nothing is written. Please report it with the log"
        )
    seconds = _time_in_turns({candidate.kind: candidate.library for candidate in right})

    def cost(candidate: _CandidateLibrary) -> float:
        return seconds[candidate.kind] * (MAX_TIME_RATIO if candidate.kind == TUNED else 1.0)

    return min(right, key=cost), seconds


def _check_given(library: Library, network: Network, inputs: Mapping[str, np.ndarray]) -> float:
    """The error for the user's own inputs; raises :class:`TvmtuneError` if it is too large."""
    worst = 0.0
    pairs = zip(library.run(inputs), network.reference(inputs), strict=True)
    for (got, want), allowed in zip(pairs, allowed_errors(network), strict=True):
        error = allowed.measure(got, want)
        if not error <= allowed.error:
            raise TvmtuneError(
                f"the outputs for the given inputs are wrong ({allowed.unit} = {error:.1e}): "
                "nothing is written"
            )
        worst = max(worst, error)
    return worst


def _time_in_turns(libraries: Mapping[str, Library]) -> Mapping[str, float]:
    """Median seconds of each library, or the modelled ones if the accelerator is simulated for all."""
    estimates = {kind: library.modelled for kind, library in libraries.items()}
    modelled = {kind: seconds for kind, seconds in estimates.items() if seconds is not None}
    if len(modelled) == len(libraries):
        return modelled
    times: dict[str, list[float]] = {kind: [] for kind in libraries}
    for _ in range(ROUNDS):
        for kind, library in libraries.items():
            repeat = 1 if max(times[kind], default=0.0) > LONG_CALL else REPEAT
            times[kind] += library.time(library.random_inputs(), repeat=repeat)
    return {kind: median(seconds) for kind, seconds in times.items()}
