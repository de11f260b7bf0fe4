"""Compare tuners on completely measured spaces: latencies come from a log, not from a device.

A run asks a tuner for candidates, looks up each, and counts the trials until it comes near the best of
the space. It is deterministic for a seed: one thread, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tvmtune.errors import TvmtuneError, UsageError, nearest
from tvmtune.machine import interrupts
from tvmtune.tuning import tuners
from tvmtune.tuning.limits import BATCH
from tvmtune.tuning.simulation import logged_spaces, metaschedule
from tvmtune.tuning.simulation.logged_spaces import MeasuredSpace
from tvmtune.tuning.simulation.replay_cache import ReplayCache
from tvmtune.tuning.tuners.base import TunerArgs
from tvmtune.types import JSON

if TYPE_CHECKING:
    from tvmtune.records.log import Log
    from tvmtune.tuning.tuners.base import Tuner

PARTS = (0.90, 0.95, 0.99)
"""Fractions of the best candidate's speed that a run must reach; it ends with the last."""
MIN_PROPOSALS = 48
"""Proposals after which a run is given up if too many of them are not in the log."""
RESAMPLES = 10_000


@dataclass
class SimulatedRun:
    """One tuner on one space with one seed."""

    tuner: str
    seed: int
    reached: dict[float, int] = field(default_factory=dict)
    """Trials needed, by fraction in :data:`PARTS`."""
    trials: int = 0
    missed: int = 0
    """Proposals that are not in the log; they count as failures."""
    best: float = float("inf")
    """Seconds."""

    def to_json(self) -> JSON:
        return {
            "seed": self.seed,
            "trials": self.trials,
            "missed": self.missed,
            "best_ms": self.best * 1e3 if self.best < float("inf") else None,
            "trials_to": {f"{part:.0%}": self.reached.get(part) for part in PARTS},
        }


@dataclass(frozen=True)
class Mean:
    """Geometric mean of trials over runs, with a 95% bootstrap interval."""

    mean: float
    low: float
    high: float
    reached: int
    """How many of the runs reached the goal."""
    runs: int

    def to_json(self) -> JSON:
        return {name: getattr(self, name) for name in ("mean", "low", "high", "reached", "runs")}


@dataclass
class Simulation:
    """All runs on all spaces."""

    log: str
    spaces: list[MeasuredSpace]
    tuners: dict[str, dict[str, Any]]
    """Options by name."""
    runs: list[tuple[MeasuredSpace, SimulatedRun]] = field(default_factory=list)

    def of(self, space: MeasuredSpace, tuner: str) -> list[SimulatedRun]:
        return [run for where, run in self.runs if where is space and run.tuner == tuner]

    def mean(self, tuner: str, part: float, spaces: Sequence[MeasuredSpace] | None = None) -> Mean:
        """Over the runs on one space, or on several with equal weights.

        A run that never reached the goal counts with the size of its space.
        """
        chosen = self.spaces if spaces is None else spaces
        groups = [[r.reached.get(part, s.size) for r in self.of(s, tuner)] for s in chosen]
        runs = [run for s in chosen for run in self.of(s, tuner)]
        return Mean(*interval(groups), sum(part in run.reached for run in runs), len(runs))

    def to_json(self) -> JSON:
        return {
            "log": self.log,
            "tuners": self.tuners,
            "spaces": [self._space(space) for space in self.spaces],
            "all": {name: self._means(name, self.spaces) for name in self.tuners},
        }

    def _space(self, space: MeasuredSpace) -> JSON:
        return {
            "task": space.task.index,
            "name": space.task.name,
            "implementation": space.implementation.name,
            "workload_key": space.implementation.workload_key,
            "device": space.device,
            "size": space.size,
            "failed": space.failed,
            "best_ms": space.best * 1e3,
            "within": {f"{part:.0%}": space.within(part) for part in PARTS},
            "tuners": {
                name: {
                    "runs": [run.to_json() for run in self.of(space, name)],
                    "trials_to": self._means(name, [space]),
                }
                for name in self.tuners
            },
        }

    def _means(self, tuner: str, spaces: Sequence[MeasuredSpace]) -> JSON:
        return {f"{part:.0%}": self.mean(tuner, part, spaces).to_json() for part in PARTS}


def names() -> list[str]:
    """Values of ``--tuner``: the session's tuners and MetaSchedule's own search."""
    return [*tuners.TUNERS, metaschedule.NAME]


