"""From proposals to numbers: builders, then the runner, then the check of a leader."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tvmtune import system
from tvmtune.farm import protocol
from tvmtune.measure.boards import WAIT, Boards, NoBoard
from tvmtune.measure.candidate import MISFIT
from tvmtune.measure.cluster import Cluster, NoBuilder
from tvmtune.types import BuilderSpec, Device, Implementation, RunnerSpec, Stage, Timing
from tvmtune.workers import Outcome, Workers

BUILD = "tvmtune.measure.candidate:build"
CAREFUL = 3
"""How many times more repeats a candidate gets that is measured again before it is trusted."""


@dataclass(frozen=True)
class Measurement:
    """Seconds per repeat, or the stage that failed and its message."""

    seconds: tuple[float, ...] = ()
    stage: Stage | None = None
    message: str = ""


class Batch:
    """Candidates that are being built."""

    def __init__(self, handles: Sequence[Any]) -> None:
        self.handles = tuple(handles)
        self._ended: list[float] = []
        for handle in self.handles:
            handle.add_done_callback(lambda _: self._ended.append(time.monotonic()))

    def idle(self) -> float:
        """Seconds since the last of them was built; 0 while one is not."""
        if len(self._ended) < len(self.handles):
            return 0.0
        return time.monotonic() - max(self._ended, default=time.monotonic())


class Measurer:
    """Builds and times candidates of one device in processes that are killed at their deadlines.

    With an exclusive runner, building and timing alternate: while a candidate is timed no builder of
    this machine works, and the other way round. Otherwise a candidate is timed as soon as it is built.

    Where the device is a board, or many of one kind, candidates are timed there: ``wait`` is how many
    seconds the session may be without any, and ``say`` hears of boards that come and go.

    ``build_cluster`` is the address of a Dask scheduler whose machines build in the place of this one.

    :meth:`measure` is :meth:`build` and :meth:`time` in one. A caller that has other work to do (the
    next proposals) does it between the two, while the builders are busy.
    """

    def __init__(
        self,
        device: Device,
        builder: BuilderSpec,
        runner: RunnerSpec,
        timing: Timing,
        *,
        wait: float | None = None,
        build_cluster: str | None = None,
        say: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.device = device
        self.builder = builder
        self.runner = runner
        self.timing = timing
        _sweep()
        self.directory = Path(tempfile.mkdtemp(prefix=f"tvmtune-{os.getpid()}-"))
        self._references: dict[str, Any] = {}
        """Builds of unscheduled workloads, by workload."""
        self._checks: dict[str, tuple[Any, Any]] = {}
        """By workload, the trace that :meth:`prepare` was given, and its build."""
        self._building: list[Any] = []
        """Builds that may not have ended yet."""
        self._baseline: float | None = None
        """Seconds of the fixed kernel when it was first timed."""
        self._remote = device.remote if runner.kind == "measured" else None
        """The boards that candidates are timed on; a model needs none."""
        self._alternates = runner.exclusive and build_cluster is None
        """Whether nothing is built here while a candidate is timed."""
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, self.directory, ignore_errors=True)
            self._runners = self._make_runners(wait, say)
            undo.callback(self._runners.close)
            self._builders = self._make_builders(build_cluster, wait, say)
            undo.pop_all()

    def measure(
        self,
        candidates: Sequence[tuple[Implementation, Any]],
        on_result: Callable[[int, Measurement], None],
        *,
        best: Sequence[float | None] | None = None,
    ) -> None:
        """Build and time ``(implementation, trace)`` pairs; ``on_result`` hears of each in order.

        ``best`` gives the latency in seconds that a candidate must come near to deserve all its
        repeats.
        """
        self.time(self.build(candidates), on_result, best=best)

    def build(self, candidates: Sequence[tuple[Implementation, Any]]) -> Batch:
        """Have ``(implementation, trace)`` pairs built; returns at once. Each batch has to go
        through :meth:`time`."""
        return Batch(self._submit([(i, trace, False) for i, trace in candidates]))

    def time(
        self,
        batch: Batch,
        on_result: Callable[[int, Measurement], None],
        *,
        best: Sequence[float | None] | None = None,
        timing: Timing | None = None,
    ) -> None:
        """Wait until a batch is built and time it; see :meth:`measure`.

        With an exclusive runner it waits for all other batches that are being built as well.
        ``timing`` takes the place of the measurer's own.
        """
        timing = timing or self.timing
        results: dict[int, Measurement] = {}
        """Those that have not been reported yet."""
        built: dict[int, Outcome] = {}
        running: list[tuple[int, Any]] = []
        collected = reported = 0
        """How many of those that ran have been asked for, and of all have been reported."""

        def report() -> None:
            nonlocal reported
            while reported in results:
                reported += 1
                on_result(reported - 1, results.pop(reported - 1))

        def collect(handles: Sequence[Any]) -> None:
            self._runners.collect(
                handles, deadline=timing.run_timeout, stage="run", on_result=has_run
            )

        def start(n: int) -> None:
            path, args = built[n].value
            options = {**self.runner.options, "best": best[n] if best else None}
            call = (path, args, timing, options)
            handle = self._runners.submit(self.runner.run, call, timing.run_timeout)
            running.append((n, handle))

        def has_built(n: int, outcome: Outcome) -> None:
            built[n] = outcome
            if not outcome.ok:
                results[n] = _measured(outcome)
            elif not self._alternates:
                start(n)
                while collected < len(running) and running[collected][1].done():
                    collect([running[collected][1]])

        def has_run(_: int, outcome: Outcome) -> None:
            nonlocal collected
            n = running[collected][0]
            collected += 1
            results[n] = _measured(outcome)
            with contextlib.suppress(OSError):
                Path(built[n].value[0]).unlink()
            report()

        try:
            self._collect(batch.handles, has_built)
            report()
            if self._alternates:
                self.rest()
                for n, outcome in built.items():
                    if outcome.ok:
                        start(n)
            collect([handle for _, handle in running[collected:]])
        except (NoBoard, NoBuilder, KeyboardInterrupt):
            # Boards finish in any order: what they have finished behind the first that is missing
            # is worth as much as the rest.
            for n, handle in running[collected:]:
                if isinstance(self._runners, Boards) and handle.done() and not handle.exception():
                    results[n] = _measured(handle.result())
            for n in sorted(results):
                on_result(n, results[n])
            raise

    def prepare(self, implementation: Implementation, trace: Any) -> None:
        """Have built what :meth:`verify` needs; returns at once.

        It is needed only before other work, or before several are verified; of a workload, the
        latest counts.
        """
        key = implementation.workload_key
        if key not in self._references:
            self._references[key] = self._submit([(implementation, None, True)])[0]
        if key in self._checks:
            self._checks[key][1].add_done_callback(_discard)
        self._checks[key] = (trace, self._submit([(implementation, trace, True)])[0])

    def verify(self, implementation: Implementation, trace: Any) -> tuple[float | None, str]:
        """max|y - ref| / max|ref| of a candidate against its own unscheduled workload.

        Infinite where the check took the process down; None with a message where no verdict could be
        reached.
        """
        key = implementation.workload_key
        if key not in self._checks or self._checks[key][0] != trace:
            self.prepare(implementation, trace)
        _, handle = self._checks.pop(key)
        built = self._collect([handle, self._references[key]])
        if not built[1].ok:
            del self._references[key]
        for outcome in built:
            if not outcome.ok:
                return None, outcome.message
        path, args = built[0].value
        reference = built[1].value[0]
        call = (path, reference, args, self.runner.options)
        # An unscheduled convolution is slow: its deadline is not a candidate's.
        deadline = max(60.0, 6 * self.timing.run_timeout)
        outcome = self._runners.map(self.runner.check, [call], deadline=deadline, stage="run")[0]
        with contextlib.suppress(OSError):
            Path(path).unlink()
        if outcome.stage == "crash":
            return float("inf"), outcome.message
        return (outcome.value, "") if outcome.ok else (None, outcome.message)

    def remeasure(self, implementation: Implementation, trace: Any) -> Measurement:
        """Time a candidate with :data:`CAREFUL` times the repeats, built as it will be shipped."""
        found: list[Measurement] = []
        handles = self._submit([(implementation, trace, False)], {"shipped": True})
        timing = replace(
            self.timing,
            repeat=CAREFUL * self.timing.repeat,
            run_timeout=CAREFUL * self.timing.run_timeout,
        )
        self.time(Batch(handles), lambda _, result: found.append(result), timing=timing)
        return found[0]

    def peak(self) -> float | None:
        """The device's best float32 rate in GFLOPS, or None where the runner cannot tell."""
        if self.runner.peak is None:
            return None
        outcome = self._of_the_device(self.runner.peak)
        if not outcome.ok:
            warnings.warn(
                f"the device's peak could not be measured: {outcome.message}", stacklevel=2
            )
            return None
        return float(outcome.value)

    def drift(self) -> float | None:
        """The time that a kernel which never changes takes now, relative to the first such reading.

        It takes some 20 ms. None where the runner has no such kernel, or it failed.
        """
        if self.runner.baseline is None:
            return None
        outcome = self._of_the_device(self.runner.baseline)
        if not outcome.ok:
            return None
        if self._baseline is None:
            self._baseline = float(outcome.value)
        return float(outcome.value) / self._baseline

    def _of_the_device(self, function: str) -> Outcome:
        if self._alternates:
            self.rest()
        call = (self.device.target, {**self.runner.options, "directory": str(self.directory)})
        return self._runners.map(function, [call], deadline=60.0, stage="run")[0]

    def _make_runners(self, wait: float | None, say: Callable[[str], None]) -> Workers | Boards:
        runner, remote = self.runner, self._remote
        if remote is None:
            return Workers(
                runner.slots,
                init=runner.init,
                options={**runner.options, "directory": str(self.directory)},
                recycle=runner.recycle,
                directory=self.directory,
            )
        return Boards(
            *protocol.find(remote),
            wait=WAIT if wait is None else wait,
            say=say,
            options=runner.options,
            directory=self.directory,
        )

    def _make_builders(
        self, cluster: str | None, wait: float | None, say: Callable[[str], None]
    ) -> Workers | Cluster:
        builder, device = self.builder, self.device
        if cluster is not None:
            return Cluster(cluster, builder, wait=WAIT if wait is None else wait, say=say)
        # Where candidates are timed elsewhere, all of this machine may build.
        slots = max(1, device.threads) if self._remote is None else system.usable_cpus()
        return Workers(slots, init=builder.init, options=builder.options, directory=self.directory)

    def _submit(
        self,
        wanted: Sequence[tuple[Implementation, Any, bool]],
        options: dict[str, Any] | None = None,
    ) -> list[Any]:
        """Have candidates built with the builder's options and ``options``."""
        handles = [
            self._builders.submit(
                BUILD,
                (
                    self._workload(implementation),
                    trace,
                    whole,
                    self.builder.build,
                    *self._how(trace, options or {}),
                    str(self.directory),
                ),
                self.timing.build_timeout,
            )
            for implementation, trace, whole in wanted
        ]
        self._building = [h for h in self._building if not h.done()] + handles
        return handles

    def _how(self, trace: Any, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Target and options for a candidate, or for an unscheduled workload."""
        reference = self.builder.reference
        if trace is None and reference is not None:
            return reference.target, {**self.builder.options, **reference.options, **options}
        return self.device.target, {**self.builder.options, **options}

    def _collect(
        self, handles: Sequence[Any], on_result: Callable[[int, Outcome], None] | None = None
    ) -> list[Outcome]:
        outcomes: list[Outcome] = []

        def classify(n: int, outcome: Outcome) -> None:
            misfit = outcome.message.startswith(MISFIT)
            outcomes.append(replace(outcome, stage="space") if misfit else outcome)
            if on_result is not None:
                on_result(n, outcomes[-1])

        self._builders.collect(
            handles, deadline=self.timing.build_timeout, stage="build", on_result=classify
        )
        return outcomes

    def rest(self) -> None:
        """Wait until no builder works."""
        wait(self._building)
        self._building = []

    def _workload(self, implementation: Implementation) -> str:
        path = self.directory / f"{implementation.workload_key}.json"
        if not path.exists():
            import tvm

            path.write_text(tvm.ir.save_json(implementation.mod))
        return str(path)

    def close(self) -> None:
        self._builders.close()
        self._runners.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _measured(outcome: Outcome) -> Measurement:
    if outcome.ok:
        return Measurement(seconds=tuple(outcome.value))
    return Measurement(stage=outcome.stage, message=outcome.message)  # type: ignore[arg-type]


def _discard(handle: Any) -> None:
    """Remove the library of a build that has ended and is not wanted any more."""
    with contextlib.suppress(Exception):
        Path(handle.result()[0]).unlink()


def _sweep() -> None:
    """Remove what this user's sessions that were killed have left behind."""
    for path in Path(tempfile.gettempdir()).glob("tvmtune-[0-9]*-*"):
        owner = path.name.split("-")[1]
        if not owner.isdigit() or Path(f"/proc/{owner}").exists():
            continue
        with contextlib.suppress(OSError):
            if path.lstat().st_uid != os.getuid():
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
