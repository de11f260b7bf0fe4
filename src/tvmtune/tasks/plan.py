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
        source = self.network.source
        words = [self.network.name, source.get("dtype", "")]
        words += [f"{key}{value}" for key, value in source.get("arguments", {}).items()]
        words += ["x".join(map(str, dims)) for dims in source.get("shapes", {}).values()]
        batch = batch_of(source, self.network.inputs)
        words += [self.prepared.layout, f"B{batch}", self.device.backend]
        words += [self.device.key or ""]
        return Path("-".join(filter(None, words)).replace("/", "_") + ".json")
