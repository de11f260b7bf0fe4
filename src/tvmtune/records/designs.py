"""Traces in few bytes: what the candidates of a design have in common is held once.

A trace is ``[instructions, decisions]``. Its instructions up to ``EnterPostproc`` are the design: the
same for all candidates. The post-processors' depend on the decisions (loops that are there or not, the
index map of a layout), so they cannot be shared, but they resemble one another: deflated with another
candidate's as the dictionary, the 8 KB of a convolution become some 300 bytes.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass
from typing import Any

from tvmtune.graph import traces
from tvmtune.types import JSON, digest


@dataclass(frozen=True, eq=False)
class Design:
    """What candidates have in common."""

    key: str
    """Digest of the rest."""
    instructions: list[Any]
    """Those that sample and schedule, without the post-processors'."""
    example: bytes
    """One candidate's instructions of post-processors, as compact JSON."""

    @staticmethod
    def of(instructions: list[Any], example: bytes) -> Design:
        return Design(digest([instructions, example.decode()]), instructions, example)

    def to_json(self) -> JSON:
        return {
            "design": self.key,
            "instructions": self.instructions,
            "postprocs": _text(_deflated(self.example)),
        }

    @staticmethod
    def from_json(record: JSON) -> Design:
        """Raises ValueError for a design that is damaged, and as :func:`unpack` does."""
        example = _inflated(base64.b64decode(record["postprocs"]))
        design = Design.of(record["instructions"], example)
        if design.key != record["design"]:
            raise ValueError("the design is not the one that its key names")
        return design


@dataclass(frozen=True, slots=True)
class PackedTrace:
    """A trace that shares its design with others; calling it returns ``[instructions, decisions]``."""

    design: Design
    decisions: list[Any]
    postprocs: bytes
    """Instructions of the post-processors: JSON, deflated with the design's example."""

    def __call__(self) -> list[Any]:
        postprocs = json.loads(_inflated(self.postprocs, self.design.example))
        return [[*self.design.instructions, *postprocs], self.decisions]

    def to_json(self) -> JSON:
        return {
            "design": self.design.key,
            "decisions": self.decisions,
            "postprocs": _text(self.postprocs),
        }


def unpack(record: JSON, design: Design) -> PackedTrace:
    """What :meth:`PackedTrace.to_json` wrote.

    Raises KeyError or TypeError for a field that is missing or of another type, ValueError for a
    damaged one.
    """
    postprocs = base64.b64decode(record["postprocs"])
    _inflated(
        postprocs, design.example
    )  # for its checksum: damage is to be found now, not when used
    return PackedTrace(design, record["decisions"], postprocs)


class Packer:
    """Finds the design of each trace; the first of its traces is the example for the others."""

    def __init__(self) -> None:
        self._designs: dict[str, Design] = {}

    def pack(self, trace: Any) -> PackedTrace | None:
        """None for what is no pair of lists: a log may hold anything."""
        if not isinstance(trace, list) or [type(part) for part in trace] != [list, list]:
            return None
        instructions, decisions = trace
        shared = traces.design(instructions)
        postprocs = _compact(instructions[len(shared) :])
        key = json.dumps(shared)
        design = self._designs.get(key)
        if design is None:
            design = self._designs[key] = Design.of(shared, postprocs)
        return PackedTrace(design, decisions, _deflated(postprocs, design.example))


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _deflated(data: bytes, dictionary: bytes = b"") -> bytes:
    packer = zlib.compressobj(9, zdict=dictionary) if dictionary else zlib.compressobj(9)
    return packer.compress(data) + packer.flush()


def _inflated(data: bytes, dictionary: bytes = b"") -> bytes:
    unpacker = zlib.decompressobj(zdict=dictionary)
    try:
        result = unpacker.decompress(data)
    except zlib.error as error:
        raise ValueError(f"the post-processors are damaged: {error}") from None
    if not unpacker.eof:
        raise ValueError("the post-processors are cut short")
    return result


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
