"""The design space of a user's schedule template."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tvmtune.errors import TvmtuneError
from tvmtune.spaces import knobs, rule_space, tensor_intrinsics, traces
from tvmtune.types import digest

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule.space_generator import SpaceGenerator

DEFAULT_DRAWS = 32
"""Samples tried for a default schedule; if none is valid, the space counts as empty."""


class TemplateSpace:
    """Implements :class:`tvmtune.types.Space` for a function that samples knobs on a schedule.

    ``template`` takes a fresh :class:`tvm.s_tir.Schedule` of the workload. TVM's post-processors for
    the target follow, as after TVM's own rules. Raises :class:`TvmtuneError` if no sample is valid.
    """

    def __init__(
        self, template: Callable[[Any], None], mod: tvm.IRModule, target: tvm.target.Target
    ) -> None:
        self.template = template
        self._kind = str(target.kind.name)
        self._default = self._draw(mod, target)
        drawn = traces.to_json(self._default)
        sampled = knobs.knobs(drawn)
        self.version = digest(traces.design(drawn[0]))
        """Changes when the template's instructions change."""
        self.size: int | None = knobs.size(sampled)
        if any(knob.options is None for knob in sampled):
            self.size = None

    def generator(self) -> SpaceGenerator:
        from tvm.s_tir.meta_schedule.space_generator import ScheduleFn

        tensor_intrinsics.load_for(self._kind)
        return ScheduleFn(self.template, sch_rules=[])

    def default(self, mod: tvm.IRModule, target: tvm.target.Target) -> Schedule:
        """The first of a fixed sequence of samples that passes the target's post-processors."""
        return self._default

    def _draw(self, mod: tvm.IRModule, target: tvm.target.Target) -> Schedule:
        from tvm.s_tir import Schedule

        context = rule_space.tune_context(mod, target, self.generator(), seed=1)
        postprocs = list(context.space_generator.postprocs)
        refused = ""
        for seed in range(1, DEFAULT_DRAWS + 1):
            drawn = Schedule(mod, seed=seed, error_render_level="fast")
            self.template(drawn)
            drawn.enter_postproc()
            failed = [p for p in postprocs if not p.apply(drawn)]
            if not failed:
                return drawn
            refused = type(failed[0]).__name__
        raise TvmtuneError(
            f"the template samples an empty space: none of {DEFAULT_DRAWS} draws passes the target's "
            f"check {refused}; widen its knobs, or bind fewer threads and less memory"
        )
