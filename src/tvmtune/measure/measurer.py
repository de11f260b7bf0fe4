"""From proposals to numbers: builders, then the runner, then the check of a leader."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tvmtune.measure.candidate import MISFIT
from tvmtune.measure.workers import Outcome, Workers
from tvmtune.types import BuilderSpec, Device, Implementation, RunnerSpec, Stage, Timing

BUILD = "tvmtune.measure.candidate:build"
CAREFUL = 3
"""How many times more repeats a candidate gets that is measured again before it is trusted."""


@dataclass(frozen=True)
class Measurement:
    """Seconds per repeat, or the stage that failed and its message."""

    seconds: tuple[float, ...] = ()
    stage: Stage | None = None
    message: str = ""


class Measurer:
    """Builds and times candidates of one device in processes that are killed at their deadlines.

    With an exclusive runner, building and timing alternate: while a candidate is timed no builder
    works, and the other way round. Otherwise a candidate is timed as soon as it is built.
    """

    def __init__(
        self, device: Device, builder: BuilderSpec, runner: RunnerSpec, timing: Timing
    ) -> None:
        self.device = device
        self.builder = builder
        self.runner = runner
        self.timing = timing
        _sweep()
        self.directory = Path(tempfile.mkdtemp(prefix=f"tvmtune-{os.getpid()}-"))
        self._references: dict[str, Outcome] = {}
        self._baseline: float | None = None
        """Seconds of the fixed kernel when it was first timed."""
        self._builders = Workers(max(1, device.threads), init=builder.init, options=builder.options)
        self._runners = Workers(
            runner.slots, init=runner.init, options=runner.options, directory=self.directory
        )

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
        results: dict[int, Measurement] = {}
        built: dict[int, Outcome] = {}
        running: list[tuple[int, Any]] = []
        reported = 0

        def report() -> None:
            nonlocal reported
            while reported in results:
                on_result(reported, results[reported])
                reported += 1

        def start(n: int) -> None:
            path, args = built[n].value
            options = {**self.runner.options, "best": best[n] if best else None}
            call = (path, args, self.timing, options)
            handle = self._runners.submit(self.runner.run, call, self.timing.run_timeout)
            running.append((n, handle))

        def has_built(n: int, outcome: Outcome) -> None:
            built[n] = outcome
            if not outcome.ok:
                results[n] = _failed(outcome)
            elif not self.runner.exclusive:
                start(n)

        def has_run(position: int, outcome: Outcome) -> None:
            n = running[position][0]
            results[n] = (
                Measurement(seconds=tuple(outcome.value)) if outcome.ok else _failed(outcome)
            )
            with contextlib.suppress(OSError):
                Path(built[n].value[0]).unlink()
            report()

        self._build([(i, trace, False) for i, trace in candidates], has_built)
        report()
        if self.runner.exclusive:
            for n, outcome in built.items():
                if outcome.ok:
                    start(n)
        self._runners.collect(
            [handle for _, handle in running],
            deadline=self.timing.run_timeout,
            stage="run",
            on_result=has_run,
        )

    def verify(self, implementation: Implementation, trace: Any) -> tuple[float | None, str]:
        """max|y - ref| / max|ref| of a candidate against its own unscheduled workload.

        Infinite where the check took the process down; None with a message where no verdict could be
        reached.
        """
        key = implementation.workload_key
        wanted: list[tuple[Implementation, Any, bool]] = [(implementation, trace, True)]
        if key not in self._references:
            wanted.append((implementation, None, True))
        built = self._build(wanted)
        for outcome in built:
            if not outcome.ok:
                return None, outcome.message
        if len(built) == 2:
            self._references[key] = built[1]
        path, args = built[0].value
        reference = self._references[key].value[0]
        call = (path, reference, args, self.runner.options)
        # An unscheduled convolution is slow: its deadline is not a candidate's.
        deadline = max(60.0, 6 * self.timing.run_timeout)
        outcome = self._runners.map(self.runner.check, [call], deadline=deadline, stage="run")[0]
        with contextlib.suppress(OSError):
            Path(path).unlink()
        if outcome.stage == "crash":
            return float("inf"), outcome.message
        return (outcome.value, "") if outcome.ok else (None, outcome.message)

    def peak(self) -> float | None:
        """The device's best float32 rate in GFLOPS, or None where the runner cannot tell."""
        if self.runner.peak is None:
            return None
        call = (self.device.target, {**self.runner.options, "directory": str(self.directory)})
        outcome = self._runners.map(self.runner.peak, [call], deadline=60.0, stage="run")[0]
        if not outcome.ok:
            warnings.warn(
                f"the device's peak could not be measured: {outcome.message}", stacklevel=2
            )
            return None
        return float(outcome.value)

    def remeasure(self, implementation: Implementation, trace: Any) -> Measurement:
        """Build a candidate afresh and time it with :data:`CAREFUL` times the repeats."""
        found: list[Measurement] = []
        usual = self.timing
        self.timing = replace(usual, repeat=CAREFUL * usual.repeat)
        try:
            self.measure([(implementation, trace)], lambda _, result: found.append(result))
        finally:
            self.timing = usual
        return found[0]

    def drift(self) -> float | None:
        """The time that a fixed kernel takes now, relative to the first time that this was asked.

        None where the runner has no such kernel, or it failed.
        """
        if self.runner.baseline is None:
            return None
        call = (self.device.target, {**self.runner.options, "directory": str(self.directory)})
        outcome = self._runners.map(self.runner.baseline, [call], deadline=60.0, stage="run")[0]
        if not outcome.ok:
            return None
        if self._baseline is None:
            self._baseline = float(outcome.value)
        return float(outcome.value) / self._baseline

    def _build(
        self,
        wanted: Sequence[tuple[Implementation, Any, bool]],
        on_result: Callable[[int, Outcome], None] | None = None,
    ) -> list[Outcome]:
        calls = [
            (
                self._workload(implementation),
                trace,
                whole,
                self.builder.build,
                self.device.target,
                self.builder.options,
                str(self.directory),
            )
            for implementation, trace, whole in wanted
        ]
        outcomes: list[Outcome] = []

        def classify(n: int, outcome: Outcome) -> None:
            misfit = outcome.message.startswith(MISFIT)
            outcomes.append(replace(outcome, stage="space") if misfit else outcome)
            if on_result is not None:
                on_result(n, outcomes[-1])

        self._builders.map(
            BUILD,
            calls,
            deadline=self.timing.build_timeout,
            stage="build",
            on_result=classify,
        )
        return outcomes

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


def _failed(outcome: Outcome) -> Measurement:
    return Measurement(stage=outcome.stage, message=outcome.message)  # type: ignore[arg-type]


def _sweep() -> None:
    """Remove what sessions that were killed have left behind."""
    for path in Path(tempfile.gettempdir()).glob("tvmtune-[0-9]*-*"):
        owner = path.name.split("-")[1]
        if not owner.isdigit() or Path(f"/proc/{owner}").exists():
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
