"""The interface of an accelerator: something that loads and runs programs.

This package needs Python and NumPy only, so that it works on boards without TVM;
:mod:`tvmtune_vta.device.packed_functions` and :mod:`tvmtune_vta.device.board_calls` are the exceptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy.typing as npt

from tvmtune_vta.hardware.config import Config
from tvmtune_vta.hardware.program import Program

Tensors = Mapping[int, npt.NDArray[Any]]
"""Arrays by the number of their buffer."""


class LoadedProgram(Protocol):
    """A program that is ready to run."""

    def run(self, memory: Tensors) -> Tensors:
        """Map inputs to outputs."""
        ...

    def close(self) -> None:
        """Release its resources."""
        ...


class Accelerator(Protocol):
    """Loads and runs programs."""

    @property
    def config(self) -> Config | None:
        """Its configuration; None if it runs programs for any configuration."""
        ...

    def load(self, program: Program) -> LoadedProgram:
        """Raises :class:`tvmtune_vta.device.contiguous_memory.OutOfContiguousMemory` if the program
        does not fit."""
        ...

    def describe(self) -> dict[str, Any]:
        """``device`` (``sim`` or ``fpga``), ``config`` or None, and the ``loaded`` bitstream, or None
        if unknown."""
        ...

    def program_fpga(self, path: str) -> None:
        """Load the bitstream at ``path``, which must match its configuration."""
        ...


def description(device: str, config: Config | None, loaded: Any) -> dict[str, Any]:
    """The result of :meth:`Accelerator.describe`."""
    keys = None if config is None else config.as_dict()
    return {"device": device, "config": keys, "loaded": loaded}
