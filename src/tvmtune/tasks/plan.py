"""A network prepared for a device, with the tasks extracted from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tvmtune.host import Backend
from tvmtune.types import Device, Network, Prepared, Task, batch_of


@dataclass
class Plan:
    """What tuning and compilation start from; :func:`tvmtune.api.plan` makes it."""

    backend: Backend
    device: Device
    prepared: Prepared
    tasks: list[Task] = field(default_factory=list)

    @property
    def network(self) -> Network:
        return self.prepared.network

    def default_log(self) -> Path:
        """``NETWORK-LAYOUT-Bbatch-KIND.json`` in the working directory.

        After the network's name come its dtype unless float32, an operator's arguments, and the
        shapes that were bound; after the kind, the key of the boards.
        """
        words = [*self._variant(), self.prepared.layout, f"B{self._batch}", self.device.backend]
        return _path([*words, self.device.key or ""], ".json")

    def default_library(self) -> Path:
        """``NETWORK.so`` in the working directory.

        After the network's name come the same as in :meth:`default_log`, then ``Bbatch`` unless 1, and
        the kind unless cpu: what is made of one network for another use gets another name.
        """
        words = [f"B{self._batch}" if self._batch != 1 else "", self.device.backend]
        return _path([*self._variant(), *(word for word in words if word != "cpu")], ".so")

    @property
    def _batch(self) -> int:
        return batch_of(self.network.source, self.network.inputs)

    def _variant(self) -> list[str]:
        """The network's name and what was chosen of it."""
        source = self.network.source
        arguments = [f"{key}{value}" for key, value in source.get("arguments", {}).items()]
        shapes = ["x".join(map(str, dims)) for dims in source.get("shapes", {}).values()]
        return [self.network.name, source.get("dtype", ""), *arguments, *shapes]


def _path(words: list[str], suffix: str) -> Path:
    return Path("-".join(filter(None, words)).replace("/", "_") + suffix)
