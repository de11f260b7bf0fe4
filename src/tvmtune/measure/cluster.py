"""Candidates built on other machines, by a cluster of Dask's (https://distributed.dask.org).

:class:`Cluster` has the interface of :class:`tvmtune.workers.Workers` for the one function that
builders call. Dask deals the candidates out, and deals those of a machine that is gone out again. On
each machine they are built in processes as here (cluster_worker.py), with the same deadlines, and what
was built comes back as a file.
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
from tvmtune.measure import cluster_worker
from tvmtune.types import BuilderSpec
from tvmtune.workers import Outcome, gather

LOOK = 2.0
"""Seconds between two looks at the cluster."""
PATIENCE = 10.0
"""Seconds to reach the scheduler, and to fetch a library."""
FETCHERS = 4
"""Libraries that are fetched at once."""
TRIES = 4
"""How often a candidate is given to a machine that then turns out to be unfit, or to be gone."""


class NoBuilder(TvmtuneError):
    """There is no cluster to build on, or not any more."""


class _Failed(Exception):
    """A call that has an outcome, which is not good."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


@dataclass(eq=False)
class _Call:
    """A function to be called on some machine."""

    function: str
    workload: tuple[str, str]
    arguments: tuple[Any, ...]
    directory: Path
    deadline: float
    handle: Future[Any] = field(default_factory=Future)
    tries: int = 0

    def settle(self, value: Any = None, error: Exception | None = None) -> None:
        with contextlib.suppress(InvalidStateError):  # nobody waits for it any more
            if error is None:
                self.handle.set_result(value)
            else:
                self.handle.set_exception(error)


