"""Block names that do not depend on the network they come from.

TVM names the block of a reduction after the Relax variable that it reads: ``lv85_red`` in one place,
``lv157_red`` in another, for the same workload. A trace finds blocks by name, so it would fit only one.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from tvmtune.passes.blocks import blocks, renamed

if TYPE_CHECKING:
    import tvm

NEUTRAL = "x"
_NAMED_AFTER = re.compile(r"(?P<variable>.+?)_(?P<what>red_temp|red|var_sum|sum|mean)")
"""What TOPI names after a variable; ``what`` is TOPI's suffix."""


def neutralize(mod: tvm.IRModule, exempt: Collection[str] = ()) -> tvm.IRModule:
    """Rename blocks that are named after a parameter of their kernel.

    Kernels whose names are in ``exempt`` stay unchanged.
    """
    from tvm import tirx

    for variable, function in list(mod.functions_items()):
        if isinstance(function, tirx.PrimFunc) and str(variable.name_hint) not in exempt:
            parameters = {str(p.name) for p in function.params}
            names = {str(block.name_hint) for block in blocks(function)}
            new = {
                name: f"{NEUTRAL}_{found['what']}"
                for name in names
                if (found := _NAMED_AFTER.fullmatch(name)) and found["variable"] in parameters
            }
            taken = names - set(new)
            if new and len(taken | set(new.values())) == len(names):
                mod.update_func(variable, renamed(function, new))
    return mod


def translate(mod: tvm.IRModule, trace: Any) -> Any:
    """A stored trace with the block names of ``mod``, if it was recorded under other names.

    Only unambiguous names are translated.
    """
    instructions, decisions = trace
    asked = {str(i[2][0]) for i in instructions if i[0] == "GetSBlock"}
    new = {
        old: f"{NEUTRAL}_{found['what']}"
        for old in asked
        if (found := _NAMED_AFTER.fullmatch(old)) and found["variable"] != NEUTRAL
    }
    if not new:  # nearly always, and candidates are built by the thousand
        return trace
    there = {str(b.name_hint) for f in mod.functions.values() for b in blocks(f)}
    new = {old: name for old, name in new.items() if old not in there and name in there}
    if len(set(new.values())) < len(new):
        return trace

    def renamed(name: str) -> str:
        for old, fresh in new.items():
            if name == old or name.startswith(f"{old}_"):  # a block derived from it
                return fresh + name[len(old) :]
        return name

    return [
        [
            [i[0], i[1], [renamed(str(i[2][0])), *i[2][1:]], *i[3:]] if i[0] == "GetSBlock" else i
            for i in instructions
        ],
        decisions,
    ]