def check(wanted: Sequence[str], options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The tuners' canonical names, each with the options that apply to it.

    Raises :class:`UsageError` for an unknown tuner, an invalid value, or an option that none of them
    has.
    """
    checked: dict[str, dict[str, Any]] = {}
    for name in wanted:
        known = [*names(), *tuners.ALIASES]
        if name.lower() not in known:
            raise UsageError(f"tuner '{name}' is not known.{nearest(name, known)}")
        own = metaschedule.NAME if name.lower() == metaschedule.NAME else tuners.canonical(name)
        checked[own] = {}
    known_options = {name: _options(name) for name in checked}
    for key, value in options.items():
        owners = [name for name in checked if key in known_options[name]]
        if not owners:
            listed = sorted({option for each in known_options.values() for option in each})
            hint = nearest(key, listed) if listed else " There are none."
            raise UsageError(
                f"--tuner-option {key}: {' and '.join(checked)} "
                f"{'have' if len(checked) > 1 else 'has'} no such option.{hint}"
            )
        for name in owners:
            checked[name] |= tuners.check_options(name, {key: value})
    return checked


def simulate(
    log: Log,
    wanted: Mapping[str, Mapping[str, Any]],
    *,
    spaces: Sequence[MeasuredSpace] | None = None,
    seeds: Sequence[int] = (0,),
    trials: int | None = None,
    on_run: Callable[[MeasuredSpace, SimulatedRun], None] | None = None,
) -> Simulation:
    """Run each of the tuners (names and options, from :func:`check`) on each space with each seed.

    ``spaces`` defaults to those of :func:`full_spaces`; ``trials`` ends a run early. Raises
    :class:`TvmtuneError` if too many proposals are not in the log.
    """
    chosen = list(spaces) if spaces is not None else full_spaces(log)[0]
    result = Simulation(str(log.path), chosen, {n: dict(o) for n, o in wanted.items()})
    for space in chosen:
        cache = ReplayCache()
        for name, options in result.tuners.items():
            for seed in seeds:
                run = play(space, name, options, seed, trials, cache)
                result.runs.append((space, run))
                if on_run is not None:
                    on_run(space, run)
    return result


def full_spaces(
    log: Log, spaces: Sequence[MeasuredSpace] | None = None
) -> tuple[list[MeasuredSpace], list[str]]:
    """The completely measured spaces of the log, and the reason why each of the others is not.

    Raises :class:`TvmtuneError` if there is none of the former.
    """
    full, refused = [], []
    for space in logged_spaces.spaces_of(log) if spaces is None else spaces:
        interrupts.check()
        if space.best == float("inf"):
            refused.append(f"{space}: all {space.size} trials failed")
        elif logged_spaces.is_complete(space):
            full.append(space)
        else:
            refused.append(f"{space}: its {space.size} trials are not the whole space")
    if not full:
        more = f"; and {len(refused) - 2} more" if len(refused) > 2 else ""
        raise TvmtuneError(
            f"{log.path} holds no space that was measured in full ({'; '.join(refused[:2])}{more}). "
            "Complete it with tvmtune tune --tuner grid."
        )
    return full, refused


def play(
    space: MeasuredSpace,
    name: str,
    options: Mapping[str, Any],
    seed: int,
    trials: int | None = None,
    cache: ReplayCache | None = None,
) -> SimulatedRun:
    """One run, until it has reached the last of :data:`PARTS`, the tuner has no further proposal, or
    ``trials`` (by default the size of the space) are spent."""
    run = SimulatedRun(name, seed)
    limit = space.size if trials is None else min(trials, space.size)
    tuner = _create(space, name, options, seed, cache or ReplayCache())
    batch = getattr(tuner, "batch", BATCH)
    goals = {part: space.best / part for part in PARTS}
    while run.trials < limit and len(run.reached) < len(PARTS):
        interrupts.check()
        proposals = tuner.ask(min(batch, limit - run.trials))[: limit - run.trials]
        if not proposals:
            break
        latencies = []
        for proposal in proposals:
            known = space.latency.get(proposal.candidate)
            run.trials += 1
            run.missed += known is None
            latencies.append(float("inf") if known is None else known)
            run.best = min(run.best, latencies[-1])
            for part, seconds in goals.items():
                if run.best <= seconds:
                    run.reached.setdefault(part, run.trials)
        done = len(run.reached) == len(PARTS) or run.trials >= limit
        if (done or run.trials >= MIN_PROPOSALS) and run.missed > _tolerated_misses(run.trials):
            raise TvmtuneError(
                f"{space} was not measured in full: {run.missed} of the first {run.trials} proposals "
                f"of {name} are not in the log. Complete it with tvmtune tune --tuner grid."
            )
        if not done:
            tuner.tell(proposals, latencies)
    return run


def _tolerated_misses(trials: int) -> float:
    """Maximum number of proposals missing from a log that contains
    :data:`tvmtune.tuning.simulation.logged_spaces.MIN_COVERAGE` of the space: the expected number plus
    three standard deviations."""
    missing = 1 - logged_spaces.MIN_COVERAGE
    return missing * trials + 3 * math.sqrt(missing * logged_spaces.MIN_COVERAGE * trials)


def interval(groups: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Geometric mean and 95% percentile bootstrap interval; each group is resampled separately, and
    all have the same weight (Efron and Tibshirani, An Introduction to the Bootstrap, 1993)."""
    import numpy as np

    rng = np.random.default_rng(0)
    logs = [np.log(np.asarray(group, dtype=float)) for group in groups]
    drawn = [
        values[rng.integers(0, len(values), (RESAMPLES, len(values)))].mean(axis=1)
        for values in logs
    ]
    low, high = np.percentile(np.mean(drawn, axis=0), [2.5, 97.5])
    mean = np.mean([values.mean() for values in logs])
    return float(np.exp(mean)), float(np.exp(low)), float(np.exp(high))


def _create(
    space: MeasuredSpace, name: str, options: Mapping[str, Any], seed: int, cache: ReplayCache
) -> Tuner:
    args = TunerArgs(
        implementation=space.implementation,
        target=space.target,
        model=cache.model(seed),
        known=set(),
        # TVM's generator cannot start at 0
        seed=seed + 1,
        # with several threads TVM's search depends on their timing
        threads=1,
        options=options,
        point_space=cache.point_space,
    )
    if name == metaschedule.NAME:
        return metaschedule.create(args)
    return tuners.create(name, args)


def _options(name: str) -> Mapping[str, Any]:
    return {} if name == metaschedule.NAME else tuners.options(name)
