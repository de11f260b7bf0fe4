"""The public Python API, in the order of the flow.

``load`` a network, ``plan`` it for a target, ``tune`` the plan, and ``compile`` it; or ``ship`` it:
compile it with and without the tuned records, check both, and keep the better library.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune import host, networks, phases
from tvmtune.errors import TvmtuneError, UsageError, nearest, one_line
from tvmtune.machine import board_identity, cpu_count, package_versions, scratch, triples
from tvmtune.networks import int8
from tvmtune.records import shipped
from tvmtune.records.database import read_records
from tvmtune.records.log import Log, read_log
from tvmtune.remote.client import boards
from tvmtune.tasks.plan import Plan
from tvmtune.types import Network, Task, Timing

if TYPE_CHECKING:
    import numpy as np

    from tvmtune.bench.peers import Peer
    from tvmtune.compiling.compile import Compiled
    from tvmtune.compiling.ship import Shipped
    from tvmtune.tuning.budget import Budget
    from tvmtune.tuning.observer import Observer
    from tvmtune.tuning.session import TuningSession
    from tvmtune.tuning.simulation.simulate import Simulation

__all__ = [
    "Plan",
    "compile",
    "compile_untuned",
    "load",
    "plan",
    "read_log",
    "ship",
    "simulate",
    "tune",
]

load = networks.load


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
    described_only: bool = False,
) -> Plan:
    """Prepare a network for a target and extract its tasks.

    ``attrs``: attributes of the target. ``params`` overrides hardware parameters; one that TVM's
    target also has is set there. ``remote``: boards that a tracker knows, as ``KEY`` or
    ``KEY@HOST:PORT``; the target is theirs. ``calibration``: sample inputs for int8 quantization by
    input name, (M x N, ...) for M runs. ``measured``: kernels have to run, so the accelerator must be
    present. ``described_only``: the plan is only looked at; where nothing is known of the accelerator,
    a typical one is assumed, with a warning. Raises :class:`UsageError` for unknown names and for
    samples that do not fit, :class:`TvmtuneError` for a missing accelerator.
    """
    package_versions.check_pins()
    backend = host.backend(target)
    with boards.asked() as described:
        device = backend.make_target(dict(attrs or {}), remote)
        if measured and remote is not None and not described:
            # Nothing was to be asked, but runs of one log need equal boards. One that is busy passes.
            with contextlib.suppress(TvmtuneError):
                boards.ask(remote)
    if device.assumed:
        if not described_only:
            raise TvmtuneError(device.assumed)
        warnings.warn(f"assuming {device.model}: {device.assumed}", stacklevel=2)
    if measured and device.absent:
        raise TvmtuneError(
            f"there is no {device.model} in this machine to measure on. Name boards that have one with "
            "--remote KEY, or tune on a machine that has one; compile needs none."
        )
    here = remote is None and triples.runs_here(device.mtriple)
    cpu_count.set_threads(device.threads if here else cpu_count.usable_cpus())
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
        device = replace(device, params={**known, **params})
    device = replace(device, board=board_identity.of(described[0] if described else None))
    if measured and device.board:
        backend.make_runner(device)  # refuses a board that cannot run the code, before any is made
    if int8.is_wanted(network) and not backend.calibrates:
        raise UsageError(f"backend '{target}' does not support int8: omit --dtype int8")
    phases.report("preparing the network")
    prepared = backend.prepare(network, device, layout, calibration)
    phases.report("extracting tasks")
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
    scheduler: str = "gradient",
    tasks: Sequence[Task] | None = None,
    seed: int = 0,
    wait: float | None = None,
    build_cluster: str | None = None,
    shipped_records: bool = True,
    observer: Observer | None = None,
) -> TuningSession:
    """Tune until the budget is spent; an existing log of the same network and device is continued.

    ``log``: where every trial is written at once, by default :meth:`Plan.default_log` in the current
    directory. ``budget``: 64 trials without a gain of 1%, or 30 minutes, by default. ``tasks``: those
    of the plan to tune, all by default. ``transfer``: other logs, of any network and device, to learn
    from. ``observer``: shows the progress (:func:`tvmtune.progress`), none by default. The other
    options are those of :class:`tvmtune.tuning.options.TuneOptions`.

    Returns the finished session: ``new`` and ``total`` trials, of this run and with earlier ones;
    ``elapsed`` seconds; ``stopped_because``; ``estimate()``, the network's latency in seconds by its
    fastest kernels. Raises :class:`UsageError` for a wrong option, and for a tuner that does not suit
    the space; :class:`TvmtuneError` for a log of another network, device or version, for one that
    another process writes to, if too many trials fail, and if there are no boards.
    """
    from tvmtune.tuning import transfer as transfers
    from tvmtune.tuning.budget import Budget
    from tvmtune.tuning.options import TuneOptions
    from tvmtune.tuning.run import TuningRun

    options = TuneOptions(
        budget=budget or Budget(),
        timing=timing or Timing(),
        tuner=tuner,
        tuner_options=tuner_options or {},
        scheduler=scheduler,
        seed=seed,
        wait=wait,
        build_cluster=build_cluster,
        shipped_records=shipped_records,
    )
    path = Path(log) if log else plan.default_log()
    others = transfers.read(transfer, path)
    with TuningRun(plan, path, options, tasks=tasks, transfer=others) as run:
        return run.tune(observer)


def compile(
    plan: Plan,
    output: str | Path,
    logs: Sequence[str | Path] = (),
    *,
    check_seed: int | None = 0,
    shipped_records: bool = True,
) -> Compiled:
    """Compile the plan with the best records of ``logs`` into the library ``output`` (``.so``).

    A directory among them is read as a MetaSchedule database. Tasks without a record take one that
    comes with tvmtune for this processor and number of threads, or this model of GPU, unless
    ``shipped_records`` is false, or else a default schedule.

    Where this machine can run the library, it is checked against the network's reference before
    ``output`` is replaced. If the fastest kernels together round too much, some fall back to more
    accurate ones. ``check_seed`` seeds the inputs of the check; None skips it, and stores no reference
    outputs for ``bench --check``. Returns the library's ``path``, its ``metadata``, and ``counts`` of
    tasks by the kind of their record. Raises :class:`TvmtuneError` if the output is still wrong, for a
    log that cannot be read or has no record of this device, and if ``output`` cannot be written.
    """
    from tvmtune.bench.verify import make_check
    from tvmtune.compiling.accuracy_fallbacks import accuracy_fallbacks
    from tvmtune.compiling.compile import WrongOutput, can_check, compile_library

    if check_seed is not None:
        phases.report("computing the reference's outputs")
    check = None if check_seed is None else make_check(plan.network, check_seed)
    checked = check is not None and can_check(plan)
    wrong = None
    found = shipped.for_compiling(plan.device, exact_only=not checked) if shipped_records else None
    read = [read_records(Path(p), plan.device) for p in logs]
    for attempt in accuracy_fallbacks(read, plan.tasks, plan.device, found):
        try:
            compiled = compile_library(
                plan,
                attempt.records,
                Path(output),
                check=check,
                verify_output=True,
                exact_defaults=attempt.exact_defaults or not checked,
            )
        except WrongOutput as error:
            wrong = wrong or error
        else:
            return replace(compiled, fallbacks=attempt.fallbacks)
    raise wrong or AssertionError("there is at least one attempt")


def compile_untuned(
    plan: Plan,
    output: Path,
    *,
    inputs: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
    wait: float | None = None,
    shipped_records: bool = True,
    say: Callable[[str], None] = lambda message: None,
) -> Compiled:
    """Compile the baseline of :func:`ship`; done before tuning, it reveals problems early.

    If the plan is for boards, the library is checked on one; ``wait`` is how many seconds to wait for
    it, and ``say`` receives messages about it. Raises :class:`TvmtuneError` if this machine cannot run
    the library and no board is named, or if its outputs differ from the reference's;
    :class:`UsageError` if the reference cannot take ``inputs``.
    """
    if plan.device.remote is None and not triples.can_run(plan.device):
        what = plan.device.mtriple or plan.device.model
        raise TvmtuneError(
            f"this machine cannot run libraries for {what}, to check and time them. Name their board "
            "with --remote KEY, or tune with --no-compile and then run tvmtune compile."
        )
    if inputs is not None:
        try:
            plan.network.reference(inputs)
        except TvmtuneError:
            raise
        except Exception as error:  # each framework has its own classes
            raise UsageError(
                f"the network's reference cannot run the given inputs: {one_line(error)}"
            ) from error
    compiled = compile(plan, output, check_seed=seed, shipped_records=shipped_records)
    if plan.device.remote is not None:
        from tvmtune.compiling.ship import check_on_board

        check_on_board(compiled, plan.device, wait, say)
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
    repeat: int | None = None,
    wait: float | None = None,
    shipped_records: bool = True,
    say: Callable[[str], None] = lambda message: None,
) -> Shipped:
    """Compile with and without the records of ``logs`` and ship the better library.

    ``shipped_records``: whether both take those that come with tvmtune for tasks without a record in
    ``logs``. ``untuned`` may come from :func:`compile_untuned`. An operator from a kernel file is also
    timed without any schedule, and beside its reference in NumPy. See
    :func:`tvmtune.compiling.ship.ship` for the other arguments.
    """
    from tvmtune.compiling.accuracy_fallbacks import accuracy_fallbacks
    from tvmtune.compiling.compile import can_check
    from tvmtune.compiling.ship import ship

    found = None
    if shipped_records:
        found = shipped.for_compiling(plan.device, exact_only=not can_check(plan))
    read = [read_records(Path(p), plan.device) for p in logs]
    attempts = accuracy_fallbacks(read, plan.tasks, plan.device, found)
    with scratch.folder(scratch.WORK) as folder:
        before = untuned or compile_untuned(
            plan,
            folder / "untuned.so",
            seed=seed,
            wait=wait,
            shipped_records=shipped_records,
            say=say,
        )
        return ship(
            plan,
            attempts,
            before,
            Path(output),
            peers=peers,
            inputs=inputs,
            seed=seed,
            repeat=repeat,
            wait=wait,
            say=say,
        )


def simulate(
    log: str | Path,
    tuners: Sequence[str] = ("xgb",),
    *,
    options: Mapping[str, Any] | None = None,
    seeds: Sequence[int] = range(10),
    trials: int | None = None,
) -> Simulation:
    """Compare tuners on the spaces that a log holds in full, one run per seed.

    ``options`` go to those tuners that have them; ``trials`` limits each run. Raises
    :class:`UsageError` for an unknown tuner or option, :class:`TvmtuneError` for a log that holds no
    such space.
    """
    from tvmtune.tuning.simulation import simulate as simulation

    wanted = simulation.check(tuners, options or {})
    return simulation.simulate(read_log(Path(log)), wanted, seeds=seeds, trials=trials)
