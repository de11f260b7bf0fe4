"""Transfer from other logs: records of the same workloads, and training samples for the cost model."""

from __future__ import annotations

import random
import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune.errors import UsageError
from tvmtune.records import header
from tvmtune.records.log import Log, read_log
from tvmtune.records.schema import workload_module
from tvmtune.spaces import rule_space, traces
from tvmtune.tuning.round_times import Key
from tvmtune.types import TRANSFER, Trial

if TYPE_CHECKING:
    import tvm

    from tvmtune.tuning.model import CostModel

MAX_TRANSFERRED = 16
"""Records transferred per implementation: the best ones, which seed the search."""
SAMPLES = 512
"""Trials that train the cost model, in total."""
REPLAY = 0.01
"""Average seconds to replay one of them; when the time is spent, the rest is skipped."""


@dataclass(frozen=True)
class TransferSample:
    """Trials of one workload."""

    workload: str
    module: str
    """As the log stores it."""
    trials: list[Trial]


def read(sources: Sequence[str | Path | Log], own: Path) -> list[Log]:
    """The logs to transfer from; :class:`Log` objects are returned unchanged.

    Raises :class:`UsageError` if the session's own log is among them, :class:`TvmtuneError` for a log
    that cannot be read or was measured with another TVM, where traces may mean something else.
    """
    logs = []
    for source in sources:
        path = source.path if isinstance(source, Log) else Path(source)
        if own.exists() and path.exists() and own.samefile(path):
            raise UsageError(f"{path} is the log of this run, which continues it already: omit it")
        log = source if isinstance(source, Log) else read_log(path)
        header.check_tvm(
            log,
            "where its schedules may mean something else. Leave it out, or tune that network again.",
        )
        logs.append(log)
    return logs


def records(logs: Sequence[Log], device: str, kind: str) -> Iterator[Trial]:
    """The best records of each implementation on this device (by identity), marked as transferred."""
    groups: dict[tuple[str, str], dict[str, Trial]] = {}
    for log in logs:
        for trial in log.trials:
            if trial.ok and trial.device == device and trial.kind == kind:
                group = groups.setdefault((trial.workload, trial.implementation), {})
                group.setdefault(trial.candidate, trial)
    for group in groups.values():
        for trial in sorted(group.values(), key=lambda t: t.latency)[:MAX_TRANSFERRED]:
            yield trial.evolve(tuner=TRANSFER, verified=None)


def shipped_records(log: Log | None, keys: Container[Key]) -> dict[Key, Trial]:
    """The best shipped record of each implementation among ``keys``; none without a log."""
    found: dict[Key, Trial] = {}
    for trial in log.trials if log else ():
        key = trial.workload, trial.implementation
        if key in keys and (key not in found or trial.latency < found[key].latency):
            found[key] = trial
    return found


def samples(logs: Sequence[Log], kind: str, seed: int) -> list[TransferSample]:
    """Trials by workload, from any device; up to :data:`SAMPLES` of them, drawn at random."""
    found: dict[tuple[str, str], TransferSample] = {}
    for log in logs:
        for trial in log.trials:
            module = workload_module(log.tasks.get(trial.task), trial.implementation)
            if module and trial.ok and trial.kind == kind:
                # Devices are kept apart: only ratios within a group are learned.
                key = (trial.device, trial.workload)
                group = found.setdefault(key, TransferSample("/".join(key), module, []))
                group.trials.append(trial)
    rng = random.Random(seed)
    groups = list(found.values())
    if len(groups) > SAMPLES // 2:  # a ratio takes two
        groups = rng.sample(groups, SAMPLES // 2)
    each = max(2, SAMPLES // max(1, len(groups)))
    for sample in groups:
        if len(sample.trials) > each:
            sample.trials[:] = rng.sample(sample.trials, each)
    return groups


def train(
    model: CostModel, samples: Sequence[TransferSample], target: tvm.target.Target, threads: int
) -> int:
    """Train the cost model with the trials; returns how many could be replayed.

    Each sample has its share of the time, plus what earlier ones left over.
    """
    count = 0
    end = time.monotonic()
    for sample in samples:
        end += REPLAY * len(sample.trials)
        mod = traces.load_module(sample.module)
        schedules: list[Any] = []
        latencies = []
        for number, trial in enumerate(sample.trials):
            if number and time.monotonic() > end:
                break
            try:
                schedules.append(traces.apply(mod, trial.trace))
            except Exception:  # skip a trace that no longer applies
                continue
            latencies.append(trial.latency)
        if schedules:
            generator = rule_space.RuleSpace({"kind": str(target.kind.name)}).generator()
            context = rule_space.tune_context(mod, target, generator, seed=1, threads=threads)
            model.learn(model.features(context, schedules), latencies, sample.workload)
            count += len(schedules)
    return count