class Cluster:
    """Builds candidates on the cluster whose scheduler has ``address``, e.g. ``tcp://10.0.0.1:8786``.

    ``wait``: seconds without any machine after which the work is given up; ``say`` hears of that
    waiting, and of machines that cannot be used. Raises :class:`UsageError` if Dask is missing or the
    address is none, :class:`NoBuilder` if there is no scheduler, or no machine, or one whose versions
    or linker are not this one's.
    """

    def __init__(
        self,
        address: str,
        builder: BuilderSpec,
        *,
        wait: float,
        say: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.address = address
        self.wait = wait
        self._tell = say
        self._needs = cluster_worker.Needs.of(builder)
        self._client = _connect(address)
        self._lock = threading.Lock()
        self._pending: set[_Call] = set()
        self._unfit: set[str] = set()
        """Addresses of machines that cannot be used, and of which the user knows."""
        self._closed = threading.Event()
        self._fetchers = ThreadPoolExecutor(FETCHERS, thread_name_prefix="cluster")
        try:
            self._meet()
        except BaseException:
            self.close()
            raise
        self._watcher = threading.Thread(target=self._watch, name="cluster", daemon=True)
        self._watcher.start()

    def submit(self, function: str, call: tuple[Any, ...], deadline: float) -> Future[Any]:
        """Have ``function`` called with ``call``, whose first value is the path of a file that it
        reads and whose last is where it puts another, the first thing that it returns. The handle is
        for :meth:`collect`."""
        workload, *arguments, directory = call
        wanted = _Call(
            function,
            (Path(workload).name, Path(workload).read_text()),
            tuple(arguments),
            Path(directory),
            deadline,
        )
        with self._lock:
            self._pending.add(wanted)
        wanted.handle.add_done_callback(lambda _: self._forget(wanted))
        self._give_out(wanted)
        return wanted.handle

    def collect(
        self,
        handles: Sequence[Future[Any]],
        *,
        deadline: float,
        stage: str,
        on_result: Callable[[int, Outcome], None] | None = None,
    ) -> list[Outcome]:
        """As :meth:`tvmtune.workers.Workers.collect`; raises :class:`NoBuilder` if the cluster is
        gone."""

        def wait(handle: Future[Any]) -> Outcome:
            try:
                return Outcome(value=handle.result())
            except _Failed as failed:
                return failed.outcome
            except CancelledError:
                return Outcome(stage="crash", message="cancelled")

        return gather(handles, wait, on_result, lambda: _cancel(handles))

    def close(self) -> None:
        """Let go of the cluster; what it still builds is dropped."""
        self._closed.set()
        with self._lock:
            pending = [call.handle for call in self._pending]
        _cancel(pending)
        self._fetchers.shutdown(wait=False, cancel_futures=True)
        with contextlib.suppress(Exception):
            self._ask(
                self._client._run, cluster_worker.leave, self._needs.session, on_error="ignore"
            )
        with contextlib.suppress(Exception):
            self._client.close(timeout=PATIENCE)

    def machines(self) -> dict[str, Any] | None:
        """What the scheduler says of its workers, by address; None if it does not answer."""
        with contextlib.suppress(Exception):
            return dict(self._ask(self._client.scheduler.identity, n_workers=-1)["workers"])
        return None

    def _ask(self, function: Any, *arguments: Any, **options: Any) -> Any:
        """Call a coroutine function of the client's; it never takes longer than :data:`PATIENCE`."""
        if self._client.status != "running":
            raise NoBuilder("the client is not connected")
        return self._client.sync(function, *arguments, callback_timeout=PATIENCE, **options)

    def _say(self, message: str) -> None:
        with contextlib.suppress(Exception):  # no reason to end a thread that work depends on
            self._tell(message)

    def _meet(self) -> None:
        """Wait for machines, and look whether all can be used."""
        if not self.machines():
            self._say(f"waiting for builders at {self.address}, up to {self.wait:.0f} s")
            with contextlib.suppress(TimeoutError):
                self._client.wait_for_workers(1, timeout=self.wait)
        if not (there := self.machines()):
            raise NoBuilder(
                f"the scheduler at {self.address} has no workers: start some with "
                f"'dask worker {self.address}'."
            )
        answers: dict[str, Any] = dict.fromkeys(there, TimeoutError("it does not answer"))
        with contextlib.suppress(TimeoutError):
            answers |= self._ask(
                self._client._run, cluster_worker.trouble, self._needs, on_error="return"
            )
        for machine, answer in sorted(answers.items()):
            if isinstance(answer, OSError):  # timeouts and broken lines
                self._leave_out(machine, last_line(answer))
                continue
            if isinstance(answer, Exception):
                answer = f"{last_line(answer)}. tvmtune has to be installed there, too"
            if answer:
                raise NoBuilder(f"the builder at {machine} cannot be used: {answer}.")
        if self._unfit >= set(answers):
            raise NoBuilder(f"none of the builders at {self.address} answers.")

    def _leave_out(self, machine: str, why: str) -> None:
        with self._lock:
            known, self._unfit = machine in self._unfit, self._unfit | {machine}
        if not known:
            self._say(f"the builder at {machine} cannot be used: {why}")

    def _forget(self, call: _Call) -> None:
        with self._lock:
            self._pending.discard(call)

    def _give_out(self, call: _Call) -> None:
        call.tries += 1
        where: dict[str, Any] = {}
        with self._lock:
            unfit = set(self._unfit)
        if unfit:
            fit = set(self.machines() or ()) - unfit
            if not fit:
                call.settle(error=self._gone("none of its machines can be used"))
                return
            where = {"workers": sorted(fit), "allow_other_workers": False}
        try:
            task = self._client.submit(
                cluster_worker.build,
                self._needs,
                call.function,
                call.workload,
                call.arguments,
                call.deadline,
                key=f"tvmtune-build-{uuid.uuid4().hex}",
                pure=False,
                **where,
            )
            call.handle.add_done_callback(lambda _: _release(task))
            task.add_done_callback(lambda done: self._fetch_soon(call, done))
        except Exception as error:  # the client has classes of its own for a scheduler that is gone
            call.settle(error=self._gone(last_line(error)))

    def _fetch_soon(self, call: _Call, task: Any) -> None:
        """In the only thread that the client has for this."""
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self._fetchers.submit(self._fetch, call, task)

    def _fetch(self, call: _Call, task: Any) -> None:
        if self._closed.is_set() or call.handle.done():
            return
        if task.status in ("cancelled", "lost"):
            call.settle(error=self._gone("its scheduler has dropped the work"))
            return
        again = ""
        try:
            outcome, library = task.result(timeout=PATIENCE)
            if outcome.stage == cluster_worker.UNFIT:
                machine, again = outcome.value, outcome.message
                self._leave_out(machine, again)
        except TimeoutError:
            again = "a machine that has built a candidate does not hand it over"
        except Exception as error:
            if type(error).__name__ == "KilledWorker":
                what = "the builder's machine or its Dask worker died of it, several times"
                call.settle(error=_Failed(Outcome(stage="crash", message=what)))
            else:
                call.settle(error=self._gone(last_line(error)))
            return
        if again:
            if call.tries < TRIES:
                self._give_out(call)
            else:
                call.settle(error=self._gone(again))
        elif not outcome.ok:
            call.settle(error=_Failed(outcome))
        else:
            path = call.directory / Path(outcome.value[0]).name
            try:
                path.write_bytes(library)
            except OSError as error:
                call.settle(error=TvmtuneError(f"cannot write {path}: {error.strerror}."))
            else:
                call.settle((str(path), *outcome.value[1:]))

    def _watch(self) -> None:
        """Give up when there has been no machine for too long."""
        without: float | None = None
        told = False
        while not self._closed.wait(LOOK):
            with self._lock:
                pending = list(self._pending)
            there = self.machines() if pending else {}
            if not pending or there:
                without, told = None, False
                continue
            now = time.monotonic()
            without = without or now
            if now - without > self.wait:
                what = "its scheduler does not answer" if there is None else "it has no workers"
                for call in pending:
                    call.settle(error=self._gone(f"{what} since {now - without:.0f} s"))
            elif not told:
                told = True
                self._say(f"waiting for builders at {self.address}, up to {self.wait:.0f} s")

    def _gone(self, reason: str) -> NoBuilder:
        return NoBuilder(
            f"the build cluster at {self.address} is of no use any more: {reason.rstrip('.')}."
        )


def _connect(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError(
            f"--build-cluster needs Dask ({last_line(error)}): pip install 'tvmtune[cluster]'"
        ) from None
    # What goes wrong comes as one message of ours, and not as pages of theirs.
    for name in ("distributed", "distributed.client", "tornado", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        return Client(address, timeout=PATIENCE, set_as_default=False, name="tvmtune")
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"'{address}' is no address of a Dask scheduler ({last_line(error)}): it looks like "
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
    """Tell the cluster that a task's result is not needed any more, or the task itself."""
    with contextlib.suppress(Exception):
        task.release()
