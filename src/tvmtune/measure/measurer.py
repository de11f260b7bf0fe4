"""Measure proposed candidates: build them, time them, and check the best against a reference."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tvmtune import atomic_write
from tvmtune.machine import board_identity, cpu_count, scratch
from tvmtune.measure.board_pool import WAIT, BoardPool, NoBoard
from tvmtune.measure.candidate import TRACE_NOT_APPLICABLE
from tvmtune.measure.cluster import Cluster, NoBuilder
from tvmtune.measure.recovery import Recovery
from tvmtune.remote import protocol
from tvmtune.types import JSON, BuilderSpec, Device, Implementation, RunnerSpec, Stage, Timing
from tvmtune.workers import Outcome, Workers

PREFIX = "tvmtune-session-"
"""Of the names of sessions' directories."""
BUILD = "tvmtune.measure.candidate:build"
RUN_REFERENCE = "tvmtune.measure.local:run_reference"
DESCRIBE = "tvmtune.measure.remote_runner:describe"
DESCRIBING = 10.0
"""Seconds for a board to describe itself."""
CONFIRM_FACTOR = 3
"""Factor on the repeats of a candidate that is measured again before it is trusted."""


@dataclass(frozen=True)
class Measurement:
    """Seconds per repeat, or the stage that failed and its message."""

    seconds: tuple[float, ...] = ()
    stage: Stage | None = None
    message: str = ""


class Batch:
    """Candidates that are being built. ``handles``: their builds; ``again(n)`` starts the build of the
    n-th once more."""

    def __init__(self, handles: Sequence[Any], again: Callable[[int], Any]) -> None:
        self.handles = tuple(handles)
        self.again = again
        self._ended: list[float] = []
        for handle in self.handles:
            handle.add_done_callback(lambda _: self._ended.append(time.monotonic()))

    def idle(self) -> float:
        """Seconds since the last build ended; 0 while one is running."""
        if len(self._ended) < len(self.handles):
            return 0.0
        return time.monotonic() - max(self._ended, default=time.monotonic())


