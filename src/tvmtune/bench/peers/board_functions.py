"""Functions that a board registers for clients that compare a library with peers there.

``tvmtune serve`` loads this module in a session when its client asks for it
(:func:`tvmtune.remote.server.session.provide`); the client is :mod:`tvmtune.bench.peers.remote_peer`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune.bench.peers import Peer, peer
from tvmtune.errors import TvmtuneError
from tvmtune.types import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from tvmtune.types import JSON, Network

MODULE = __name__
INSTALLED, LOAD, SET_INPUTS, INVOKE, OUTPUT = (
    f"tvmtune.board.{name}"
    for name in ("peer_installed", "peer_load", "peer_set_inputs", "peer_invoke", "peer_output")
)


def register() -> None:
    """Register the functions under the names above."""
    import tvm_ffi

    for name, function in (
        (INSTALLED, _why_unavailable),
        (LOAD, _load),
        (SET_INPUTS, _set_inputs),
        (INVOKE, _invoke),
        (OUTPUT, _output),
    ):
        tvm_ffi.register_global_func(name, function, override=True)


@dataclass
class SentNetwork:
    """A network that a client sent as ONNX; implements the parts of :class:`tvmtune.types.Network`
    that peers use."""

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
        raise TvmtuneError("boards have no compiler")

    def reference(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        raise TvmtuneError("boards do not compute the reference")

    @staticmethod
    def serialize(network: Network) -> str:
        """The parts of the network that its ONNX model does not hold, for :meth:`parse`."""
        specs = {"inputs": network.inputs, "outputs": network.outputs}
        return json.dumps(
            {"name": network.name} | {k: [s.to_json() for s in v] for k, v in specs.items()}
        )

    @staticmethod
    def parse(text: str, file: str) -> SentNetwork:
        """The network of :meth:`serialize`, with its ONNX model in ``file``."""
        data = json.loads(text)
        inputs, outputs = (
            tuple(map(TensorSpec.from_json, data[part])) for part in ("inputs", "outputs")
        )
        return SentNetwork(data["name"], inputs, outputs, Path(file), {})


@dataclass
class _LoadedPeer:
    peer: Peer
    inputs: tuple[str, ...]
    """Their names, in order."""
    outputs: list[np.ndarray] | None = None
    """Of the last run; None until a client asks for them."""


_loaded: dict[str, _LoadedPeer] = {}


def _why_unavailable(name: str) -> str:
    """The reason why this board cannot run a peer; empty if it can."""
    return peer(name).available() or ""


def _load(name: str, specs: str, file: str, threads: int) -> str:
    """Have a peer load the network whose ONNX model is in ``file``; returns the peer's version."""
    one = peer(name)
    network = SentNetwork.parse(specs, file)
    one.load(network, threads)
    _loaded[name] = _LoadedPeer(one, tuple(spec.name for spec in network.inputs))
    return one.version


def _set_inputs(name: str, *tensors: Any) -> None:
    loaded = _loaded[name]
    arrays = (tensor.numpy() for tensor in tensors)
    loaded.peer.set_inputs(dict(zip(loaded.inputs, arrays, strict=True)))


def _invoke(name: str, count: int) -> float:
    _loaded[name].outputs = None
    return _loaded[name].peer.invoke(count)


def _output(name: str, index: int) -> Any:
    """Output ``index`` of the last run; None if there are fewer."""
    import tvm

    loaded = _loaded[name]
    if loaded.outputs is None:
        loaded.outputs = loaded.peer.outputs()
    return tvm.runtime.tensor(loaded.outputs[index]) if index < len(loaded.outputs) else None
