"""``random``: independent draws from the space."""

from __future__ import annotations

from collections.abc import Sequence

from tvmtune.graph import spaces
from tvmtune.tuning.tuners.base import Proposal, Tuner, TunerArgs

OPTIONS: dict[str, int | float] = {}


class RandomTuner:
    """Draws a design space, then every decision in it, uniformly."""

    name = "random"

    def __init__(self, args: TunerArgs) -> None:
        import random

        self.args = args
        self.rng = random.Random(args.seed)
        self.context = spaces.tune_context(
            args.implementation.mod,
            args.target,
            args.implementation.space.generator(),
            seed=args.seed,
            threads=args.threads,
        )
        self.designs = list(self.context.generate_design_space())
        self.postprocs = list(self.context.space_generator.postprocs)

    def ask(self, count: int) -> list[Proposal]:
        from tvm.s_tir import Trace

        proposals: list[Proposal] = []
        for _ in range(count * 10):
            if len(proposals) == count:
                break
            design = self.rng.choice(self.designs)
            trace = Trace(design.trace.insts, {})  # no decisions: all are drawn anew
            schedule = spaces.replay(
                self.args.implementation.mod, trace, self.postprocs, self.rng.randrange(1, 2**31)
            )
            if schedule is None:
                continue
            proposal = Proposal.of(schedule)
            if proposal.candidate not in self.args.known:
                self.args.known.add(proposal.candidate)
                proposals.append(proposal)
        return proposals

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float]) -> None:
        """Nothing to learn."""


def create(args: TunerArgs) -> Tuner:
    return RandomTuner(args)
