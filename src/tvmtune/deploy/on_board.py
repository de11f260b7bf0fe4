"""What a session on a board offers to those who run libraries there: the part on the board's side.

A board that ``tvmtune serve`` serves loads this module when a client asks for it
(:func:`tvmtune.farm.board.provide`). It runs the same code as this machine would: TVM's thread pool is
set by :mod:`tvmtune.threads`, calls are timed by the wall clock as in :class:`LocalSession`, and the
runtimes to compare with are those of :mod:`tvmtune.deploy.peers`. :mod:`tvmtune.deploy.remote` is the
client's side.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune import threads
from tvmtune.deploy import peers, timing
from tvmtune.errors import TvmtuneError
from tvmtune.types import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from tvmtune.types import JSON, Network

MODULE = __name__
SHARE, REST, TIME, INSTALLED, LOAD, SET_INPUTS, INVOKE, OUTPUT = (
    f"tvmtune.board.{name}"
    for name in (
        *("share", "rest", "time", "peer_installed"),
        *("peer_load", "peer_set_inputs", "peer_invoke", "peer_output"),
    )
)

_loaded: dict[str, peers.Peer] = {}
_outputs: dict[str, list[np.ndarray]] = {}
_names: dict[str, tuple[str, ...]] = {}
"""Of the inputs, in their order, for each peer."""


def register() -> None:
    """Make the functions known to the session's client."""
    import tvm_ffi

    for name, function in (
        (SHARE, threads.share),
        (REST, timing.rest),
        (TIME, _time),
        (INSTALLED, _installed),
        (LOAD, _load),
        (SET_INPUTS, _set_inputs),
        (INVOKE, _invoke),
        (OUTPUT, _output),
    ):
        tvm_ffi.register_global_func(name, function, override=True)


@dataclass
class Sent:
    """A network that came over the line, in ONNX; implements :class:`tvmtune.types.Network` as far as
    runtimes ask for it."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    file: Path
    source: JSON
    structure_hash: str = ""
    weights_hash: str = ""

    def to_onnx(self) -> bytes:
        return self.file.read_bytes()

    def to_relax(self) -> Any:
        raise TvmtuneError("on a board there is no compiler")

    def reference(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        raise TvmtuneError("the reference is computed where the network came from")

    @staticmethod
    def describe(network: Network) -> str:
        """What :meth:`parse` needs to know of the network, beside its ONNX form."""
        specs = {"inputs": network.inputs, "outputs": network.outputs}
        return json.dumps(
            {"name": network.name} | {k: [asdict(s) for s in v] for k, v in specs.items()}
        )

    @staticmethod
    def parse(text: str, file: str) -> Sent:
        data = json.loads(text)
        inputs, outputs = (
            tuple(TensorSpec(s["name"], tuple(s["shape"]), s["dtype"]) for s in data[part])
            for part in ("inputs", "outputs")
        )
        return Sent(data["name"], inputs, outputs, Path(file), {})


def _time(machine: Any, count: int) -> float:
    """Seconds that ``count`` calls of the virtual machine's entry take."""
    run = machine["invoke_stateful"]
    start = time.perf_counter()
    for _ in range(count):
        run("main")
    return time.perf_counter() - start


def _installed(name: str) -> str:
    """Why there is no such runtime here; empty if there is."""
    return peers.peer(name).available() or ""


def _load(name: str, network: str, file: str, count: int) -> str:
    """Load the network, whose ONNX form is in ``file``; the runtime's version."""
    peer = peers.peer(name)
    sent = Sent.parse(network, file)
    peer.load(sent, count)
    _loaded[name] = peer
    _names[name] = tuple(spec.name for spec in sent.inputs)
    return peer.version


def _set_inputs(name: str, *tensors: Any) -> None:
    arrays = (tensor.numpy() for tensor in tensors)
    _loaded[name].set_inputs(dict(zip(_names[name], arrays, strict=True)))


def _invoke(name: str, count: int) -> float:
    _outputs.pop(name, None)
    return _loaded[name].invoke(count)


def _output(name: str, index: int) -> Any:
    """One output of the last run, or None behind the last of them."""
    import tvm

    if name not in _outputs:
        _outputs[name] = _loaded[name].outputs()
    found = _outputs[name]
    return tvm.runtime.tensor(found[index]) if index < len(found) else None
