"""Build candidates on other machines, with a Dask cluster (https://distributed.dask.org).

:class:`Cluster` has the interface of :class:`tvmtune.workers.Workers` for the one function that
builders call. Dask distributes the candidates, and redistributes those of a machine that is gone.
Each machine builds in worker processes as this one does (cluster_worker.py), with the same deadlines,
and the library comes back as a file.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvmtune.errors import TvmtuneError, UsageError, last_line
from tvmtune.machine import faults
from tvmtune.measure import cluster_worker
from tvmtune.types import BuilderSpec
from tvmtune.workers import Outcome, gather

POLL_INTERVAL = 2.0
"""Seconds between two checks of the cluster."""
CONNECT_TIMEOUT = 10.0
"""Seconds to reach the scheduler, or to fetch a library."""
FETCHERS = 4
"""Libraries fetched concurrently."""
TRIES = 4
"""How often a candidate is submitted, if machines turn out to be unusable or gone."""


class NoBuilder(TvmtuneError):
    """There is no cluster to build on, or it is gone."""


@dataclass(eq=False)
class _Call:
    """A function to be called on some machine, and its result."""

    function: str
    workload: tuple[str, str]
    arguments: tuple[Any, ...]
    directory: Path
    deadline: float
    urgent: bool
    handle: Future[Outcome] = field(default_factory=Future)
    tries: int = 0

    def resolve(self, outcome: Outcome) -> None:
        with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
            self.handle.set_result(outcome)

    def fail(self, error: Exception) -> None:
        with contextlib.suppress(InvalidStateError):
            self.handle.set_exception(error)


class Cluster:
    """Builds candidates on the cluster whose scheduler has ``address``, e.g. ``tcp://10.0.0.1:8786``.

    ``wait``: seconds without any machine after which the run ends; ``report`` receives messages about
    waits and unusable machines. Raises :class:`UsageError` if Dask is missing or the address is
    invalid, :class:`NoBuilder` if there is no scheduler, no machine, or one whose versions or linker
    differ from this machine's.
    """

    def __init__(
        self,
        address: str,
        builder: BuilderSpec,
        *,
        wait: float,
        report: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.address = address
        self.wait = wait
        self._report_message = report
        self._setup = cluster_worker.Setup.of(builder)
        self._client = _connect(address)
        self._lock = threading.Lock()
        self._pending: set[_Call] = set()
        self._unusable: set[str] = set()
        """Addresses of machines that cannot be used, and that the user was told about."""
        self._closed = threading.Event()
        self._fetchers = ThreadPoolExecutor(FETCHERS, thread_name_prefix="cluster")
        try:
            self._check_machines()
        except BaseException:
            self.close()
            raise
        self._watcher = threading.Thread(target=self._watch, name="cluster", daemon=True)
        self._watcher.start()

    def submit(
        self, function: str, call: tuple[Any, ...], deadline: float, *, urgent: bool = False
    ) -> Future[Outcome]:
        """Queue ``function(*call)``, before calls that are not ``urgent``. The first argument is the
        path of a file to read, the last a directory; the function writes a file there and returns its
        path first. The handle is for :meth:`collect`."""
        workload, *arguments, directory = call
        queued = _Call(
            function,
            (Path(workload).name, Path(workload).read_text()),
            tuple(arguments),
            Path(directory),
            deadline,
            urgent,
        )
        with self._lock:
            self._pending.add(queued)
        queued.handle.add_done_callback(lambda _: self._forget(queued))
        self._send(queued)
        return queued.handle

    def collect(
        self,
        handles: Sequence[Future[Outcome]],
        *,
        deadline: float,
        stage: str,
        on_result: Callable[[int, Outcome], None] | None = None,
    ) -> list[Outcome]:
        """As :meth:`tvmtune.workers.Workers.collect`; raises :class:`NoBuilder` if the cluster is
        gone."""

        def wait(handle: Future[Outcome]) -> Outcome:
            try:
                return handle.result()
            except CancelledError:
                return Outcome(stage="crash", message="cancelled")

        return gather(handles, wait, on_result, lambda: _cancel(handles))

    def close(self) -> None:
        """Disconnect from the cluster and drop its remaining builds."""
        self._closed.set()
        with self._lock:
            pending = [call.handle for call in self._pending]
        _cancel(pending)
        self._fetchers.shutdown(wait=False, cancel_futures=True)
        with contextlib.suppress(Exception):
            self._sync(
                self._client._run, cluster_worker.leave, self._setup.session, on_error="ignore"
            )
        with contextlib.suppress(Exception):
            self._client.close(timeout=CONNECT_TIMEOUT)

    def machines(self) -> dict[str, Any] | None:
        """The scheduler's description of its workers, by address; None if it does not answer."""
        with contextlib.suppress(Exception):
            return dict(self._sync(self._client.scheduler.identity, n_workers=-1)["workers"])
        return None

    def _sync(self, function: Any, *arguments: Any, **options: Any) -> Any:
        """Call a coroutine function of the client, within :data:`CONNECT_TIMEOUT` seconds."""
        if self._client.status != "running":
            raise NoBuilder("the client is not connected")
        return self._client.sync(function, *arguments, callback_timeout=CONNECT_TIMEOUT, **options)

    def _report(self, message: str) -> None:
        with contextlib.suppress(Exception):  # must not end a thread that work depends on
            self._report_message(message)

    def _check_machines(self) -> None:
        """Wait for machines, and check that all can be used."""
        if not self.machines():
            self._report(f"waiting for builders at {self.address}, up to {self.wait:.0f} s")
            with contextlib.suppress(TimeoutError):
                self._client.wait_for_workers(1, timeout=self.wait)
        if not (machines := self.machines()):
            raise NoBuilder(
                f"the scheduler at {self.address} has no workers: start some with "
                f"'dask worker {self.address}'."
            )
        answers: dict[str, Any] = dict.fromkeys(machines, TimeoutError("it does not answer"))
        with contextlib.suppress(TimeoutError):
            answers |= self._sync(
                self._client._run, cluster_worker.trouble, self._setup, on_error="return"
            )
        for machine, answer in sorted(answers.items()):
            if isinstance(answer, OSError):  # timeouts and broken connections
                self._exclude(machine, last_line(answer))
                continue
            if isinstance(answer, Exception):
                answer = f"{last_line(answer)}. tvmtune must be installed there, too"
            if answer:
                raise NoBuilder(f"the builder at {machine} cannot be used: {answer}.")
        if self._unusable >= set(answers):
            raise NoBuilder(
                f"none of the builders at {self.address} answers: restart their Dask workers."
            )

    def _exclude(self, machine: str, reason: str) -> None:
        with self._lock:
            reported, self._unusable = machine in self._unusable, self._unusable | {machine}
        if not reported:
            self._report(f"the builder at {machine} cannot be used: {reason}")

    def _forget(self, call: _Call) -> None:
        with self._lock:
            self._pending.discard(call)

    def _send(self, call: _Call) -> None:
        call.tries += 1
        placement: dict[str, Any] = {}
        with self._lock:
            unusable = set(self._unusable)
        if unusable:
            usable = set(self.machines() or ()) - unusable
            if not usable:
                call.fail(self._gone("none of its machines can be used"))
                return
            placement = {"workers": sorted(usable), "allow_other_workers": False}
        try:
            task = self._client.submit(
                cluster_worker.build,
                self._setup,
                call.function,
                call.workload,
                call.arguments,
                call.deadline,
                key=f"tvmtune-build-{uuid.uuid4().hex}",
                pure=False,
                priority=int(call.urgent),
                **placement,
            )
            call.handle.add_done_callback(lambda _: _release(task))
            task.add_done_callback(lambda done: self._fetch_soon(call, done))
        except Exception as error:  # the client raises many classes if the scheduler is gone
            call.fail(self._gone(last_line(error)))

    def _fetch_soon(self, call: _Call, task: Any) -> None:
        """Called in the only thread that the client has for this."""
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self._fetchers.submit(self._fetch, call, task)

    def _fetch(self, call: _Call, task: Any) -> None:
        if self._closed.is_set() or call.handle.done():
            return
        if task.status in ("cancelled", "lost"):
            call.fail(self._gone("its scheduler has dropped the work"))
            return
        retry = ""
        try:
            outcome, library = task.result(timeout=CONNECT_TIMEOUT)
            if outcome.stage == cluster_worker.UNUSABLE:
                machine, retry = outcome.value, outcome.message
                self._exclude(machine, retry)
        except TimeoutError:
            retry = "a machine does not return the candidate that it built"
        except Exception as error:
            if type(error).__name__ == "KilledWorker":
                what = "the builder's machine or its Dask worker died of it, several times"
                call.resolve(Outcome(stage="crash", message=what))
            else:
                call.fail(self._gone(last_line(error)))
            return
        if retry:
            if call.tries < TRIES:
                self._send(call)
            else:
                call.fail(self._gone(retry))
        elif not outcome.ok:
            call.resolve(outcome)
        else:
            path = call.directory / Path(outcome.value[0]).name
            try:
                path.write_bytes(library)
            except OSError as error:
                message = f"cannot write {path}: {error.strerror}"
                call.resolve(
                    Outcome(stage="build", message=message, fault=faults.of_error(error) or "disk")
                )
            else:
                call.resolve(Outcome(value=(str(path), *outcome.value[1:])))

    def _watch(self) -> None:
        """Give up if there has been no machine for too long."""
        without: float | None = None
        reported = False
        while not self._closed.wait(POLL_INTERVAL):
            with self._lock:
                pending = list(self._pending)
            machines = self.machines() if pending else {}
            if not pending or machines:
                without, reported = None, False
                continue
            now = time.monotonic()
            without = without or now
            if now - without > self.wait:
                what = "its scheduler does not answer" if machines is None else "it has no workers"
                for call in pending:
                    call.fail(self._gone(f"{what} since {now - without:.0f} s"))
            elif not reported:
                reported = True
                self._report(f"waiting for builders at {self.address}, up to {self.wait:.0f} s")

    def _gone(self, reason: str) -> NoBuilder:
        return NoBuilder(f"the build cluster at {self.address} failed: {reason.rstrip('.')}.")


def _connect(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError(
            f"--build-cluster needs Dask ({last_line(error)}): pip install 'tvmtune[cluster]'"
        ) from None
    # Errors are reported as one message of ours, not as pages of Dask's logs.
    for name in ("distributed", "distributed.client", "tornado", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        return Client(address, timeout=CONNECT_TIMEOUT, set_as_default=False, name="tvmtune")
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"'{address}' is not the address of a Dask scheduler ({last_line(error)}): it looks like "
            "tcp://HOST:8786"
        ) from None
    except Exception as error:  # no connection, in many classes
        raise NoBuilder(
            f"there is no Dask scheduler at {address} ({last_line(error)}). 'dask scheduler' starts "
            "one"
        ) from None


def _cancel(handles: Sequence[Future[Any]]) -> None:
    for handle in handles:
        if handle.cancel():
            with contextlib.suppress(InvalidStateError, RuntimeError):
                handle.set_running_or_notify_cancel()


def _release(task: Any) -> None:
    """Tell the cluster that a task, or its result, is no longer needed."""
    with contextlib.suppress(Exception):
        task.release()
