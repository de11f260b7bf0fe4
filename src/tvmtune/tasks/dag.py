"""The computation of a workload, one line per stage, for ``tasks --dag``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tvmtune.passes.blocks import blocks, is_reduction

if TYPE_CHECKING:
    import tvm


def stages(mod: tvm.IRModule) -> list[str]:
    """Input buffers, then each block as ``buffer[i, j] = expression``, in program order.

    A reduction is written with ``+=``, ``max=`` and so on if its update has that form, and names its
    reduction axes; a block that is not a single assignment is printed as its statement.
    """
    func = mod["main"]
    found = [block for block in blocks(func) if block.iter_vars or block.writes]
    written = [region.source for block in found for region in block.writes]
    lines = [
        f"{buffer.name} = PLACEHOLDER {_shape(buffer)}"
        for buffer in func.params
        if not any(buffer.same_as(w) for w in written)
    ]
    variables = {str(iv.var.name) for block in found for iv in block.iter_vars}
    return [_plain(line, variables) for line in (*lines, *map(_stage, found))]


def _stage(block: Any) -> str:
    reduced = [*filter(is_reduction, block.iter_vars)]
    body = block.body
    if type(body).__name__ != "BufferStore":
        return f"{block.name_hint}: {_one_line(body)}"
    target = f"{body.buffer.name}[{', '.join(map(str, body.indices))}]"
    operator, value = "=", str(body.value)
    if reduced and block.init is not None:
        operator, value = _update(body, target)
    text = f"{target} {operator} {value}"
    if reduced:
        extents = ", ".join(f"{iv.var.name} < {iv.dom.extent}" for iv in reduced)
        text += f"  (over {extents})"
    return f"{text}  {_shape(body.buffer)}"


_UPDATES = {"Add": "+=", "Mul": "*=", "Max": "max=", "Min": "min="}


def _update(store: Any, target: str) -> tuple[str, str]:
    """``("+=", "x")`` for ``target = target + x``."""
    value = store.value
    operator = _UPDATES.get(type(value).__name__)
    if operator and str(value.a) == target:
        return operator, str(value.b)
    return "=", str(value)


def _shape(buffer: Any) -> str:
    return f"[{', '.join(map(str, buffer.shape))}] {buffer.dtype}"


def _one_line(statement: Any) -> str:
    lines = [line.strip() for line in str(statement).splitlines()]
    return " ".join(line for line in lines if line and not line.startswith("#"))


def _plain(line: str, variables: set[str]) -> str:
    """Strip what only TVMScript's parser needs: types of literals, and prefixes."""
    line = re.sub(r"\bT\.(?:u?int\d+|bool)\((-?\w+)\)", r"\1", line)
    line = re.sub(r"\bT\.(?:b?float\d+)\((-?[\d.e+-]+)\)", lambda m: f"{float(m[1]):.6g}", line)
    line = re.sub(r"\bT\.(?=\w)", "", line)
    return re.sub(r"\bv_(\w+)", lambda m: m[1] if m[0] in variables else m[0], line)
