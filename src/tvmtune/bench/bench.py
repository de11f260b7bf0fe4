"""Measure a library and other runtimes side by side, in the same minutes on the same machine.

The runtimes take turns: a round is one repeat of each, and each round starts with another one, so that
a slower machine, or background load, affects all of them alike.

Turns alone are not fair. After a run, threads spin and wait for the next one: TVM's for 147 ms, ONNX
Runtime's for 40, OpenVINO's for 1, and the next runtime shares its cores with them. Forbidding them to
spin would slow down the runtimes that profit from it in practice. So before each turn the bench *rests*
until the process has used almost no CPU time for two windows of 20 ms. But after a rest the first call
is slow: caches are cold, and the operating system may wake both threads on one CPU. So each turn *warms
up* with untimed calls. Medians in ms of 15 turns of one call, two runs on two otherwise idle cores:

=====================  ===========  ============  ==========
..                     TVM          ONNX Runtime  OpenVINO
=====================  ===========  ============  ==========
alone                  10.1         5.0           5.0
turns                  19.1 - 22.4  5.2           10.1
turns, rest            10.4 - 11.7  7.7 - 10.3    6.4 - 6.6
turns, warm-up         10.1 - 12.4  5.1 - 5.3     8.0 - 8.4
turns, rest, warm-up   10.4 - 11.8  5.1 - 5.2     5.2
=====================  ===========  ============  ==========

Libraries of tvmtune share TVM's threads. If only they take part, the bench does not rest, and one call
before each turn loads their weights into the caches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Protocol

from tvmtune.accuracy import relative_error
from tvmtune.bench.baselines import Baseline
from tvmtune.bench.end_to_end import end_to_end
from tvmtune.bench.results import BenchResult, RuntimeResult
from tvmtune.errors import TvmtuneError, one_line
from tvmtune.library import metadata
from tvmtune.machine import fingerprint, package_versions
from tvmtune.machine.background_load import BackgroundLoad
from tvmtune.runtime.library import Library
from tvmtune.runtime.timing import WARM_UP, calls_per_repeat, sample, warm_up
from tvmtune.types import batch_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from tvmtune.bench.peers import Peer
    from tvmtune.types import Network

MIN_REPEATS = 3
"""Repeats that are made even after the time limit."""
REPEATS = 30
"""Repeats by default."""
MOST_SECONDS = 12.0
"""Time limit for the default number of repeats: some boards take seconds per call."""
OWN = "tvmtune"
"""Name of the library among the runtimes."""

_BUSY = 0.1
"""Fraction of all CPUs used by other processes from which a note warns."""
_UNSTEADY = 0.2
"""Standard deviation over median from which a note warns."""


def bench(
    library: Library,
    *,
    inputs: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
    number: int = 1,
    repeat: int | None = None,
    min_repeat_ms: float = 0,
    peers: Sequence[Peer] = (),
    network: Network | None = None,
    on_round: Callable[[int], None] | None = None,
) -> BenchResult:
    """Time the library and, in turns with it, its peers.

    ``inputs``: by default random ones from ``seed``. ``number``, ``min_repeat_ms``: a repeat makes
    that many calls, or more to last that long. ``repeat``: by default :data:`REPEATS`, of which those
    beyond :data:`MIN_REPEATS` are started within :data:`MOST_SECONDS`. ``network``: the network that
    the library was compiled from, for peers only; by default it is loaded again from its source in the
    metadata. ``on_round`` gets the number of rounds done. A peer that cannot take part is skipped, with
    a note.
    """
    if inputs is None:
        inputs = library.random_inputs(seed)
    library.set_inputs(inputs)
    ready, notes = _load_peers(peers, library, network, inputs)
    entries = _entries(library, ready, number)
    runs = [entry.run for entry in entries]

    board = library.session.board
    background_load = BackgroundLoad() if board is None else None
    for entry in entries:
        library.session.rest()
        entry.warm_up()
        entry.run.number = calls_per_repeat(entry.runtime.invoke, number, min_repeat_ms)
    rest = library.session.rest if any(peer.foreign for peer in ready) else None
    seconds = MOST_SECONDS if repeat is None else inf
    _take_turns(entries, rest, repeat or REPEATS, seconds, on_round)
    busy = background_load.share() if background_load is not None else None
    _read_device_clocks(entries)

    notes += _model_accelerators(library, entries)
    for run, peer in zip(runs[1:], ready, strict=True):
        run.ratio = run.latency_ms / runs[0].latency_ms
        run.error = _difference(library.session.outputs(), peer.outputs())
    notes += _warnings(runs, busy)
    return BenchResult(
        runs,
        library.metadata["network"],
        library.metadata["device"],
        fingerprint.fingerprint(),
        None if board is None else {"key": board.key, **(board.described or {})},
        notes,
        busy,
    )


class _Runtime(Protocol):
    def invoke(self, count: int = 1) -> float: ...

    def device_seconds(self, count: int) -> float | None: ...


@dataclass
class _Entry:
    """A runtime that takes part, and its results."""

    run: RuntimeResult
    runtime: _Runtime

    def warm_up(self, seconds: float = WARM_UP) -> None:
        warm_up(self.runtime.invoke, seconds)

    def take_turn(self) -> None:
        self.run.seconds.append(sample(self.runtime.invoke, self.run.number))


def _entries(library: Library, peers: Sequence[Peer], number: int) -> list[_Entry]:
    batch = batch_of(library.metadata["network"]["source"], library.inputs)
    version = package_versions.version_of("tvmtune") or ""
    own = RuntimeResult(OWN, version, library.threads, number, batch, device=library.runtime)
    entries = [_Entry(own, library)]
    for peer in peers:
        threads = library.threads if peer.parallel else 1
        run = RuntimeResult(peer.name, peer.version, threads, number, batch, device=peer.device)
        entries.append(_Entry(run, peer))
    return entries


def _take_turns(
    entries: Sequence[_Entry],
    rest: Callable[[], None] | None,
    repeat: int,
    seconds: float,
    on_round: Callable[[int], None] | None,
) -> None:
    """Time all entries in turns; ``rest`` before each turn, None if only libraries take part."""
    end = time.monotonic() + seconds
    for done in range(repeat):
        first = done % len(entries)
        for entry in [*entries[first:], *entries[:first]]:
            if rest is not None:
                rest()
            if len(entries) > 1:  # a single entry stays warm
                entry.warm_up(0.0 if rest is None else WARM_UP)
            entry.take_turn()
        if on_round is not None:
            on_round(done + 1)
        if done + 1 >= MIN_REPEATS and time.monotonic() > end:
            break


def _read_device_clocks(entries: Sequence[_Entry]) -> None:
    """Time those that run on a GPU again, in turns, by the GPU's clock if it can be read."""
    on_device = [entry for entry in entries if entry.run.device != "cpu"]
    for _ in range(MIN_REPEATS):
        for entry in list(on_device):
            seconds = entry.runtime.device_seconds(entry.run.number)
            if seconds is None:
                on_device.remove(entry)
            else:
                entry.run.device_seconds.append(seconds)


