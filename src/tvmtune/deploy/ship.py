"""Which library is handed over: the tuned one, unless another is quicker or it is wrong."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from tvmtune.accuracy import relative_error
from tvmtune.deploy.atomic import replacing
from tvmtune.deploy.baselines import AsWritten, NumPy, Untuned
from tvmtune.deploy.bench import TABLE, BenchResult, bench
from tvmtune.deploy.compile import Compiled
from tvmtune.deploy.library import Library
from tvmtune.deploy.remote import Borrowed, RemotePeer
from tvmtune.deploy.verify import CheckResult, allowed_error, run_check
from tvmtune.errors import TvmtuneError
from tvmtune.types import is_operator

if TYPE_CHECKING:
    import numpy as np

    from tvmtune.deploy.peers import Peer
    from tvmtune.types import Network

ROUNDS = 4
"""Turns that the libraries take before one of them is chosen."""
LONG = 0.2
"""Seconds of a call from which on it is timed once a turn, and not :data:`REPEAT` times."""
REPEAT = 5
DRAW = 0.98
"""Another library has to be quicker than this part of the tuned one's time to be chosen."""


@dataclass(frozen=True)
class Shipped:
    """What was handed over, and why."""

    compiled: Compiled
    bench: BenchResult
    verdict: CheckResult
    kind: str = "tuned"
    """``tuned``, ``untuned`` (default schedules) or ``as written`` (no schedule)."""
    remark: str | None = None
    """Why it is not the tuned one, if so."""
    given_error: float | None = None
    """max|y - ref| / max|ref| for the user's own inputs, if there were any."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By which it was chosen: of each library whose outputs are right, by its kind, the median of some
    turns; or where an accelerator is simulated, what that takes by the model."""

    @property
    def modelled(self) -> bool:
        return "modelled" in self.compiled.metadata

    @property
    def untuned_ms(self) -> float:
        """Median of the untuned library in the same turns."""
        return next(run.median_ms for run in self.bench.runs if run.runtime == Untuned.name)

    def __str__(self) -> str:
        """The time of the one that is shipped, behind that of the one that it was chosen over."""
        other = Untuned.name if self.kind == "tuned" else "tuned"
        before = ""
        if self.kind == "tuned" and not self.modelled:  # both stand in the table
            before, ms = f"{other} {self.untuned_ms:.3f} ms, ", self.bench.runs[0].median_ms
        else:
            ms = 1e3 * self.seconds[self.kind]
            if other in self.seconds:
                before = f"{other} {1e3 * self.seconds[other]:.3f} ms, "
        return f"{before}{self.kind} (shipped) {ms:.3f} ms"


def ship(
    attempts: Iterable[Compiled],
    untuned: Compiled,
    network: Network,
    output: Path,
    *,
    written: Compiled | None = None,
    peers: Sequence[Peer] = (),
    inputs: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
    wait: float | None = None,
    say: Callable[[str], None] = lambda message: None,
) -> Shipped:
    """Check the libraries, time them in turns, and copy the best one to ``output``.

    The tuned one is the first of ``attempts`` that is right. ``written`` is one without any schedule.
    ``inputs`` are checked and timed, too, instead of random ones. Libraries for a board are checked
    and timed on one, in turns with those of the ``peers`` that it has installed; one may take ``wait``
    seconds to come (back), of which ``say`` hears. Raises
    :class:`TvmtuneError` if the outputs of all are wrong, or those for ``inputs``, or if there is no
    board; nothing is written then.
    """
    attempts = iter(attempts)
    attempts = itertools.chain([next(attempts)], attempts)  # made before a board is taken
    with contextlib.ExitStack() as stack:
        board = None
        if remote := untuned.metadata["device"].get("remote"):
            board = stack.enter_context(Borrowed(remote, wait=wait, say=say, known=True))
            peers = [RemotePeer(peer.name, board) for peer in peers]
        return _ship(attempts, untuned, written, network, output, board, peers, inputs, seed)


