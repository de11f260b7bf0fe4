"""Compact traces: what the candidates of a design have in common is stored once.

A trace is ``[instructions, decisions]``. Its instructions up to ``EnterPostproc`` are the design, which
all its candidates share. The instructions of the post-processors depend on the decisions (which loops
exist, the index map of a layout) and cannot be shared, but they are similar: deflated with another
candidate's as the dictionary, the 8 KB of a convolution become some 300 bytes.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass
from typing import Any

from tvmtune import bounded
from tvmtune.errors import TvmtuneError
from tvmtune.spaces import traces
from tvmtune.types import digest

_LARGEST = 1 << 22
"""Bytes of a trace's post-processors; a large convolution has 10 KB."""


@dataclass(frozen=True, eq=False)
class Design:
    """The part of a trace that candidates share."""

    key: str
    """Digest of the other fields."""
    instructions: list[Any]
    """Those that sample and schedule, without the post-processors'."""
    example: bytes
    """One candidate's instructions of post-processors, as compact JSON."""

    @staticmethod
    def of(instructions: list[Any], example: bytes) -> Design:
        return Design(digest([instructions, example.decode()]), instructions, example)

    @staticmethod
    def decode(
        instructions: list[Any], encoded_example: str, allowance: bounded.Allowance | None = None
    ) -> Design:
        """The inverse of :meth:`encoded_example`; raises ValueError for damaged data, and if they
        exceed the ``allowance`` for unpacked bytes."""
        example = _inflate(base64.b64decode(encoded_example))
        if allowance is not None:
            allowance.spend(len(example))
        return Design.of(instructions, example)

    def encoded_example(self) -> str:
        return _text(_deflate(self.example))


@dataclass(frozen=True, slots=True)
class PackedTrace:
    """A trace that shares its design with others; calling it returns ``[instructions, decisions]``."""

    design: Design
    decisions: list[Any]
    postprocs: bytes
    """Instructions of the post-processors: JSON, deflated with the design's example."""

    def __call__(self) -> list[Any]:
        try:
            postprocs = bounded.parse_json(_inflate(self.postprocs, self.design.example))
            if not isinstance(postprocs, list):
                raise ValueError("they are not a list")
        except ValueError as error:  # the reader has only compared the checksum
            raise TvmtuneError(
                f"the post-processors of a trial in the log are damaged: {error}. Restore the log."
            ) from None
        return [[*self.design.instructions, *postprocs], self.decisions]

    @staticmethod
    def decode(
        design: Design,
        decisions: list[Any],
        encoded_postprocs: str,
        allowance: bounded.Allowance | None = None,
    ) -> PackedTrace:
        """The inverse of :meth:`encoded_postprocs`; raises ValueError as :meth:`Design.decode`."""
        postprocs = base64.b64decode(encoded_postprocs)
        # Find damage now, by the checksum, not at first use.
        inflated = _inflate(postprocs, design.example)
        if allowance is not None:
            allowance.spend(len(inflated))
        return PackedTrace(design, decisions, postprocs)

    def encoded_postprocs(self) -> str:
        return _text(self.postprocs)


class Packer:
    """Finds the design of each trace; the first trace of a design becomes its example."""

    def __init__(self) -> None:
        self._designs: dict[str, Design] = {}

    def pack(self, trace: Any) -> PackedTrace | None:
        """None if it is not a pair of lists: a log may contain anything."""
        if not isinstance(trace, list) or [type(part) for part in trace] != [list, list]:
            return None
        instructions, decisions = trace
        shared = traces.design(instructions)
        postprocs = _compact(instructions[len(shared) :])
        key = json.dumps(shared)
        design = self._designs.get(key)
        if design is None:
            design = self._designs[key] = Design.of(shared, postprocs)
        return PackedTrace(design, decisions, _deflate(postprocs, design.example))


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _deflate(data: bytes, dictionary: bytes = b"") -> bytes:
    compressor = zlib.compressobj(9, zdict=dictionary) if dictionary else zlib.compressobj(9)
    return compressor.compress(data) + compressor.flush()


def _inflate(data: bytes, dictionary: bytes = b"") -> bytes:
    try:
        return bounded.inflate(data, _LARGEST, dictionary)
    except ValueError as error:
        raise ValueError(f"the post-processors are {error}") from None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
