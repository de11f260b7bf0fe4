"""Loops that a schedule annotates for what happens to them once buffers are flat."""

from __future__ import annotations

from typing import Any


def exist(func: Any, annotation: str) -> bool:
    """Whether a loop of the PrimFunc has this annotation."""
    from tvm import tirx
    from tvm_ffi import structural_walk

    found: list[bool] = []
    structural_walk(
        func.body, (tirx.For, lambda loop: found.append(annotation in loop.annotations))
    )
    return any(found)
