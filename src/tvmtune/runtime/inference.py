"""Run a library from any thread, through calls like those of ONNX Runtime's ``InferenceSession``."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tvmtune.errors import TvmtuneError, UsageError, nearest
from tvmtune.runtime.library import Library

if TYPE_CHECKING:
    from types import TracebackType

    from tvmtune.types import TensorSpec

Result = TypeVar("Result")

_TYPES = {"float32": "float", "float64": "double"}
"""ONNX Runtime's names of element types, where they differ from NumPy's."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a network, with the attributes of ONNX Runtime's class of this name."""

    name: str
    shape: list[int]
    """Extents; all are static. Empty for a scalar."""
    type: str
    """As ONNX Runtime writes it, e.g. ``tensor(float)`` for float32 and ``tensor(int64)``."""

    @staticmethod
    def of(spec: TensorSpec) -> NodeArg:
        return NodeArg(spec.name, [*spec.shape], f"tensor({_TYPES.get(spec.dtype, spec.dtype)})")


class CallThread:
    """A thread that makes calls one after another, for whoever asks.

    TVM's thread pool belongs to the thread that calls TVM, and its size never grows: with a thread of
    their own, libraries get the pool that they need, whatever the process did before.
    """

    def __init__(self, name: str = "tvmtune") -> None:
        self._executor: ThreadPoolExecutor | None = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._process = os.getpid()
        self._name = name

    def call(self, function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """Call ``function`` in the thread and wait for its result, or raise its exception.

        Raises :class:`TvmtuneError` in a forked process, which has no such thread, and after
        :meth:`close`.
        """
        executor = self._executor
        if executor is None:
            raise UsageError(f"{self._name} is closed")
        if os.getpid() != self._process:
            raise TvmtuneError(
                f"{self._name} was opened before this process was forked, and its threads are in the "
                "other process: open it after the fork, or start processes with the method 'spawn'"
            )
        if threading.current_thread() in executor._threads:
            return function(*args, **kwargs)
        return executor.submit(function, *args, **kwargs).result()

    def close(self) -> None:
        """End the thread after the calls at hand; calling it again does nothing."""
        executor, self._executor = self._executor, None
        if executor is not None and os.getpid() == self._process:
            executor.shutdown(wait=True)


class InferenceSession:
    """A library as a session of ONNX Runtime: NumPy arrays in and out.

    Any thread may use it; calls of several threads run one after another, each on all of the
    session's threads. What the network keeps from run to run, such as the cache of a language model,
    stays in the session. ``path``: a library of ``tvmtune compile`` or ``tune``. ``threads``: CPU
    threads to compute with, by default as many as it was tuned for, or as this process may use if these
    are fewer. Raises :class:`UsageError` if there is no such file or there are fewer CPUs than
    ``threads``, :class:`TvmtuneError` if the library is damaged or cannot run here.

    A session may be used as a context manager, which closes it.
    """

    def __init__(self, path: str | os.PathLike[str], *, threads: int | None = None) -> None:
        self._thread = CallThread(f"the session of {os.fspath(path)}")
        try:
            self._library: Library | None = self._thread.call(Library.open, path, threads)
        except BaseException:
            self._thread.close()
            raise
        self._inputs = self._library.step_inputs
        self._outputs = self._library.step_outputs

    def get_inputs(self) -> list[NodeArg]:
        """The inputs, in the network's order: their names, static shapes and types."""
        return [NodeArg.of(spec) for spec in self._inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs, in the network's order: their names, static shapes and types."""
        return [NodeArg.of(spec) for spec in self._outputs]

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, np.ndarray],
    ) -> list[np.ndarray]:
        """Run once; returns new arrays, one for each of ``output_names``, in their order.

        ``output_names``: None or empty for all outputs. ``input_feed``: an array for each input by its
        name, of exactly its shape and dtype, as :meth:`get_inputs` lists them; arrays need not be
        contiguous. If it has the state as well, the run begins with that instead of the session's, and
        returns its new values among all outputs, as ONNX Runtime does; the session's stays as it is.
        Raises :class:`UsageError` for an unknown output, and if names, shapes or dtypes of the inputs
        differ.
        """
        if not isinstance(input_feed, Mapping):
            raise UsageError(
                f"input_feed is a {type(input_feed).__name__}: give a dict of arrays by input name"
            )
        if isinstance(output_names, str):
            raise UsageError(f"output_names is the text '{output_names}': give a list of names")
        library = self._opened()
        missing = [spec.name for spec in library.state if spec.name not in input_feed]
        is_given = len(missing) < len(library.state)
        if is_given and missing:
            raise UsageError(
                f"input_feed has a part of the state, but lacks {', '.join(missing)}: give all of it, "
                "or none to continue with the session's"
            )
        specs = library.outputs if is_given else self._outputs
        places = {spec.name: place for place, spec in enumerate(specs)}
        for name in output_names or ():
            if name not in places:
                raise UsageError(f"the network has no output '{name}'.{nearest(name, [*places])}")
        run = library.run if is_given else library.step
        outputs = self._thread.call(run, {k: np.asarray(v) for k, v in input_feed.items()})
        return [outputs[places[name]] for name in output_names] if output_names else outputs

    def get_state(self) -> dict[str, np.ndarray]:
        """Copies of what the network keeps from run to run, by name; empty for most networks."""
        return self._thread.call(self._opened().get_state)

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Begin the next run with this state, for example that of another session.

        Raises :class:`UsageError` if names, shapes or dtypes differ from :meth:`get_state`.
        """
        self._thread.call(self._opened().set_state, state)

    def reset(self) -> None:
        """Begin the next run with the state of the first."""
        self._thread.call(self._opened().reset)

    def close(self) -> None:
        """Free the library and end the session's thread; calling it again does nothing."""
        self._library = None
        self._thread.close()

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _opened(self) -> Library:
        if self._library is None:
            raise UsageError("the session is closed")
        return self._library
