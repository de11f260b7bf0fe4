"""What a row depends on besides its network: machine, versions, sources, and how it is measured."""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tvmtune.bench.peers import PEERS
from tvmtune.machine import fingerprint, package_versions
from tvmtune.types import digest

BACKEND = "tvmtune_cpu"


@dataclass(frozen=True)
class Case:
    """A network to measure."""

    network: str
    """Name in the zoo, or path of a file."""
    layout: str
    shapes: tuple[str, ...] = ()
    """``NAME:1x3x224x224`` for the dynamic dimensions of a file."""

    @property
    def is_file(self) -> bool:
        return Path(self.network).suffix in (".onnx", ".pt2", ".tflite", ".py")

    @property
    def label(self) -> str:
        return Path(self.network).name if self.is_file else self.network

    @property
    def stem(self) -> str:
        """For names of files; different for files of the same name."""
        parts = [self.label, self.layout]
        return "-".join(parts if not self.is_file else [*parts, self.identity[:8]])

    @cached_property
    def identity(self) -> str:
        """Changes with the content of the file."""
        content = hashlib.sha256()
        if self.is_file:
            with Path(self.network).open("rb") as file:
                while block := file.read(1 << 22):
                    content.update(block)
        return digest([self.label, self.layout, list(self.shapes), content.hexdigest()])

    @property
    def words(self) -> list[str]:
        """The network in a command of tvmtune."""
        words = ["--network", self.network, "--layout", self.layout]
        return [*words, *(word for shape in self.shapes for word in ("--shape", shape))]


def state(measuring: dict[str, Any]) -> dict[str, Any]:
    """The state of rows measured here and now; ``measuring`` holds the options that matter."""
    packages = {PEERS[name].package for name in measuring["peers"]} | {"pnnx"}
    versions = {name: package_versions.version_of(name) for name in sorted(packages)}
    return {
        "machine": fingerprint.fingerprint(),
        "versions": {**package_versions.versions(), **versions},
        "sources": sources(),
        "measuring": measuring,
    }


def sources() -> str:
    """A digest of tvmtune's code, which changes more often than its version."""
    found = hashlib.sha256()
    for package in ("tvmtune", BACKEND):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for path in sorted(Path(folder).rglob("*.py")):
                found.update(str(path.relative_to(folder)).encode())
                found.update(path.read_bytes())
    return found.hexdigest()[:16]


def row_key(case: Case, threads: int, of: dict[str, Any]) -> str:
    """The key of a row: equal keys mean that there is nothing to measure again."""
    return digest([case.identity, threads, of])
