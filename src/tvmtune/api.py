"""The public Python API: what the commands call, in the order of the flow.

``load`` a network, ``plan`` it for a target, ``tune`` the plan, ``compile`` it; or ``ship`` it: compile
it with and without what was tuned, check both, and keep the better one.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune import host, networks, system
from tvmtune.errors import TvmtuneError, UsageError, nearest
from tvmtune.networks import int8
from tvmtune.networks.model_file import one_line
from tvmtune.records import header
from tvmtune.records.log import Log, LogWriter, read_log
from tvmtune.types import (
    JSON,
    Device,
    Network,
    Prepared,
    Task,
    Timing,
    Trial,
    batch_of,
    is_operator,
)

if TYPE_CHECKING:
    import numpy as np

    from tvmtune.deploy.compile import Compiled
    from tvmtune.deploy.peers import Peer
    from tvmtune.deploy.ship import Shipped
    from tvmtune.tuning.budget import Budget
    from tvmtune.tuning.observer import Observer
    from tvmtune.tuning.session import Session
    from tvmtune.tuning.simulate import Simulation

load = networks.load


@dataclass
class Plan:
    """A network prepared for a device, with its tasks."""

    backend: host.Backend
    device: Device
    prepared: Prepared
    tasks: list[Task] = field(default_factory=list)

    @property
    def network(self) -> Network:
        return self.prepared.network

    def default_log(self) -> Path:
        """``NETWORK-LAYOUT-Bbatch-KIND.json`` in the working directory; behind the network's name
        stand another dtype than float32, shapes that were given, and the arguments of an operator,
        behind the kind the key of the boards."""
        source = self.network.source
        words = [self.network.name, source.get("dtype", "")]
        words += [f"{key}{value}" for key, value in source.get("arguments", {}).items()]
        words += ["x".join(map(str, dims)) for dims in source.get("shapes", {}).values()]
        batch = batch_of(source, self.network.inputs)
        words += [self.prepared.layout, f"B{batch}", self.device.backend]
        words += [self.device.key or ""]
        return Path("-".join(filter(None, words)).replace("/", "_") + ".json")


def plan(
    network: Network,
    target: str = "cpu",
    *,
    attrs: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    layout: str | None = None,
    remote: str | None = None,
    calibration: Mapping[str, np.ndarray] | None = None,
    measured: bool = False,
) -> Plan:
    """Prepare a network for a target and cut it into tasks.

    ``params`` overrides hardware parameters; those that TVM's target has, too, as target attributes of
    the backend's. ``remote``: the
    key of boards that a tracker knows, as ``KEY`` or ``KEY@HOST:PORT``; the target is theirs then.
    ``calibration``: sample inputs by their names, (M x N, ...) for M runs, for targets that compute in
    whole numbers. ``measured``: the plan is of use only where kernels can be run. Raises
    :class:`UsageError` for unknown names, and for samples that do not fit; :class:`TvmtuneError` for an
    accelerator that is not there and has to be.
    """
    system.check_pins()
    backend = host.backend(target)
    device = backend.make_target(dict(attrs or {}), remote)
    if measured and device.absent:
        raise TvmtuneError(
            f"there is no {device.model} in this machine to measure on: name boards that have one with "
            "--remote KEY, or tune on a machine that has one; compile needs none."
        )
    here = remote is None and system.runs_here(device.mtriple)
    system.set_threads(device.threads if here else system.usable_cpus())
    if params:
        known = backend.hardware_params(device)
        for name in params:
            if name not in known:
                raise UsageError(
                    f"hardware parameter '{name}' is not known.{nearest(name, [*known])}"
                )
        own = {name: value for name, value in params.items() if name in device.target}
        if own:
            device = backend.make_target({**(attrs or {}), **own}, remote)
        device = Device.from_json({**device.to_json(), "params": {**known, **params}})
    if int8.is_wanted(network) and not backend.calibrates:
        raise UsageError(f"backend '{target}' does not compute in int8: leave --dtype int8 away.")
    prepared = backend.prepare(network, device, layout, calibration)
    return Plan(backend, device, prepared, backend.extract_tasks(prepared, device))


def tune(
    plan: Plan,
    log: str | Path | None = None,
    *,
    budget: Budget | None = None,
    timing: Timing | None = None,
    tuner: str = "xgb",
    tuner_options: Mapping[str, Any] | None = None,
    transfer: Sequence[str | Path | Log] = (),
    scheduler: str = "effect",
    tasks: Sequence[Task] | None = None,
    seed: int = 0,
    wait: float | None = None,
    build_cluster: str | None = None,
    observer: Observer | None = None,
) -> Session:
    """Tune until the budget is spent; an existing log of the same network and device is continued.

    Where the plan is for boards, ``wait`` is how many seconds the run goes without any before it is
    given up, 600 by default. ``build_cluster`` is the address of a Dask scheduler whose machines build
    the candidates. ``transfer`` names other logs, of any network and device, to learn
    from. Raises :class:`UsageError` for a tuner that does not suit the space, and
    :class:`TvmtuneError` for a log of another network, device or version, for one that another
    process writes to, if too many trials fail, and if there are no boards.
    """
    from tvmtune.measure.measurer import Measurer
    from tvmtune.tuning import transfer as transfers
    from tvmtune.tuning import tuners
    from tvmtune.tuning.budget import Budget
    from tvmtune.tuning.scheduler import check as check_scheduler
    from tvmtune.tuning.session import Session

    begun = time.monotonic()
    path = Path(log) if log else plan.default_log()
    chosen = list(tasks if tasks is not None else plan.tasks)
    budget = budget or Budget()
    tuners.check_space(tuner, chosen, budget.limited)
    tuners.check_options(tuner, tuner_options or {})
    check_scheduler(scheduler)
    header.earlier(path, plan.prepared)
    others = transfers.read(transfer, path)
    builder, runner = plan.backend.make_builder(plan.device), plan.backend.make_runner(plan.device)
    with (
        LogWriter(path) as writer,
        Measurer(
            plan.device,
            builder,
            runner,
            timing or Timing(),
            wait=wait,
            build_cluster=build_cluster,
            say=observer.noted if observer else lambda message: None,
        ) as measurer,
    ):
        # Once more under the lock: another run may have ended between the look and the lock.
        history = header.earlier(path, plan.prepared)
        peak = measurer.peak()
        header.begin(writer, plan.prepared, plan.tasks, history, peak)
        mine = plan.device.identity()
        trials, changed = header.usable(history, plan.tasks) if history else ([], [])
        if changed:
            warnings.warn(
                f"the template of {', '.join(changed)} has been changed since {path} was begun: its "
                "trials there are not counted",
                stacklevel=2,
            )
        session = Session(
            chosen,
            plan.device,
            measurer,
            writer,
            budget=budget.with_defaults(),
            history=[t for t in trials if t.device == mine],
            others=others,
            tuner=tuner,
            tuner_options=tuner_options,
            scheduling=scheduler,
            seed=seed,
            peak=peak,
            observer=observer,
            begun=begun,
        )
        session.run()
    return session


def compile(
    plan: Plan, output: str | Path, logs: Sequence[str | Path] = (), *, check_seed: int | None = 0
) -> Compiled:
    """Compile the plan with the best records of ``logs``; without any, with default schedules.

    The library is checked against the network's reference before it takes its place, where this
    machine can run it. If the quickest kernels together round too much, some are given up for ones
    that round less. Raises :class:`TvmtuneError` if it is wrong all the same. ``check_seed`` None
    leaves that out, and with it the reference outputs that ``bench --check`` compares with.
    """
    from tvmtune.deploy.compile import WrongOutput, reference_check
    from tvmtune.deploy.rounding import milder_and_milder

    check = None if check_seed is None else reference_check(plan.prepared, check_seed)
    wrong = None
    for attempt in milder_and_milder([read_log(Path(p)) for p in logs], plan.tasks, plan.device):
        try:
            compiled = _library(
                plan, attempt.records, Path(output), check, verify_it=check is not None
            )
        except WrongOutput as error:
            wrong = wrong or error
        else:
            return replace(compiled, given_up=attempt.given_up)
    raise wrong or AssertionError("there is at least one attempt")


def compile_untuned(
    plan: Plan,
    output: Path,
    log: Path | None = None,
    *,
    inputs: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
    wait: float | None = None,
    say: Callable[[str], None] = lambda message: None,
) -> Compiled:
    """What :func:`ship` compares with; made before tuning, it shows what is wrong in time.

    Where the plan is for boards, it is checked on one, which may take ``wait`` seconds to come; ``say``
    hears of that. Raises :class:`TvmtuneError` if ``log`` is of another network or in use, if this
    machine cannot run the library and no board is named, or if its outputs are not those of the
    network's reference; :class:`UsageError` if the reference cannot take ``inputs``.
    """
    if plan.device.remote is None and not system.can_run(plan.device):
        what = plan.device.mtriple or plan.device.model
        raise TvmtuneError(
            f"this machine cannot run libraries for {what}, to check and time them: "
            "name their board with --remote KEY, or only tune (--no-compile) and then tvmtune compile."
        )
    if log is not None and header.earlier(log, plan.prepared):
        with LogWriter(log):
            pass
    if inputs is not None:
        try:
            plan.network.reference(inputs)
        except TvmtuneError:
            raise
        except Exception as error:  # each framework has its own classes
            raise UsageError(
                f"the network's reference cannot run the given inputs: {one_line(error)}"
            ) from error
    compiled = compile(plan, output, check_seed=seed)
    if plan.device.remote is not None:
        from tvmtune.deploy.ship import check_on_board

        check_on_board(compiled, plan.device.remote, wait, say)
    return compiled


def ship(
    plan: Plan,
    output: str | Path,
    logs: Sequence[str | Path],
    *,
    untuned: Compiled | None = None,
    peers: Sequence[Peer] = (),
    inputs: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
    wait: float | None = None,
    say: Callable[[str], None] = lambda message: None,
) -> Shipped:
    """Compile with and without the records of ``logs`` and hand over the better library.

    ``untuned`` may come from :func:`compile_untuned`. An operator from a kernel file is also timed
    beside its untuned self, its loops as they are written, and its reference in NumPy. See
    :func:`tvmtune.deploy.ship.ship`.
    """
    from tvmtune.deploy.rounding import milder_and_milder
    from tvmtune.deploy.ship import ship

    attempts = milder_and_milder([read_log(Path(p)) for p in logs], plan.tasks, plan.device)
    with tempfile.TemporaryDirectory(prefix=f"tvmtune-{os.getpid()}-ship-") as folder:
        before = untuned or compile_untuned(
            plan, Path(folder) / "untuned.so", seed=seed, wait=wait, say=say
        )
        tuned = (
            replace(
                _library(
                    plan,
                    attempt.records,
                    # the loader takes a library of the same name for the same
                    Path(folder) / f"tuned-{attempt.given_up}.so",
                    before.metadata["check"],
                ),
                given_up=attempt.given_up,
            )
            for attempt in attempts
        )
        return ship(
            tuned,
            before,
            plan.network,
            Path(output),
            written=_as_written(plan, Path(folder), before) if is_operator(plan.network) else None,
            peers=peers,
            inputs=inputs,
            seed=seed,
            wait=wait,
            say=say,
        )


def _as_written(plan: Plan, folder: Path, like: Compiled) -> Compiled | None:
    """An operator without any schedule; None for GPUs, which take no loops without threads."""
    if plan.device.runtime != "cpu":
        return None
    task = plan.tasks[0]
    bare = Trial(task.key, task.implementations[0].name, task.key, candidate="", trace=[[], []])
    return _library(plan, {task.key: bare}, folder / "as_written.so", like.metadata["check"])


def _library(
    plan: Plan,
    records: Mapping[str, Trial],
    path: Path,
    check: JSON | None,
    *,
    verify_it: bool = False,
) -> Compiled:
    """The plan as a library with these records, by the keys of its tasks."""
    from tvmtune.deploy.compile import compile_library

    return compile_library(
        plan.backend,
        plan.prepared,
        plan.tasks,
        records,
        plan.device,
        path,
        check=check,
        verify_it=verify_it,
    )


def simulate(
    log: str | Path,
    tuners: Sequence[str] = ("xgb",),
    *,
    options: Mapping[str, Any] | None = None,
    seeds: Sequence[int] = range(10),
    trials: int | None = None,
) -> Simulation:
    """Compare tuners on the spaces that a log holds in full, a run for each seed.

    ``options`` go to those of the tuners that have them, ``trials`` ends a run early. Raises
    :class:`UsageError` for a tuner or an option that does not exist, :class:`TvmtuneError` for a log
    that holds no such space.
    """
    from tvmtune.tuning import simulate as simulation

    wanted = simulation.check(tuners, options or {})
    return simulation.simulate(read_log(Path(log)), wanted, seeds=seeds, trials=trials)
