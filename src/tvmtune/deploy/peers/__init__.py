"""Other runtimes, to compare a library with.

A peer runs the network on the CPU, with its own defaults but for two things: as many threads as the
library has, and float32 where it would choose less. Each takes the form of the network that it reads
best; importing this package imports none of them.

A peer that is not installed, or that raises an exception, is left out with its reason. But all of them
run in this process, side by side with the library: one that crashes (a segmentation fault) ends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvmtune.deploy.peers.base import Peer
from tvmtune.deploy.peers.ncnn_runtime import Ncnn
from tvmtune.deploy.peers.onnx_runtime import OnnxRuntime
from tvmtune.deploy.peers.open_vino import OpenVino
from tvmtune.deploy.peers.pytorch import Torch, TorchCompile
from tvmtune.errors import UsageError, nearest

__all__ = ["ALIASES", "ALL", "PEERS", "Peer", "choose", "parse", "peer", "words"]

PEERS: dict[str, type[Peer]] = {
    cls.name: cls for cls in (OnnxRuntime, OpenVino, Torch, TorchCompile, Ncnn)
}
ALIASES = {
    "ort": "onnxruntime",
    "ov": "openvino",
    "pytorch": "torch",
    "torch-compiled": "torch-compile",
    "inductor": "torch-compile",
}
ALL = "all"
"""Stands for every runtime that is installed."""


def peer(name: str) -> Peer:
    """A peer by its name. Raises UsageError, which names the nearest, if there is none."""
    word = name.strip().lower().replace("_", "-")
    found = PEERS.get(ALIASES.get(word, word))
    if found is None:
        raise UsageError(
            f"there is no runtime '{name}' to compare with.{nearest(word, [*PEERS, ALL])}"
        )
    return found()


def parse(names: str) -> list[Peer]:
    """Peers from a list such as ``onnxruntime,torch``, each once; ``all`` adds the installed ones.

    Raises UsageError for an unknown name, and if the list names nobody.
    """
    return choose(words(names), {name: cls() for name, cls in PEERS.items()})


def words(names: str) -> list[str]:
    """What such a list names, by the peers' own names, or :data:`ALL`. Raises UsageError as above."""
    found = [word.strip() for word in names.split(",") if word.strip()]
    if not found:
        known = ", ".join([*sorted(PEERS), ALL])
        raise UsageError(f"no runtime to compare with is named. Known: {known}.")
    return [ALL if word.lower() == ALL else peer(word).name for word in found]


def choose(names: Sequence[str], every: Mapping[str, Peer]) -> list[Peer]:
    """Those of ``every`` peer that are named, each once; for :data:`ALL`, those that are available.

    Raises UsageError if there are none of these.
    """
    found: dict[str, Peer] = {}
    for name in names:
        for one in _installed(list(every.values())) if name == ALL else [every[name]]:
            found.setdefault(one.name, one)
    return list(found.values())


def _installed(every: Sequence[Peer]) -> list[Peer]:
    reasons = {one.name: one.available() for one in every}
    if all(reasons.values()):
        raise UsageError(
            f"there is no runtime to compare with: {'; '.join(map(str, reasons.values()))}"
        )
    return [one for one in every if reasons[one.name] is None]