class Measurer:
    """Builds and times candidates for one device, in processes that are killed at their deadlines.

    With an exclusive runner, building and timing alternate: no builder on this machine works while a
    candidate is timed. Otherwise a candidate is timed as soon as it is built.

    If the device is a board, or many of one kind, candidates are timed there: ``wait`` is how many
    seconds the session may be without any, and ``report`` receives messages about boards that come
    and go.

    A candidate that fails for a fault of the environment, such as a full disk, is measured again,
    alone; see :class:`Recovery`.

    ``build_cluster`` is the address of a Dask scheduler whose machines build instead of this one.

    :meth:`measure` is :meth:`build` followed by :meth:`time`. A caller with other work, such as the
    next proposals, does it between the two, while the builders are busy.
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
        report: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.device = device
        self.builder = builder
        self.runner = runner
        self.timing = timing
        self._files = contextlib.ExitStack()
        self.directory = self._files.enter_context(scratch.folder(PREFIX))
        self._references: dict[str, Any] = {}
        """Builds of unscheduled workloads, by workload."""
        self._reference_runs: dict[str, Future[None]] = {}
        """Runs of these builds, where kernels are timed elsewhere; done however they end."""
        self._checks: dict[str, tuple[Any, Any]] = {}
        """By workload, the trace given to :meth:`prepare`, and its build."""
        self._building: list[Any] = []
        """Builds that may still be running."""
        self._baseline: float | None = None
        """Seconds of the fixed kernel when it was first timed."""
        self._remote = device.remote if runner.kind == "measured" else None
        """The boards that candidates are timed on; a performance model needs none."""
        self._alternates = runner.exclusive and build_cluster is None
        """Whether building here pauses while a candidate is timed."""
        # If candidates are timed elsewhere, all of this machine may build.
        here = max(1, device.threads) if self._remote is None else cpu_count.usable_cpus()
        self.slots = 1 if build_cluster is not None else here
        """Candidates that are built at the same time; at least so many if a cluster builds."""
        with contextlib.ExitStack() as undo:
            undo.push(self._files)
            self._recovery = Recovery(self.directory, report, self.rest)
            self._runners = self._make_runners(wait, report)
            undo.callback(self._runners.close)
            self._builders = self._make_builders(build_cluster, wait, report)
            undo.pop_all()

    def measure(
        self,
        candidates: Sequence[tuple[Implementation, Any]],
        on_result: Callable[[int, Measurement], None],
        *,
        best: Sequence[float | None] | None = None,
    ) -> None:
        """Build and time ``(implementation, trace)`` pairs; ``on_result`` receives each in order, but
        those that have to be measured again last.

        ``best``: by candidate, the latency in seconds that it must come near to get all its repeats.
        """
        self.time(self.build(candidates), on_result, best=best)

    def build(self, candidates: Sequence[tuple[Implementation, Any]]) -> Batch:
        """Start building ``(implementation, trace)`` pairs and return at once. Each batch must be
        passed to :meth:`time` or :meth:`drop`."""
        return self._batch(candidates)

    def drop(self, batch: Batch) -> None:
        """Do without a batch: builds that have not begun never will."""
        for handle in batch.handles:
            handle.cancel()
            handle.add_done_callback(_discard)

    @property
    def builds_ahead(self) -> bool:
        """Whether further batches may be built while one is timed."""
        return not self._alternates

    def time(
        self,
        batch: Batch,
        on_result: Callable[[int, Measurement], None],
        *,
        best: Sequence[float | None] | None = None,
        timing: Timing | None = None,
    ) -> None:
        """Wait until a batch is built and time it; see :meth:`measure`.

        With an exclusive runner it also waits for all other batches being built. ``timing`` overrides
        the measurer's own. Raises :class:`EnvironmentFault` if a fault of the environment does not end.
        """
        timing = timing or self.timing
        results: dict[int, Measurement] = {}
        """Results that have not been reported yet."""
        built: dict[int, Outcome] = {}
        running: list[tuple[int, Any]] = []
        faulty: dict[int, Outcome] = {}
        """Those that met a fault of the environment."""
        collected = reported = 0
        """How many runs have been collected, and how many results reported."""

        def report_results() -> None:
            nonlocal reported
            while reported in results or reported in faulty:
                reported += 1
                if reported - 1 in results:
                    on_result(reported - 1, results.pop(reported - 1))

        def has_failed(n: int, outcome: Outcome) -> None:
            if outcome.fault:
                faulty[n] = outcome
            else:
                results[n] = _measured(outcome)

        def collect(handles: Sequence[Any]) -> None:
            self._runners.collect(
                handles, deadline=timing.run_timeout, stage="run", on_result=has_run
            )

        def submit(n: int, outcome: Outcome) -> Any:
            path, args = outcome.value
            options = {**self.runner.options, "best": best[n] if best else None}
            call = (path, args, timing, options)
            return self._runners.submit(self.runner.run, call, timing.run_timeout)

        def start(n: int) -> None:
            running.append((n, submit(n, built[n])))

        def measure_again(n: int) -> Outcome:
            outcome = self._collect([batch.again(n)])[0]
            if not outcome.ok:
                return outcome
            artifact = Path(outcome.value[0])
            handle = submit(n, outcome)
            outcome = self._runners.collect([handle], deadline=timing.run_timeout, stage="run")[0]
            with contextlib.suppress(OSError):
                artifact.unlink()
            return self._recovery.blame(outcome)

        def has_built(n: int, outcome: Outcome) -> None:
            built[n] = outcome
            if not outcome.ok:
                has_failed(n, outcome)
            elif not self._alternates:
                start(n)
                while collected < len(running) and running[collected][1].done():
                    collect([running[collected][1]])

        def has_run(_: int, outcome: Outcome) -> None:
            nonlocal collected
            n = running[collected][0]
            collected += 1
            has_failed(n, self._recovery.blame(outcome))
            with contextlib.suppress(OSError):
                Path(built[n].value[0]).unlink()
            report_results()

        try:
            self._collect(batch.handles, has_built)
            report_results()
            if self._alternates:
                self.rest()
                for n, outcome in built.items():
                    if outcome.ok:
                        start(n)
            collect([handle for _, handle in running[collected:]])
            for n, outcome in sorted(faulty.items()):
                again = self._recovery.repeat(partial(measure_again, n), outcome)
                on_result(n, _measured(again))
        except (NoBoard, NoBuilder, KeyboardInterrupt):
            # Boards finish in any order: results after the first missing one are as valid as the rest.
            for n, handle in running[collected:]:
                if (
                    isinstance(self._runners, BoardPool)
                    and handle.done()
                    and not handle.exception()
                ):
                    has_failed(n, handle.result())
            for n in sorted(results):
                on_result(n, results[n])
            raise

    def prepare(self, implementation: Implementation, trace: Any) -> None:
        """Start the builds that :meth:`verify` needs and return at once.

        Optional: use it before other work, or to verify several candidates. Only the latest call for a
        workload counts.
        """
        key = implementation.workload_key
        if key not in self._references:
            build = self._submit([(implementation, None, True)], urgent=True)[0]
            self._references[key] = build
            if self.builder.reference and isinstance(self._builders, Workers):
                self._reference_runs[key] = self._run_reference(build, self._builders)
                self._building.append(self._reference_runs[key])
        if key in self._checks:
            self._checks[key][1].add_done_callback(_discard)
        build = self._submit([(implementation, trace, True)], urgent=True)[0]
        self._checks[key] = (trace, build)

    def verify(
        self, implementation: Implementation, trace: Any, *, patience: float = 1.0
    ) -> tuple[float | None, str]:
        """max|y - ref| / max|ref| of a candidate against its own unscheduled workload.

        ``patience``: factor on the deadline.

        Infinite if the check crashed its process; None with a message if there is no verdict, or only
        one that the environment may be to blame for. Raises :class:`EnvironmentFault` if a fault of
        the environment does not end.
        """
        key = implementation.workload_key
        if key not in self._checks or self._checks[key][0] != trace:
            self.prepare(implementation, trace)
        _, handle = self._checks.pop(key)
        built = self._collect([handle, self._references[key]])

        def build_again(wanted: Any) -> Outcome:
            return self._collect(self._submit([(implementation, wanted, True)]))[0]

        for n, wanted in enumerate((trace, None)):
            built[n] = self._recovery.repeat(partial(build_again, wanted), built[n])
        if built[1].ok:
            self._references[key] = _done(built[1])
        else:
            del self._references[key]
        for outcome in built:
            if not outcome.ok:
                return None, outcome.message
        path, args = built[0].value
        reference = built[1].value[0]
        call = (path, reference, args, self.runner.options)
        deadline = patience * self._check_timeout
        if key in self._reference_runs:
            self._reference_runs.pop(key).result()

        def check() -> Outcome:
            outcomes = self._runners.map(self.runner.check, [call], deadline=deadline, stage="run")
            return self._recovery.blame(outcomes[0])

        outcome = self._recovery.repeat(check, check())
        with contextlib.suppress(OSError):
            Path(path).unlink()
        if outcome.stage == "crash" and not outcome.fault:
            return float("inf"), outcome.message
        return (outcome.value, "") if outcome.ok else (None, outcome.message)

    @property
    def _check_timeout(self) -> float:
        """Seconds. An unscheduled convolution is slow and needs longer than a candidate."""
        return max(60.0, 6 * self.timing.run_timeout)

    def _run_reference(self, build: Future[Outcome], builders: Workers) -> Future[None]:
        """Run a reference once it is built, in a builder: it takes seconds on one core, and there are
        more builders than runners. If that fails, the check runs it."""
        ended: Future[None] = Future()

        def run(build: Future[Outcome]) -> None:
            try:
                call = build.result().value
                handle = builders.submit(RUN_REFERENCE, call, self._check_timeout, urgent=True)
            except Exception:  # there is no reference, or the session ends
                ended.set_result(None)
            else:
                handle.add_done_callback(lambda _: ended.set_result(None))

        build.add_done_callback(run)
        return ended

    def remeasure(self, implementation: Implementation, trace: Any) -> Measurement:
        """Time a candidate with :data:`CONFIRM_FACTOR` times the repeats, built as for shipping."""
        results: list[Measurement] = []
        batch = self._batch([(implementation, trace)], {"shipped": True}, urgent=True)
        timing = replace(
            self.timing,
            repeat=CONFIRM_FACTOR * self.timing.repeat,
            run_timeout=CONFIRM_FACTOR * self.timing.run_timeout,
        )
        self.time(batch, lambda _, result: results.append(result), timing=timing)
        return results[0]

    def peak(self) -> float | None:
        """The device's peak float32 rate in GFLOPS, or None if the runner cannot measure it."""
        if self.runner.peak is None:
            return None
        measure = partial(self._run_on_device, self.runner.peak)
        # A device that cannot be set up at all ends the run here, before anything is measured.
        outcome = self._recovery.repeat(measure, measure())
        if not outcome.ok:
            warnings.warn(
                f"the device's peak could not be measured: {outcome.message}", stacklevel=2
            )
            return None
        return float(outcome.value)

    def board(self) -> JSON:
        """Identity of the boards (:mod:`tvmtune.machine.board_identity`), empty without boards or if
        TVM's own server serves them. If it is unknown, this waits for the first board; raises
        :class:`~tvmtune.measure.board_pool.NoBoard` if none comes."""
        if self.device.board or not isinstance(self._runners, BoardPool):
            return self.device.board
        (outcome,) = self._runners.map(DESCRIBE, [()], deadline=DESCRIBING, stage="run")
        return board_identity.of(outcome.value) if outcome.ok else {}

    def drift(self) -> float | None:
        """The current time of a kernel that never changes, relative to the first such reading.

        Takes some 20 ms. None if the runner has no such kernel, or it failed.
        """
        if self.runner.baseline is None:
            return None
        outcome = self._run_on_device(self.runner.baseline)
        if not outcome.ok:
            return None
        if self._baseline is None:
            self._baseline = float(outcome.value)
        return float(outcome.value) / self._baseline

    def _run_on_device(self, function: str) -> Outcome:
        if self._alternates:
            self.rest()
        call = (self.device.target, {**self.runner.options, "directory": str(self.directory)})
        return self._runners.map(function, [call], deadline=60.0, stage="run")[0]

    def _make_runners(
        self, wait: float | None, report: Callable[[str], None]
    ) -> Workers | BoardPool:
        runner, remote = self.runner, self._remote
        if remote is None:
            return Workers(
                runner.slots,
                init=runner.init,
                options={**runner.options, "directory": str(self.directory)},
                recycle=runner.recycle,
                directory=self.directory,
            )
        return BoardPool(
            *protocol.split_remote(remote),
            wait=WAIT if wait is None else wait,
            report=report,
            options=runner.options,
            directory=self.directory,
            identity=self.device.board,
        )

    def _make_builders(
        self, cluster: str | None, wait: float | None, report: Callable[[str], None]
    ) -> Workers | Cluster:
        builder = self.builder
        if cluster is not None:
            return Cluster(cluster, builder, wait=WAIT if wait is None else wait, report=report)
        return Workers(
            self.slots, init=builder.init, options=builder.options, directory=self.directory
        )

    def _batch(
        self,
        candidates: Sequence[tuple[Implementation, Any]],
        options: dict[str, Any] | None = None,
        *,
        urgent: bool = False,
    ) -> Batch:
        def again(n: int) -> Any:
            return self._submit([(*candidates[n], False)], options)[0]

        wanted = [(i, trace, False) for i, trace in candidates]
        return Batch(self._submit(wanted, options, urgent=urgent), again)

    def _submit(
        self,
        wanted: Sequence[tuple[Implementation, Any, bool]],
        options: dict[str, Any] | None = None,
        *,
        urgent: bool = False,
    ) -> list[Any]:
        """Start building candidates with the builder's options and ``options``; those that are
        ``urgent`` before others."""
        handles = [
            self._builders.submit(
                BUILD,
                (
                    self._workload(implementation),
                    trace,
                    whole,
                    self.builder.build,
                    *self._target_and_options(trace, options or {}),
                    str(self.directory),
                ),
                self.timing.build_timeout,
                urgent=urgent,
            )
            for implementation, trace, whole in wanted
        ]
        self._building = [h for h in self._building if not h.done()] + handles
        return handles

    def _target_and_options(
        self, trace: Any, options: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Target and options for a candidate, or for an unscheduled workload: a reference."""
        target, own, reference = self.device.target, self.builder.options, self.builder.reference
        if trace is None:
            own = {**own, "reference": True}
            if reference is not None:
                target, own = reference.target, {**own, **reference.options}
        return target, {**own, **options}

    def _collect(
        self, handles: Sequence[Any], on_result: Callable[[int, Outcome], None] | None = None
    ) -> list[Outcome]:
        outcomes: list[Outcome] = []

        def classify(n: int, outcome: Outcome) -> None:
            if outcome.message.startswith(TRACE_NOT_APPLICABLE):
                outcome = replace(outcome, stage="space")
            outcomes.append(self._recovery.blame(outcome))
            if on_result is not None:
                on_result(n, outcomes[-1])

        self._builders.collect(
            handles, deadline=self.timing.build_timeout, stage="build", on_result=classify
        )
        return outcomes

    def rest(self) -> None:
        """Wait until all builders are idle."""
        wait(self._building)
        self._building = []

    def _workload(self, implementation: Implementation) -> str:
        path = self.directory / f"{implementation.workload_key}.json"
        if not path.exists():
            import tvm

            text = tvm.ir.save_json(implementation.mod)
            self._recovery.persist(lambda: atomic_write.write_text(path, text))
        return str(path)

    def close(self) -> None:
        self._builders.close()
        self._runners.close()
        self._files.close()

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _measured(outcome: Outcome) -> Measurement:
    if outcome.ok:
        return Measurement(seconds=tuple(outcome.value))
    return Measurement(stage=outcome.stage, message=outcome.message)  # type: ignore[arg-type]


def _discard(handle: Any) -> None:
    """Remove the library of a finished build that is no longer needed."""
    with contextlib.suppress(Exception):
        Path(handle.result().value[0]).unlink()


def _done(outcome: Outcome) -> Future[Outcome]:
    """The handle of a build that is done."""
    handle: Future[Outcome] = Future()
    handle.set_result(outcome)
    return handle