def _load_peers(
    peers: Sequence[Peer],
    library: Library,
    network: Network | None,
    inputs: Mapping[str, np.ndarray],
) -> tuple[list[Peer], list[str]]:
    """The peers that loaded the network and ran it once; notes, with a reason for each other peer."""
    ready: list[Peer] = []
    notes: list[str] = []
    for peer in peers:
        if reason := peer.available():
            notes.append(reason)
            continue
        try:
            network = _same_network(library, network)
            note = _place(peer, library)
            peer.load(network, library.threads)
            peer.run(inputs)
        except TvmtuneError as exc:
            notes.append(f"{peer.name} is skipped: {exc}")
        except Exception as exc:  # each runtime has its own classes
            notes.append(f"{peer.name} is skipped, it cannot run this network: {one_line(exc)}")
        else:
            ready.append(peer)
            notes += [note] if note else []
    return ready, notes


def _place(peer: Peer, library: Library) -> str | None:
    """Have a peer run on the library's device in the library's way; a note if it cannot."""
    note = peer.move(library.runtime) if library.runtime != peer.device else None
    peer.graphs = metadata.uses_cuda_graphs(library.metadata)
    if peer.graphs and not note and not peer.captures:
        note = f"{peer.name} uses no CUDA graphs, and the library does"
    return note


def _same_network(library: Library, network: Network | None) -> Network:
    """The network that was compiled. Raises TvmtuneError if it is gone or has changed."""
    from tvmtune import networks

    compiled = library.metadata["network"]
    if network is None:
        network = networks.reload(compiled["source"])
    for part in ("structure", "weights"):
        if getattr(network, f"{part}_hash") != compiled[f"{part}_hash"]:
            raise TvmtuneError(
                f"the {part} of {compiled['name']} changed since the library was compiled"
            )
    return network


def _model_accelerators(library: Library, entries: Sequence[_Entry]) -> list[str]:
    """Set the end-to-end times of libraries whose accelerator is simulated; returns notes about that of
    ``library``."""
    if library.modelled is None:
        return []
    for entry in entries:
        own = entry.runtime.library if isinstance(entry.runtime, Baseline) else entry.runtime
        programs = own.metadata.get("modelled") if isinstance(own, Library) else None
        # Libraries of older versions do not name the simulating function.
        if programs and library.session.board is None and all("function" in p for p in programs):
            assert isinstance(own, Library)
            entry.run.modelled = end_to_end(programs, own.session.profile(MIN_REPEATS))
    run = entries[0].run
    if run.modelled is None:
        return [
            "the accelerator is simulated, and these times are the simulation's. Modeled: its "
            f"part takes {1e3 * library.modelled:.3f} ms"
        ]
    return [
        f"the accelerator is simulated, which took {run.median_ms:.3f} ms. Modeled: {run.modelled}"
    ]


def _warnings(runs: Sequence[RuntimeResult], busy: float | None) -> list[str]:
    """Reasons why the times may differ from those on an idle machine."""
    if busy is not None and busy > _BUSY:
        return [f"other processes used {100 * busy:.0f}% of the CPUs: the times are too long"]
    return [
        f"the times of {run.runtime} vary by {100 * run.std_ms / run.median_ms:.0f}%"
        for run in runs
        if run.modelled is None and run.std_ms > _UNSTEADY * run.median_ms
    ]


def _difference(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
    """The worst error over all outputs; infinite if their shapes differ."""
    if [array.shape for array in ours] != [array.shape for array in theirs]:
        return inf
    return max(
        (relative_error(got, want) for got, want in zip(ours, theirs, strict=True)), default=0.0
    )
