"""Tuners compared on spaces that were measured in full: latencies come from a log, not from a device.

A run asks a tuner for candidates, looks each up, and notes how many trials it took to come near the
best of the space. It is deterministic by its seed: one thread, and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tvmtune import interrupt
from tvmtune.errors import TvmtuneError, UsageError, nearest
from tvmtune.tuning import logged, metaschedule, tuners
from tvmtune.tuning.limits import BATCH
from tvmtune.tuning.logged import Measured
from tvmtune.tuning.replays import Replays
from tvmtune.tuning.tuners.base import TunerArgs
from tvmtune.types import JSON

if TYPE_CHECKING:
    from tvmtune.records.log import Log
    from tvmtune.tuning.tuners.base import Tuner

PARTS = (0.90, 0.95, 0.99)
"""Parts of the best candidate's speed that a run is watched for; it ends with the last."""
EARLY = 48
"""Proposals after which a run whose proposals are not in the log is given up."""
RESAMPLES = 10_000


@dataclass
class Run:
    """One tuner on one space with one seed."""

    tuner: str
    seed: int
    reached: dict[float, int] = field(default_factory=dict)
    """Trials, by the part of :data:`PARTS` that they took."""
    trials: int = 0
    missed: int = 0
    """Proposals that the log does not hold, told as failures."""
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
    """How many of the runs got there."""
    runs: int

    def to_json(self) -> JSON:
        return {name: getattr(self, name) for name in ("mean", "low", "high", "reached", "runs")}


@dataclass
class Simulation:
    """All runs on all spaces."""

    log: str
    spaces: list[Measured]
    tuners: dict[str, dict[str, Any]]
    """Options by name."""
    runs: list[tuple[Measured, Run]] = field(default_factory=list)

    def of(self, space: Measured, tuner: str) -> list[Run]:
        return [run for where, run in self.runs if where is space and run.tuner == tuner]

    def mean(self, tuner: str, part: float, spaces: Sequence[Measured] | None = None) -> Mean:
        """Over the runs on one space, or on several, each of which weighs the same.

        A run that never got there counts with the size of its space.
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

    def _space(self, space: Measured) -> JSON:
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

    def _means(self, tuner: str, spaces: Sequence[Measured]) -> JSON:
        return {f"{part:.0%}": self.mean(tuner, part, spaces).to_json() for part in PARTS}


def names() -> list[str]:
    """What ``--tuner`` takes here: the session's tuners, and MetaSchedule's own search."""
    return [*tuners.TUNERS, metaschedule.NAME]


def check(wanted: Sequence[str], options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The tuners' own names, each with those of the options that it has.

    Raises :class:`UsageError` for an unknown tuner, a wrong value, or an option that none of them has.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in wanted:
        known = [*names(), *tuners.ALIASES]
        if name.lower() not in known:
            raise UsageError(f"tuner '{name}' is not known.{nearest(name, known)}")
        own = metaschedule.NAME if name.lower() == metaschedule.NAME else tuners.canonical(name)
        found[own] = {}
    theirs = {name: _options(name) for name in found}
    for key, value in options.items():
        owners = [name for name in found if key in theirs[name]]
        if not owners:
            listed = sorted({option for each in theirs.values() for option in each})
            hint = nearest(key, listed) if listed else " There are none."
            raise UsageError(
                f"--tuner-option {key}: {' and '.join(found)} {'have' if len(found) > 1 else 'has'} no "
                f"such option.{hint}"
            )
        for name in owners:
            found[name] |= tuners.check_options(name, {key: value})
    return found


def simulate(
    log: Log,
    wanted: Mapping[str, Mapping[str, Any]],
    *,
    spaces: Sequence[Measured] | None = None,
    seeds: Sequence[int] = (0,),
    trials: int | None = None,
    on_run: Callable[[Measured, Run], None] | None = None,
) -> Simulation:
    """Run each of the tuners (names and options, from :func:`check`) on each space with each seed.

    ``spaces`` defaults to those that :func:`full_spaces` finds; ``trials`` ends a run early. Raises
    :class:`TvmtuneError` where too many proposals are not in the log.
    """
    chosen = list(spaces) if spaces is not None else full_spaces(log)[0]
    result = Simulation(str(log.path), chosen, {n: dict(o) for n, o in wanted.items()})
    for space in chosen:
        replays = Replays()
        for name, options in result.tuners.items():
            for seed in seeds:
                run = play(space, name, options, seed, trials, replays)
                result.runs.append((space, run))
                if on_run is not None:
                    on_run(space, run)
    return result


def full_spaces(
    log: Log, spaces: Sequence[Measured] | None = None
) -> tuple[list[Measured], list[str]]:
    """The spaces that the log holds in full, and for each of the others what is wrong with it.

    Raises :class:`TvmtuneError` if there is none of the former.
    """
    full, refused = [], []
    for space in logged.spaces_of(log) if spaces is None else spaces:
        interrupt.check()
        if space.best == float("inf"):
            refused.append(f"{space}: all {space.size} trials failed")
        elif logged.full(space):
            full.append(space)
        else:
            refused.append(f"{space}: its {space.size} trials are not the whole space")
    if not full:
        more = f"; and {len(refused) - 2} more" if len(refused) > 2 else ""
        raise TvmtuneError(
            f"{log.path} holds no space that was measured in full ({'; '.join(refused[:2])}{more}). "
            "Let tvmtune tune --tuner grid continue it to the end."
        )
    return full, refused


def play(
    space: Measured,
    name: str,
    options: Mapping[str, Any],
    seed: int,
    trials: int | None = None,
    replays: Replays | None = None,
) -> Run:
    """One run, until it has come within the last of :data:`PARTS`, the tuner knows nothing more, or
    ``trials``, by default the size of the space, are spent."""
    run = Run(name, seed)
    limit = space.size if trials is None else min(trials, space.size)
    tuner = _create(space, name, options, seed, replays or Replays())
    batch = getattr(tuner, "batch", BATCH)
    goals = {part: space.best / part for part in PARTS}
    while run.trials < limit and len(run.reached) < len(PARTS):
        interrupt.check()
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
        if (done or run.trials >= EARLY) and run.missed > _bearable(run.trials):
            raise TvmtuneError(
                f"{space} was not measured in full: {run.missed} of the first {run.trials} proposals "
                f"of {name} are not in the log. Let tvmtune tune --tuner grid continue it to the end."
            )
        if not done:
            tuner.tell(proposals, latencies)
    return run


def _bearable(trials: int) -> float:
    """Proposals that may be missing from the log if it holds :data:`tvmtune.tuning.logged.FULL` of the
    space; three standard deviations more than is to be expected."""
    lacking = 1 - logged.FULL
    return lacking * trials + 3 * math.sqrt(lacking * logged.FULL * trials)


def interval(groups: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Geometric mean and 95% percentile bootstrap interval; each group is resampled by itself, and
    all weigh the same (Efron and Tibshirani, An Introduction to the Bootstrap, 1993)."""
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
    space: Measured, name: str, options: Mapping[str, Any], seed: int, replays: Replays
) -> Tuner:
    args = TunerArgs(
        implementation=space.implementation,
        target=space.target,
        model=replays.model(seed),
        known=set(),
        # TVM's generator cannot start at 0
        seed=seed + 1,
        # with several threads TVM's search depends on which of them is quicker
        threads=1,
        options=options,
    )
    if name == metaschedule.NAME:
        return metaschedule.create(args)
    return replays.shared_with(tuners.create(name, args))


def _options(name: str) -> Mapping[str, Any]:
    return {} if name == metaschedule.NAME else tuners.options(name)
