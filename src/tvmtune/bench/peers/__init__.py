"""Other runtimes to compare a library with.

A peer runs the network with its own defaults, with two exceptions: it uses as many threads as the
library, and float32 where it would choose less. Each reads the form of the network that suits it best.
Importing this package imports no runtime.

A peer that is not installed, or that raises an exception, is skipped with a reason. But all of them run
in this process, side by side with the library: a crash (segmentation fault) ends it.

To add a peer, write a module with a subclass of :class:`Peer` and list the class in :data:`PEERS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvmtune.bench.peers import lite_rt, ncnn_runtime, onnx_runtime, open_vino, pytorch
from tvmtune.bench.peers.base import Peer
from tvmtune.errors import UsageError, nearest

__all__ = ["ALIASES", "ALL", "PEERS", "Peer", "choose", "parse", "parse_names", "peer"]

PEERS: dict[str, type[Peer]] = {
    cls.name: cls
    for cls in (
        onnx_runtime.OnnxRuntime,
        open_vino.OpenVino,
        pytorch.Torch,
        pytorch.TorchCompile,
        pytorch.TorchMaxAutotune,
        ncnn_runtime.Ncnn,
        lite_rt.LiteRt,
    )
}
ALIASES = {alias: name for name, cls in PEERS.items() for alias in cls.aliases}
ALL = "all"
"""Means every runtime that is installed."""


def peer(name: str) -> Peer:
    """Create a peer by its name. Raises UsageError, with the nearest name, if there is none."""
    word = name.strip().lower().replace("_", "-")
    cls = PEERS.get(ALIASES.get(word, word))
    if cls is None:
        raise UsageError(
            f"there is no runtime '{name}' to compare with.{nearest(word, [*PEERS, ALL])}"
        )
    return cls()


def parse(names: str) -> list[Peer]:
    """Peers from a list such as ``onnxruntime,torch``, each once; ``all`` adds the installed ones.

    Raises UsageError for an unknown name and for an empty list.
    """
    return choose(parse_names(names), {name: cls() for name, cls in PEERS.items()})


def parse_names(names: str) -> list[str]:
    """The names in such a list, aliases resolved; may include :data:`ALL`. Raises as :func:`parse`."""
    words = [word.strip() for word in names.split(",") if word.strip()]
    if not words:
        known = ", ".join([*sorted(PEERS), ALL])
        raise UsageError(f"name a runtime to compare with. Known: {known}.")
    return [ALL if word.lower() == ALL else peer(word).name for word in words]


def choose(names: Sequence[str], peers: Mapping[str, Peer]) -> list[Peer]:
    """The named ones of ``peers``, each once; :data:`ALL` means those that are available.

    Raises UsageError for :data:`ALL` if none is available.
    """
    chosen: dict[str, Peer] = {}
    for name in names:
        for one in _available(list(peers.values())) if name == ALL else [peers[name]]:
            chosen.setdefault(one.name, one)
    return list(chosen.values())


def _available(peers: Sequence[Peer]) -> list[Peer]:
    reasons = {one.name: one.available() for one in peers}
    if all(reasons.values()):
        raise UsageError(
            f"there is no runtime to compare with: {'; '.join(map(str, reasons.values()))}"
        )
    return [one for one in peers if reasons[one.name] is None]
