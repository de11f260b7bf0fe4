"""How fast is a library, and how fast are other runtimes in the same minutes on the same machine?

The runtimes take turns: a round is one repeat of each, and each round starts with another one. So a
machine that slows down, or a neighbour that wakes up, strikes all of them alike.

Turns alone are not fair. After a run, threads spin and wait for the next one: TVM's for 147 ms, ONNX
Runtime's for 40, OpenVINO's for 1, and who follows shares its cores with them. To forbid the spinning
would slow down the very runtimes that profit from it in use. So before each turn the bench *rests*
until the process has used next to no CPU time for two windows of 20 ms. But after a rest the first
call is slow: caches are cold, and the kernel may wake both threads on one CPU. So each turn *warms up*
with calls that are not timed. Medians in ms of 15 turns of one call, two runs on two cores with nothing
else on them:

=====================  ===========  ============  ==========
..                     TVM          ONNX Runtime  OpenVINO
=====================  ===========  ============  ==========
alone                  10.1         5.0           5.0
turns                  19.1 - 22.4  5.2           10.1
turns, rest            10.4 - 11.7  7.7 - 10.3    6.4 - 6.6
turns, warm-up         10.1 - 12.4  5.1 - 5.3     8.0 - 8.4
turns, rest, warm-up   10.4 - 11.8  5.1 - 5.2     5.2
=====================  ===========  ============  ==========

Libraries of tvmtune's share TVM's threads. Where they are alone there is nothing to rest from, and one
call before each turn brings their weights to the caches.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tvmtune import system
from tvmtune.accuracy import relative_error
from tvmtune.deploy import metadata
from tvmtune.deploy.modelled import Parts
from tvmtune.deploy.modelled import parts as modelled
from tvmtune.deploy.neighbours import Neighbours
from tvmtune.deploy.timing import WARM_UP, calls_per_repeat, sample, warm_up
from tvmtune.deploy.verify import CheckResult
from tvmtune.errors import TvmtuneError
from tvmtune.types import batch_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tvmtune.deploy.library import Library
    from tvmtune.deploy.peers import Peer
    from tvmtune.types import JSON, Network

LEAST = 3
"""Repeats that there are however long they take."""
TABLE = 12.0
"""Seconds for a table whose repeats nobody has counted: some boards take seconds for a call."""
OWN = "tvmtune"
"""Name of the library among the runtimes."""

_CROWDED = 0.1
"""Share of all CPUs used by other processes from which a note says so."""
_UNSTEADY = 0.2
"""Standard deviation over median from which a note says so."""


class _Runtime(Protocol):
    def invoke(self, count: int = 1) -> float: ...

    def device_seconds(self, count: int) -> float | None: ...


@dataclass
class Run:
    """One runtime's times and what they are of."""

    runtime: str
    version: str
    threads: int
    number: int
    """Calls per repeat."""
    batch: int
    """Items per call."""
    seconds: list[float] = field(default_factory=list)
    """Seconds per call, one value per repeat."""
    device_seconds: list[float] = field(default_factory=list)
    """The same by the clock of the GPU; none where that is not told."""
    ratio: float = 1.0
    """Its median over that of the library: 2 means that the library is twice as fast."""
    error: float | None = None
    """max|y - ref| / max|ref| of the library's outputs, with this runtime's as the reference."""
    check: CheckResult | None = None
    device: str = "cpu"
    """Where it computes, by TVM's names."""

    @property
    def median_ms(self) -> float:
        return 1e3 * statistics.median(self.seconds)

    @property
    def mean_ms(self) -> float:
        return 1e3 * statistics.fmean(self.seconds)

    @property
    def std_ms(self) -> float:
        """Standard deviation of the sample; 0 for a single repeat."""
        return 1e3 * statistics.stdev(self.seconds) if len(self.seconds) > 1 else 0.0

    @property
    def p95_ms(self) -> float:
        return 1e3 * float(np.percentile(self.seconds, 95))

    @property
    def min_ms(self) -> float:
        return 1e3 * min(self.seconds)

    @property
    def device_ms(self) -> float | None:
        """The median by the clock of the GPU; None where that is not told."""
        return 1e3 * statistics.median(self.device_seconds) if self.device_seconds else None

    @property
    def throughput(self) -> float:
        """Items per second at the median."""
        return 1e3 * self.batch / self.median_ms

    def to_json(self) -> JSON:
        result: JSON = {
            "runtime": self.runtime,
            "version": self.version,
            "threads": self.threads,
            "device": self.device,
            "median_ms": self.median_ms,
            "mean_ms": self.mean_ms,
            "std_ms": self.std_ms,
            "p95_ms": self.p95_ms,
            "min_ms": self.min_ms,
            "device_ms": self.device_ms,
            "throughput": self.throughput,
            "repeats": len(self.seconds),
            "number": self.number,
            "ratio": self.ratio,
            "error": self.error if self.error is None or np.isfinite(self.error) else None,
        }
        if self.check is not None:
            result["check"] = self.check.to_json()
        return result


