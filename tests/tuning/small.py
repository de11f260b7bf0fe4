"""Tasks that build in milliseconds, and build functions that fail on purpose."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune import host
from tvmtune.measure import local
from tvmtune.measure.measurer import Measurer
from tvmtune.passes.workload_keys import anchor_key, structure, workload_key
from tvmtune.records.log import FORMAT, LogWriter, read_log
from tvmtune.spaces.rule_space import RuleSpace
from tvmtune.spaces.template_space import TemplateSpace
from tvmtune.tuning.budget import Budget
from tvmtune.tuning.observer import Observer
from tvmtune.tuning.options import TuneOptions
from tvmtune.tuning.session import TuningSession
from tvmtune.types import (
    BuilderSpec,
    Device,
    Implementation,
    RunnerSpec,
    Space,
    Task,
    TensorSpec,
    Timing,
    Trial,
)

if TYPE_CHECKING:
    import tvm

RIGHT, WRONG = "T.float32(3.5)", "T.float32(3.75)"


def device() -> Device:
    made: Device = host.backend("cpu").make_target({"threads": 1}, None)
    return made


def matmul(rows: int) -> tvm.IRModule:
    """3.5 times the product of (rows, 16) and (16, 32)."""
    import tvm
    from tvm import te

    a, b = te.placeholder((rows, 16), name="a"), te.placeholder((16, 32), name="b")
    k = te.reduce_axis((0, 16), name="k")
    c = te.compute((rows, 32), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    d = te.compute((rows, 32), lambda i, j: c[i, j] * tvm.tirx.const(3.5, "float32"), name="d")
    return tvm.IRModule({"main": te.create_prim_func([a, b, d])})


def addition(rows: int) -> tvm.IRModule:
    """Its space has only a few schedules."""
    import tvm
    from tvm import te

    a = te.placeholder((rows, 8), name="a")
    b = te.compute((rows, 8), lambda i, j: a[i, j] + tvm.tirx.const(3.5, "float32"), name="b")
    return tvm.IRModule({"main": te.create_prim_func([a, b])})


def task(
    index: int, mod: tvm.IRModule, *, name: str = "", weight: int = 1, space: Space | None = None
) -> Task:
    from tvm.s_tir.analysis import estimate_tir_flops

    key = workload_key(mod)
    args = tuple(
        TensorSpec(str(p.name), tuple(int(d) for d in p.shape), "float32")
        for p in mod["main"].params
    )
    return Task(
        index=index,
        name=name or f"task{index}",
        key=key,
        anchor_key=anchor_key(mod),
        weight=weight,
        flop=float(estimate_tir_flops(mod)),
        args=args,
        implementations=[
            Implementation("direct", key, mod, space or RuleSpace(device().target, vector=8))
        ],
    )


class Unsearchable:
    """A space with neither a default nor a generator."""

    size = None

    def generator(self) -> Any:
        raise ValueError("this space has no rules")

    def default(self, mod: tvm.IRModule, target: tvm.target.Target) -> Any:
        raise ValueError("this space has no default")


def tiled(mod: tvm.IRModule) -> TemplateSpace:
    """For an addition: its first loop in two, in as many ways as its extent has divisors."""
    import tvm

    def template(sch: Any) -> None:
        first, _ = sch.get_loops(sch.get_sblock("b"))
        sch.split(first, sch.sample_perfect_tile(first, n=2, max_innermost_factor=64))

    return TemplateSpace(template, mod, tvm.target.Target(device().target))


@contextlib.contextmanager
def session(
    log: Path,
    tasks: Sequence[Task],
    *,
    build: str = "tvmtune.measure.local:build",
    run: str = "tvmtune.measure.local:run",
    options: dict[str, Any] | None = None,
    exclusive: bool = True,
    tuner: str = "random",
    scheduling: str = "gradient",
    seed: int = 0,
    observer: Observer | None = None,
    **budget: Any,
) -> Iterator[TuningSession]:
    """A session with real workers that continues ``log``; the caller runs it."""
    target = device()
    builder, runner = (
        host.backend("cpu").make_builder(target),
        host.backend("cpu").make_runner(target),
    )
    made = BuilderSpec(build=build, options=builder.options | (options or {}))
    timed = RunnerSpec(
        run=run,
        check=runner.check,
        init=runner.init,
        exclusive=exclusive,
        options=runner.options,
    )
    history = read_log(log).trials if log.exists() else []
    network = {"name": "small", "structure_hash": "0" * 16, "weights_hash": "0" * 16}
    with LogWriter(log) as writer, Measurer(target, made, timed, Timing(repeat=2)) as measurer:
        writer.append("header", {"format": FORMAT, "device": target.to_json(), "network": network})
        yield TuningSession(
            tasks,
            target,
            measurer,
            writer,
            TuneOptions(Budget(**budget), tuner=tuner, scheduler=scheduling, seed=seed),
            history=history,
            observer=observer,
        )


class Recorder(Observer):
    """Records what a session reports."""

    def __init__(self) -> None:
        self.trials: list[Trial] = []
        self.skips: dict[str, str] = {}
        self.notes: list[str] = []

    def trial(self, state: Any, trial: Trial) -> None:
        self.trials.append(trial)

    def noted(self, message: str) -> None:
        self.notes.append(message)

    def skipped(self, state: Any) -> None:
        self.skips[state.task.name] = state.skipped


# Called by workers.


def build_no_matmul(mod: Any, target: Any, options: dict[str, Any], directory: str) -> str:
    if len(mod["main"].params) == 3:
        raise RuntimeError("this builder knows no multiplication")
    return local.build(mod, target, options, directory)


def build_or_meet_a_fault(mod: Any, target: Any, options: dict[str, Any], directory: str) -> str:
    """Finds the disk full while there is a file ``options["full"]``, and is killed once if there is
    one ``options["kill"]``."""
    if Path(options.get("full", "/nowhere")).exists():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    kill = Path(options.get("kill", "/nowhere"))
    if kill.exists():
        kill.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return local.build(mod, target, options, directory)


def is_wrong(candidate: str) -> bool:
    """Half of all candidates, by the last digit of their digest."""
    return int(candidate, 16) % 2 == 0


def build_every_other_wrong(mod: Any, target: Any, options: dict[str, Any], directory: str) -> str:
    """Scale the output of half of the candidates, and mark their artifacts."""
    candidate = structure(mod)
    if candidate in options["references"] or not is_wrong(candidate):
        return local.build(mod, target, options, directory)
    path = Path(local.build(scaled(mod), target, options, directory))
    marked = path.with_name(f"quick-{path.name}")
    path.rename(marked)
    return str(marked)


def build_all_wrong(mod: Any, target: Any, options: dict[str, Any], directory: str) -> str:
    right = structure(mod) in options["references"]
    return local.build(mod if right else scaled(mod), target, options, directory)


def run_marked_quickly(artifact: str, args: Any, timing: Any, options: dict[str, Any]) -> Any:
    """Wrong kernels are the fastest, as if they skipped work."""
    seconds = local.run(artifact, args, timing, options)
    return [1e-9] * len(seconds) if "quick-" in artifact else seconds


def run_constantly(artifact: str, args: Any, timing: Any, options: dict[str, Any]) -> Any:
    """All kernels are equally fast."""
    return [1e-3] * timing.repeat


def scaled(mod: Any) -> Any:
    import tvm

    source = mod.script()
    assert RIGHT in source
    return tvm.script.from_source(source.replace(RIGHT, WRONG))
