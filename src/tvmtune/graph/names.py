"""Names of blocks that do not tell which network they come from.

TVM calls the block of a reduction after the Relax variable that it reads: ``lv85_red`` here,
``lv157_red`` there, for one and the same workload. A trace finds its blocks by name, so that it would
fit one of the two only.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from tvmtune.graph.sites import blocks

if TYPE_CHECKING:
    import tvm

NEUTRAL = "x"
_NAMED_AFTER = re.compile(r"(?P<variable>.+?)_(?P<what>red_temp|red|var_sum|sum|mean)")
"""What TVM's library of operators names after a variable; ``what`` is its own word."""


def neutral(mod: tvm.IRModule, but: Collection[str] = ()) -> tvm.IRModule:
    """Call blocks that are named after a parameter of their kernel after none.

    Kernels whose names are in ``but`` stay as they are.
    """
    from tvm import tirx

    for variable, function in list(mod.functions_items()):
        if isinstance(function, tirx.PrimFunc) and str(variable.name_hint) not in but:
            parameters = {str(p.name) for p in function.params}
            names = {str(block.name_hint) for block in blocks(function)}
            new = {
                name: f"{NEUTRAL}_{found['what']}"
                for name in names
                if (found := _NAMED_AFTER.fullmatch(name)) and found["variable"] in parameters
            }
            taken = names - set(new)
            if new and len(taken | set(new.values())) == len(names):
                mod.update_func(variable, _renamed(function, new))
    return mod


def _renamed(function: Any, new: dict[str, str]) -> Any:
    from tvm import s_tir
    from tvm_ffi import structural_map

    def rename(block: Any) -> Any:
        name = new.get(str(block.name_hint))
        if name is None:
            return block
        return s_tir.SBlock(
            block.iter_vars,
            block.reads,
            block.writes,
            name,
            block.body,
            block.init,
            block.alloc_buffers,
            block.match_buffers,
            block.annotations,
        )

    return structural_map(function, (s_tir.SBlock, rename))


def translated(mod: tvm.IRModule, trace: Any) -> Any:
    """A stored trace with the names of ``mod``'s blocks, if it was made when they had others.

    Only where it is plain which is which; everything else stays.
    """
    instructions, decisions = trace
    asked = {str(i[2][0]) for i in instructions if i[0] == "GetSBlock"}
    new = {
        old: f"{NEUTRAL}_{found['what']}"
        for old in asked
        if (found := _NAMED_AFTER.fullmatch(old)) and found["variable"] != NEUTRAL
    }
    if not new:  # as nearly always, and candidates are built by the thousand
        return trace
    there = {str(b.name_hint) for f in mod.functions.values() for b in blocks(f)}
    new = {old: name for old, name in new.items() if old not in there and name in there}
    if len(set(new.values())) < len(new):
        return trace

    def renamed(name: str) -> str:
        for old, fresh in new.items():
            if name == old or name.startswith(f"{old}_"):  # a block that was made of it
                return fresh + name[len(old) :]
        return name

    return [
        [
            [i[0], i[1], [renamed(str(i[2][0])), *i[2][1:]], *i[3:]] if i[0] == "GetSBlock" else i
            for i in instructions
        ],
        decisions,
    ]