@dataclass
class BenchResult:
    """The library's run first, then the peers' in the order in which they were named."""

    runs: list[Run]
    network: JSON
    device: JSON
    host: JSON
    board: JSON | None = None
    """What the board says of itself that it was measured on; None on this machine."""
    notes: list[str] = field(default_factory=list)
    """What a reader of the figures should know: peers left out, unsteady times."""
    modelled: Parts | None = None
    """Where an accelerator is simulated: where the time goes, without the simulation's."""

    def to_json(self) -> JSON:
        return {
            "runs": [run.to_json() for run in self.runs],
            "network": self.network,
            "device": self.device,
            "host": self.host,
            "notes": self.notes,
            **({} if self.board is None else {"board": self.board}),
            **({} if self.modelled is None else {"modelled": self.modelled.to_json()}),
        }


def bench(
    library: Library,
    *,
    inputs: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
    number: int = 1,
    repeat: int = 30,
    min_repeat_ms: float = 0,
    seconds: float = inf,
    peers: Sequence[Peer] = (),
    network: Network | None = None,
    on_round: Callable[[int], None] | None = None,
) -> BenchResult:
    """Time the library and, in turns with it, its peers.

    ``inputs``: None for random ones that grow from ``seed``. ``number``, ``min_repeat_ms``: a
    repeat is that many calls, or more until it lasts so long. After ``seconds`` there are no more
    repeats than :data:`LEAST`. ``network``: what the library was
    compiled from; None to load it again from where the metadata say, for peers only. ``on_round``
    is told the number of rounds done. A peer that cannot take part is left out, with a note.
    """
    if inputs is None:
        inputs = library.random_inputs(seed)
    library.set_inputs(inputs)
    batch = batch_of(library.metadata["network"]["source"], library.inputs)
    own_version = system.version_of("tvmtune") or ""
    runs = [Run(OWN, own_version, library.threads, number, batch, device=library.runtime)]
    runtimes: list[_Runtime] = [library]
    notes: list[str] = []
    taking_part = _ready(peers, library, network, inputs, notes)
    for peer in taking_part:
        threads = library.threads if peer.parallel else 1
        runs.append(Run(peer.name, peer.version, threads, number, batch, device=peer.device))
        runtimes.append(peer)

    neighbours = Neighbours() if library.session.board is None else None
    rest = library.session.rest
    foreign = any(peer.foreign for peer in taking_part)
    _take_turns(runs, runtimes, rest, foreign, number, repeat, min_repeat_ms, seconds, on_round)
    taken = neighbours.share() if neighbours is not None else None
    _ask_devices(runs, runtimes)
    for run, peer in zip(runs[1:], taking_part, strict=True):
        run.ratio = run.median_ms / runs[0].median_ms
        run.error = _disagreement(library.session.outputs(), peer.outputs())
    notes += _doubts(runs, taken)
    board = library.session.board
    parts: Parts | None = None
    if library.modelled is not None:
        note = "the accelerator is simulated, and these times are the simulation's. Modelled: "
        # libraries of an older version do not say what is simulated
        if board is None and all("function" in each for each in library.metadata["modelled"]):
            parts = modelled(library.metadata["modelled"], library.session.profile(LEAST))
            note += str(parts)
        else:
            note += f"its part takes {1e3 * library.modelled:.3f} ms"
        notes.append(note)
    return BenchResult(
        runs,
        library.metadata["network"],
        library.metadata["device"],
        system.fingerprint(),
        None if board is None else {"key": board.key, **(board.described or {})},
        notes,
        parts,
    )


