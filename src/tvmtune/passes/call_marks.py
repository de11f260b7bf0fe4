"""Marks on kernels that tell which call of an operator each comes from.

Fusion moves kernels: a convolution whose result is added to a later one's is computed after that, so
that the fused program has its calls in another order than the graph.
"""

from __future__ import annotations

from typing import Any

from tvmtune.passes.blocks import annotated, blocks

_MARK = "tvmtune.call"
"""Annotation of a kernel's last block."""


def mark(builder: Any, call: Any, number: int) -> Any:
    """The call of a kernel that is equal but for its mark; anything but a ``call_tir`` as it is."""
    from tvm import relax, tirx

    if getattr(getattr(call, "op", None), "name", "") != "relax.call_tir":
        return call
    variable, *arguments = call.args
    func = builder.get()[variable]
    if not isinstance(func, tirx.PrimFunc):
        return call
    last = blocks(func)[-1]

    def marked(block: Any) -> dict[str, Any]:
        return {**block.annotations, **({_MARK: number} if block.same_as(last) else {})}

    copy = builder.add_func(annotated(func, marked), str(variable.name_hint))
    return relax.Call(call.op, [copy, *arguments], call.attrs, call.ty_args)


def read(func: Any) -> int | None:
    """The mark of a kernel, fused or not."""
    found = [block.annotations[_MARK] for block in blocks(func) if _MARK in block.annotations]
    return int(found[0]) if len(found) == 1 else None


def remove(func: Any) -> Any:
    """The kernel without marks."""
    return annotated(func, lambda block: {k: v for k, v in block.annotations.items() if k != _MARK})
