"""The search space of a packed convolution: schedules that only annotate the block with knobs."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from tvmtune_vta.codegen import knobs
from tvmtune_vta.codegen.convolution import generate, is_feasible
from tvmtune_vta.codegen.estimate import estimate_cycles
from tvmtune_vta.codegen.knobs import InfeasibleKnobs, Knobs
from tvmtune_vta.codegen.workload import Convolution, Epilogue
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.tuning.conv2d_packed import BLOCK

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule.space_generator import SpaceGenerator

PREFIX = "tvmtune_vta."
"""Prefix of the annotations that hold the knobs."""
_LOOPS = {"tile_b": 0, "tile_co": 1, "tile_h": 2, "tile_w": 3, "tile_ci": 6}
"""The loop of the block that each tile splits."""


class KnobSpace:
    """Implements :class:`tvmtune.types.Space` for one convolution on one configuration."""

    def __init__(self, conv: Convolution, epilogue: Epilogue, config: Config) -> None:
        self.conv, self.epilogue, self.config = conv, epilogue, config
        self.size: int | None = sum(1 for _ in knobs.points(conv, config))
        """Knobs whose tiles divide the workload; some may be infeasible."""

    def generator(self) -> SpaceGenerator:
        from tvm.s_tir.meta_schedule.space_generator import ScheduleFn

        check = _feasibility_check(self.conv, self.epilogue, self.config)
        sample = functools.partial(_annotate, conv=self.conv, config=self.config)
        return ScheduleFn(sample, sch_rules=[], postprocs=[check], mutator_probs={})

    def default(self, mod: tvm.IRModule, target: tvm.target.Target) -> Schedule:
        """The feasible knobs with the lowest estimate."""
        values = default_knobs(self.conv, self.epilogue, self.config)
        return annotated(mod, self.conv, self.config, values)


def annotated(mod: tvm.IRModule, conv: Convolution, config: Config, values: Knobs) -> Schedule:
    """A schedule of the space with these knobs."""
    from tvm.s_tir import Schedule

    sch = Schedule(mod, error_render_level="none")
    _annotate(sch, conv, config, values)
    sch.enter_postproc()
    return sch


def _annotate(
    sch: Schedule, conv: Convolution, config: Config, values: Knobs | None = None
) -> None:
    """Annotate the block with each knob, sampled or given.

    Tiles are factors of loop extents, except those over the cropped output of a transposed
    convolution, which are sampled from a list.
    """
    block = sch.get_sblock(BLOCK)
    loops = sch.get_loops(block)
    given = values.to_json() if values is not None else {}
    extents, options = knobs.extents(conv, config), knobs.options(conv, config)
    for name, choices in options.items():
        value = given.get(name)
        if name in _LOOPS and int(sch.get(loops[_LOOPS[name]]).extent) == extents[name]:
            decision = None if value is None else [extents[name] // value, value]
            _, tile = sch.sample_perfect_tile(
                loops[_LOOPS[name]], n=2, max_innermost_factor=1 << 16, decision=decision
            )
        else:
            chosen = None if value is None else choices.index(value)
            likely = [1 / len(choices)] * len(choices)
            tile = sch.sample_categorical([*choices], likely, decision=chosen)
        sch.annotate(block, PREFIX + name, tile)


def read_knobs(mod: tvm.IRModule) -> Knobs | None:
    """The knobs of a scheduled module; None for an unscheduled one."""
    from tvmtune.passes.blocks import blocks

    for block in blocks(mod["main"]):
        values = {
            str(key).removeprefix(PREFIX): int(value)
            for key, value in block.annotations.items()
            if str(key).startswith(PREFIX)
        }
        if values:
            return Knobs(**values)
    return None


def default_knobs(conv: Convolution, epilogue: Epilogue, config: Config) -> Knobs:
    """The knobs used without a record: the feasible ones with the lowest :func:`estimate_cycles`.
    Raises :class:`InfeasibleKnobs` if there are none."""
    ranked = sorted(
        knobs.points(conv, config), key=lambda each: estimate_cycles(conv, epilogue, each, config)
    )
    for each in ranked:
        try:
            generate(conv, epilogue, each, config)
        except InfeasibleKnobs:
            continue
        return each
    raise InfeasibleKnobs(f"{conv}: no tile fits the memories of {config.bitstream}")


def _feasibility_check(conv: Convolution, epilogue: Epilogue, config: Config) -> Any:
    """A postprocessor that rejects infeasible knobs."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.postproc import PyPostproc

    @derived_object
    class IsFeasible(PyPostproc):
        def _initialize_with_tune_context(self, context: Any) -> None:
            pass

        def apply(self, sch: Any) -> bool:
            recorded = read_knobs(sch.mod)
            return recorded is not None and is_feasible(conv, epilogue, recorded, config)

        def clone(self) -> Any:
            return _feasibility_check(conv, epilogue, config)

    return IsFeasible()
