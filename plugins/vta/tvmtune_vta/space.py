"""The knobs of a packed convolution as a space of the core: a schedule only notes what they are."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from tvmtune_vta import knobs
from tvmtune_vta.compute import BLOCK
from tvmtune_vta.config import Config
from tvmtune_vta.convolution import estimate, fits, generate
from tvmtune_vta.knobs import Knobs, Misfit
from tvmtune_vta.workload import Convolution, Epilogue

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule.space_generator import SpaceGenerator

PREFIX = "tvmtune_vta."
"""Of the annotations that hold the knobs."""
_LOOPS = {"tile_b": 0, "tile_co": 1, "tile_h": 2, "tile_w": 3, "tile_ci": 6}
"""Which loop of the block each tile cuts."""


class KnobSpace:
    """Implements :class:`tvmtune.types.Space` for one convolution on one configuration."""

    def __init__(self, conv: Convolution, epilogue: Epilogue, config: Config) -> None:
        self.conv, self.epilogue, self.config = conv, epilogue, config
        self.size: int | None = sum(1 for _ in knobs.points(conv, config))
        """Points whose tiles divide the workload; some may still be misfits."""

    def generator(self) -> SpaceGenerator:
        from tvm.s_tir.meta_schedule.space_generator import ScheduleFn

        check = _check(self.conv, self.epilogue, self.config)
        sample = functools.partial(_note, conv=self.conv, config=self.config)
        return ScheduleFn(sample, sch_rules=[], postprocs=[check], mutator_probs={})

    def default(self, mod: tvm.IRModule, target: tvm.target.Target) -> Schedule:
        """The knobs that an estimate ranks first among those that fit."""
        values = first(self.conv, self.epilogue, self.config)
        return noted(mod, self.conv, self.config, values)


def noted(mod: tvm.IRModule, conv: Convolution, config: Config, values: Knobs) -> Schedule:
    """A schedule of the space that stands for these knobs."""
    from tvm.s_tir import Schedule

    sch = Schedule(mod, error_render_level="none")
    _note(sch, conv, config, values)
    sch.enter_postproc()
    return sch


def _note(sch: Schedule, conv: Convolution, config: Config, values: Knobs | None = None) -> None:
    """Sample each knob, or take its value, and annotate the block with it.

    Tiles are factors of the block's loops; those of a transposed convolution's pictures are not, and
    come from a list.
    """
    block = sch.get_sblock(BLOCK)
    loops = sch.get_loops(block)
    told = values.to_json() if values is not None else {}
    tiled, known = knobs.extents(conv, config), knobs.options(conv, config)
    for name, choices in known.items():
        value = told.get(name)
        if name in _LOOPS and int(sch.get(loops[_LOOPS[name]]).extent) == tiled[name]:
            decision = None if value is None else [tiled[name] // value, value]
            _, found = sch.sample_perfect_tile(
                loops[_LOOPS[name]], n=2, max_innermost_factor=1 << 16, decision=decision
            )
        else:
            chosen = None if value is None else choices.index(value)
            likely = [1 / len(choices)] * len(choices)
            found = sch.sample_categorical([*choices], likely, decision=chosen)
        sch.annotate(block, PREFIX + name, found)


def read(mod: tvm.IRModule) -> Knobs | None:
    """The knobs that a scheduled module notes; None for an unscheduled one."""
    from tvmtune.graph.sites import blocks

    for block in blocks(mod["main"]):
        found = {
            str(key).removeprefix(PREFIX): int(value)
            for key, value in block.annotations.items()
            if str(key).startswith(PREFIX)
        }
        if found:
            return Knobs(**found)
    return None


def first(conv: Convolution, epilogue: Epilogue, config: Config) -> Knobs:
    """What is taken without any trial: of the points that fit, the one that :func:`estimate` likes
    best. Raises :class:`Misfit` if none fits."""
    ranked = sorted(
        knobs.points(conv, config), key=lambda each: estimate(conv, epilogue, each, config)
    )
    for each in ranked:
        try:
            generate(conv, epilogue, each, config)
        except Misfit:
            continue
        return each
    raise Misfit(f"{conv}: no tile of it fits the memories of {config.bitstream}")


def _check(conv: Convolution, epilogue: Epilogue, config: Config) -> Any:
    """A post-processor that refuses knobs for which the hardware has no room."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.postproc import PyPostproc

    @derived_object
    class Fits(PyPostproc):
        def _initialize_with_tune_context(self, context: Any) -> None:
            pass

        def apply(self, sch: Any) -> bool:
            found = read(sch.mod)
            return found is not None and fits(conv, epilogue, found, config)

        def clone(self) -> Any:
            return _check(conv, epilogue, config)

    return Fits()
