"""Modelled timelines as SVG."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

from tvmtune_vta.hardware import isa
from tvmtune_vta.hardware.config import Memory
from tvmtune_vta.hardware.isa import Alu, Engine, Gemm, Instruction, Store, Transfer
from tvmtune_vta.hardware.program import Program
from tvmtune_vta.timing.time_model import Timeline

_LEFT, _TOP, _HEIGHT, _GAP = 100, 24, 40, 10
_WIDTH = 1200
_MIN_BOX = 0.5
"""Pixels per instruction in long programs; vector graphics can be zoomed."""
_STYLE = (
    "text{font:14px sans-serif} .layer{font-size:11px} .inp{fill:#4c78a8} .wgt{fill:#72b7b2} "
    ".other{fill:#bab0ac} .gemm{fill:#54a24b} .reset{fill:#b5cf6b} .alu{fill:#f58518} "
    ".store{fill:#e45756} line{stroke:#888;stroke-dasharray:3}"
)
_LEGEND = ("inp", "wgt", "other", "gemm", "reset", "alu", "store")


def timeline_svg(program: Program, timeline: Timeline) -> str:
    """The timeline as SVG: a row per engine, a box per instruction with its text as tooltip, and
    below them the start of each layer, named by the constants that it reads."""
    width = max(_WIDTH, round(_MIN_BOX * len(timeline.spans)))
    scale = width / max(1, timeline.cycles)
    instructions = program.decode()
    names = [
        f'<text x="0" y="{_TOP + engine * (_HEIGHT + _GAP) + _HEIGHT / 2}">{engine.name.lower()}</text>'
        for engine in Engine
    ]
    boxes = [
        f'<rect class="{_kind(instructions[index])}" x="{_LEFT + start * scale:.2f}" '
        f'y="{_TOP + instructions[index].engine * (_HEIGHT + _GAP)}" '
        f'width="{max(0.3, (end - start) * scale):.2f}" height="{_HEIGHT}">'
        f"<title>{index}: {escape(isa.describe(instructions[index]))}, "
        f"cycles {start} to {end}</title></rect>"
        for index, start, end in timeline.spans
    ]
    bottom = _TOP + 3 * (_HEIGHT + _GAP)
    layers = [
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom + 14}"/>'
        f'<text class="layer" x="{x + 2:.1f}" y="{bottom + 12}">{escape(name)}</text>'
        for name, x in ((n, _LEFT + start * scale) for n, start in _layers(program, timeline))
    ]
    legend = [
        f'<rect class="{kind}" x="{_LEFT + 90 * n}" y="{bottom + 26}" width="14" height="14"/>'
        f'<text x="{_LEFT + 90 * n + 20}" y="{bottom + 38}">{kind}</text>'
        for n, kind in enumerate(_LEGEND)
    ]
    total = (
        f"{escape(program.name)}: {timeline.cycles} cycles, {1e6 * timeline.seconds:.0f} us modeled, "
        f"core multiplies {100 * timeline.utilization:.0f}%"
    )
    parts = "".join([*names, *boxes, *layers, *legend])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + _LEFT + 20}" '
        f'height="{bottom + 50}"><style>{_STYLE}</style>'
        f'<text x="{_LEFT}" y="14">{total}</text>{parts}</svg>\n'
    )


def _layers(program: Program, timeline: Timeline) -> Iterator[tuple[str, int]]:
    """Each layer's name, and when its first constant is loaded. Programs of a single layer have
    constants without such names."""
    seen: set[str] = set()
    for index, start, _ in timeline.spans:
        operand = int(program.operands[index])
        if operand >= 0 and program.buffers[operand].role == "constant":
            name, dot, _ = program.buffers[operand].name.rpartition(".")
            if dot and name not in seen:
                seen.add(name)
                yield name, start


def _kind(instruction: Instruction) -> str:
    if isinstance(instruction, Store):
        return "store"
    if isinstance(instruction, Transfer):
        return {Memory.INP: "inp", Memory.WGT: "wgt"}.get(instruction.memory, "other")
    if isinstance(instruction, Gemm):
        return "reset" if instruction.reset else "gemm"
    return "alu" if isinstance(instruction, Alu) else "other"