def _ship(
    attempts: Iterable[Compiled],
    untuned: Compiled,
    written: Compiled | None,
    network: Network,
    output: Path,
    board: Borrowed | None,
    peers: Sequence[Peer],
    inputs: Mapping[str, np.ndarray] | None,
    seed: int,
) -> Shipped:
    made: dict[str, Compiled] = {}
    libraries: dict[str, Library] = {}
    verdicts: dict[str, CheckResult] = {}

    def take(kind: str, compiled: Compiled) -> bool:
        made[kind] = compiled
        libraries[kind] = Library.open(compiled.path, board=board)
        verdicts[kind] = run_check(libraries[kind], compiled.metadata["check"])
        return verdicts[kind].passed

    any(take("tuned", compiled) for compiled in attempts)  # until one is right
    take(Untuned.name, untuned)
    if written is not None:
        take(AsWritten.name, written)
    right = [kind for kind in libraries if verdicts[kind].passed]
    if not right:
        raise TvmtuneError(
            f"the outputs are {verdicts['tuned']}, tuned and untuned: nothing is written"
        )
    seconds = _in_turns({kind: libraries[kind] for kind in right})
    kind = min(right, key=lambda k: seconds[k] * (DRAW if k == "tuned" else 1.0))
    remark = None
    if kind != "tuned":
        why = "slower" if verdicts["tuned"].passed else str(verdicts["tuned"])
        remark = f"the tuned library is {why}: the {kind} one is shipped"
    library = libraries[kind]
    given = None
    if inputs is not None:
        given = _check_given(library, network, inputs)
    beside: list[Peer] = [Untuned(libraries[Untuned.name])]
    if written is not None:
        beside.append(AsWritten(libraries[AsWritten.name]))
    if is_operator(network) and board is None:
        beside.append(NumPy())
    result = bench(
        library,
        inputs=inputs,
        seed=seed,
        seconds=TABLE,
        peers=[*beside, *peers],
        network=network,
    )
    result.runs[0].check = verdicts[kind]
    with replacing(output) as fresh:
        shutil.copyfile(made[kind].path, fresh)
    best = replace(made[kind], path=output)
    return Shipped(best, result, verdicts[kind], kind, remark, given, seconds)


def check_on_board(
    compiled: Compiled,
    remote: str,
    wait: float | None = None,
    say: Callable[[str], None] = lambda message: None,
) -> None:
    """Run a library on a board of ``KEY`` or ``KEY@HOST:PORT``, for which it waits up to ``wait``
    seconds, and compare its outputs with its check.

    Raises :class:`TvmtuneError` if they are wrong, or if there is no board.
    """
    with Borrowed(remote, wait=wait, say=say) as board:
        library = Library.open(compiled.path, board=board)
        verdict = run_check(library, compiled.metadata["check"])
    if not verdict.passed:
        raise TvmtuneError(f"on the board '{board.key}' the output is {verdict}")


def _check_given(library: Library, network: Network, inputs: Mapping[str, np.ndarray]) -> float:
    """The error for the user's own inputs; :class:`TvmtuneError` if it is too large."""
    worst = 0.0
    for got, want in zip(library.run(inputs), network.reference(inputs), strict=True):
        error = relative_error(got, want)
        if not error <= allowed_error(network, want.dtype.name):
            raise TvmtuneError(
                "the outputs for the given inputs are wrong (max|y - ref| / max|ref| = "
                f"{error:.1e}): nothing is written"
            )
        worst = max(worst, error)
    return worst


def _in_turns(libraries: Mapping[str, Library]) -> dict[str, float]:
    """Median seconds of each, or modelled ones of those whose accelerator is simulated."""
    modelled = {kind: library.modelled for kind, library in libraries.items()}
    told = {kind: seconds for kind, seconds in modelled.items() if seconds is not None}
    if len(told) == len(libraries):
        return told
    times: dict[str, list[float]] = {kind: [] for kind in libraries}
    for _ in range(ROUNDS):
        for kind, library in libraries.items():
            repeat = 1 if max(times[kind], default=0.0) > LONG else REPEAT
            times[kind] += library.time(library.random_inputs(), repeat=repeat)
    return {kind: median(found) for kind, found in times.items()}
