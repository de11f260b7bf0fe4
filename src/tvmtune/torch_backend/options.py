"""The options that users give to ``torch.compile(..., backend="tvmtune", options={...})``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tvmtune import host
from tvmtune.errors import UsageError, nearest
from tvmtune.records.database import read_records
from tvmtune.records.log import Log
from tvmtune.types import Device


@dataclass(frozen=True)
class Options:
    """Validated; :func:`tvmtune.torch_backend.tvmtune` documents each."""

    target: str = "cpu"
    attrs: Mapping[str, Any] = field(default_factory=dict)
    log: tuple[Path, ...] = ()
    shipped_records: bool = True
    cache: Path | None = None

    def device(self) -> Device:
        """The device to compile for. Raises :class:`UsageError` if it is unknown."""
        return host.backend(self.target).make_target(dict(self.attrs), None)

    def logs(self) -> list[Log]:
        """The logs, read anew. Raises :class:`TvmtuneError` for one that cannot be read."""
        device = self.device()
        return [read_records(path, device) for path in self.log]


def parse(given: Mapping[str, Any]) -> Options:
    """Raises :class:`UsageError` for an unknown option or a value of another type, and
    :class:`TvmtuneError` for a log that cannot be read."""
    known = [each.name for each in fields(Options)]
    for name in given:
        if name not in known:
            raise UsageError(
                f"backend 'tvmtune' of torch.compile has no option '{name}'.{nearest(name, known)}"
            )
    values = dict(given)
    if "log" in values:
        logs = values["log"]
        single = logs is None or isinstance(logs, (str, os.PathLike))
        values["log"] = tuple(map(Path, [logs] if single and logs else logs or ()))
    if values.get("cache") is not None:
        values["cache"] = Path(values["cache"])
        if not values["cache"].is_dir():
            raise UsageError(f"option cache: {values['cache']} is not a directory: create it first")
    if not isinstance(values.get("attrs", {}), Mapping):
        raise UsageError("option attrs: give a dict, such as {'threads': 2}")
    options = Options(**values)
    options.device()
    options.logs()
    return options