def _take_turns(
    runs: list[Run],
    runtimes: list[_Runtime],
    rest: Callable[[], None],
    foreign: bool,
    number: int,
    repeat: int,
    min_repeat_ms: float,
    seconds: float,
    on_round: Callable[[int], None] | None,
) -> None:
    end = time.monotonic() + seconds
    alone = len(runs) == 1  # and as warm as it will get
    for run, runtime in zip(runs, runtimes, strict=True):
        rest()
        warm_up(runtime.invoke)
        run.number = calls_per_repeat(runtime.invoke, number, min_repeat_ms)
    for done in range(repeat):
        for index in range(len(runs)):
            turn = (done + index) % len(runs)
            run, runtime = runs[turn], runtimes[turn]
            if foreign:
                rest()
            if not alone:
                warm_up(runtime.invoke, WARM_UP if foreign else 0.0)
            run.seconds.append(sample(runtime.invoke, run.number))
        if on_round is not None:
            on_round(done + 1)
        if done + 1 >= LEAST and time.monotonic() > end:
            break


def _ask_devices(runs: list[Run], runtimes: list[_Runtime]) -> None:
    """Time all that compute on a GPU, and can tell, once more by its own clock, in turns."""
    telling = [pair for pair in zip(runs, runtimes, strict=True) if pair[0].device != "cpu"]
    for _ in range(LEAST):
        told = [(run, runtime, runtime.device_seconds(run.number)) for run, runtime in telling]
        telling = [(run, runtime) for run, runtime, seconds in told if seconds is not None]
        for run, _, seconds in told:
            run.device_seconds += [] if seconds is None else [seconds]


def _ready(
    peers: Sequence[Peer],
    library: Library,
    network: Network | None,
    inputs: Mapping[str, np.ndarray],
    notes: list[str],
) -> list[Peer]:
    """Those of the peers that have loaded the network and run it once; a note for each other."""
    ready: list[Peer] = []
    checked: Network | None = None
    for peer in peers:
        reason = peer.available()
        if reason is None:
            try:
                if checked is None:
                    checked = _same_network(library, network)
                elsewhere = peer.move(library.runtime) if library.runtime != peer.device else None
                peer.graphs = metadata.captures(library.metadata)
                if peer.graphs and not elsewhere and not peer.captures:
                    elsewhere = f"{peer.name} uses no CUDA graphs, and the library does"
                peer.load(checked, library.threads)
                peer.run(inputs)
                if elsewhere:
                    notes.append(elsewhere)
            except TvmtuneError as exc:
                reason = f"{peer.name} is left out: {exc}"
            except Exception as exc:  # each runtime has its own classes
                text = " ".join(str(exc).split())[:300]
                reason = f"{peer.name} is left out, it cannot run this network: {text}"
        if reason is None:
            ready.append(peer)
        else:
            notes.append(reason)
    return ready


def _same_network(library: Library, network: Network | None) -> Network:
    """What was compiled. Raises TvmtuneError if it is gone, or not that any more."""
    from tvmtune import networks

    wanted = library.metadata["network"]
    if network is None:
        network = networks.reload(wanted["source"])
    for part in ("structure", "weights"):
        if getattr(network, f"{part}_hash") != wanted[f"{part}_hash"]:
            raise TvmtuneError(
                f"the {part} of {wanted['name']} changed since the library was compiled"
            )
    return network


def _doubts(runs: Sequence[Run], taken: float | None) -> list[str]:
    """Why the times may not be what they would be on a machine at rest."""
    if taken is not None and taken > _CROWDED:
        return [
            f"other processes used {100 * taken:.0f}% of the CPUs meanwhile: the times are too long"
        ]
    return [
        f"the times of {run.runtime} vary by {100 * run.std_ms / run.median_ms:.0f}%"
        for run in runs
        if run.std_ms > _UNSTEADY * run.median_ms
    ]


def _disagreement(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
    """The worst error over all outputs; infinite if they are not even of the same shapes."""
    if [array.shape for array in ours] != [array.shape for array in theirs]:
        return float("inf")
    return max(
        (relative_error(got, want) for got, want in zip(ours, theirs, strict=True)), default=0.0
    )
