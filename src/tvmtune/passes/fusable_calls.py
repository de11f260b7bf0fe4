"""Calls of TE programs whose epilogues fuse as with TVM's own convolutions and products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_OUT_ELEMENTWISE_FUSABLE, _OPAQUE = 4, 8
"""``OpPatternKind`` of TVM's fusion."""


def call_fusable(
    builder: Any, program: Callable[..., Any], *arguments: Any, name: str, fuses: bool = True
) -> Any:
    """A Relax call of ``program``, whose last block must be element-wise in the output. Without
    ``fuses`` it stays a kernel of its own."""
    return builder.call_te(
        program,
        *arguments,
        primfunc_name_hint=name,
        primfunc_attrs={"op_pattern": _OUT_ELEMENTWISE_FUSABLE if fuses else _OPAQUE},
    )
