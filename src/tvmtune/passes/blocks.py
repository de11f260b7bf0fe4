"""The blocks of a PrimFunc."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

LEFT_ALONE = {"schedule_rule": "None"}
"""Attributes of stages that are scheduled with others."""


REORDERS = "meta_schedule.layout_rewrite_preproc"
"""Annotation of a block that stores an argument in the layout that a schedule chose."""


def blocks(func: Any) -> list[Any]:
    """The blocks of a PrimFunc, outer blocks before inner ones."""
    from tvm import s_tir
    from tvm_ffi import structural_walk

    found: list[Any] = []
    structural_walk(func.body, (s_tir.SBlock, found.append), order="pre")
    return found


def renamed(func: Any, names: Mapping[str, str]) -> Any:
    """``func`` with new names for some blocks, by their names."""
    return _changed(
        func,
        lambda block: (
            names.get(str(block.name_hint), block.name_hint),
            block.annotations,
            block.body,
        ),
    )


def annotated(func: Any, annotations: Callable[[Any], Mapping[str, Any]]) -> Any:
    """``func`` with the blocks' annotations as ``annotations`` returns them."""
    return _changed(func, lambda block: (block.name_hint, annotations(block), block.body))


def with_body(func: Any, name: str, body: Any) -> Any:
    """``func`` with another body of the block ``name``."""
    return _changed(
        func,
        lambda block: (
            block.name_hint,
            block.annotations,
            body if str(block.name_hint) == name else block.body,
        ),
    )


def _changed(func: Any, change: Callable[[Any], tuple[str, Mapping[str, Any], Any]]) -> Any:
    from tvm import s_tir
    from tvm_ffi import structural_map

    def visit(block: Any) -> Any:
        name, annotations, body = change(block)
        return s_tir.SBlock(
            block.iter_vars,
            block.reads,
            block.writes,
            name,
            body,
            block.init,
            block.alloc_buffers,
            block.match_buffers,
            annotations,
        )

    return structural_map(func, (s_tir.SBlock, visit))


def is_reduction(axis: Any) -> bool:
    """Whether a block reduces over this variable of it."""
    from tvm import tirx

    return bool(axis.iter_type == tirx.IterVar.CommReduce)


def reduces(block: Any) -> bool:
    """Whether a block has a variable over which it reduces."""
    return any(map(is_reduction, block.iter_vars))


def is_conditional(block: Any) -> bool:
    """Whether a block computes with values that it reads only under a condition, such as padding."""
    from tvm import ir
    from tvm_ffi import structural_walk

    found: list[bool] = []

    def call(node: Any) -> None:
        found.append(str(getattr(node.op, "name", "")).endswith("if_then_else"))

    structural_walk(block.body, (ir.Call, call))
    return any(found)
