"""Other algorithms for an operator than the direct one.

An algorithm is a custom legalisation: it replaces some calls of a Relax operator by another
TensorIR program with the same result. Fusion then works as before, so that the kernels of the
network stay the same in number and order, and each that changed has found a second implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvmtune.graph import winograd

if TYPE_CHECKING:
    from tvmtune.graph.pipeline import Legalizer


@dataclass(frozen=True)
class Algorithm:
    """A way to compute some calls of one operator."""

    name: str
    operator: str
    applies: Callable[[Any], bool]
    """Whether it can compute this call."""
    replace: Callable[[Any, Any, bool], Any]
    """``(block_builder, call, values) -> expression`` for a call that it applies to; without
    ``values`` what it computes of the weights is left blank."""
    exact: bool = True
    """False if it rounds differently from the direct algorithm."""


ALGORITHMS = (
    Algorithm("winograd", "relax.nn.conv2d", winograd.applies, winograd.replace, exact=False),
)


class Choice:
    """Legalisers that use ``algorithms`` where they apply.

    ``only`` limits an algorithm (by name) to some of its applicable calls, counted from 0 in program
    order; an algorithm that is not in it is used for none. ``values`` False is for those who want to
    see the kernels and not run them.
    """

    def __init__(
        self,
        algorithms: Sequence[Algorithm],
        only: dict[str, set[int]] | None = None,
        *,
        values: bool = True,
    ) -> None:
        self.algorithms = algorithms
        self.only = only
        self.values = values
        self.applicable = {a.name: 0 for a in algorithms}
        """How many calls each algorithm could compute, after a legalisation."""

    def legalizers(self) -> dict[str, Legalizer]:
        """One legaliser per operator, for one run of ``LegalizeOps``."""
        self.applicable = {a.name: 0 for a in self.algorithms}
        return {a.operator: self._legalizer(a.operator) for a in self.algorithms}

    def _legalizer(self, operator: str) -> Legalizer:
        import tvm

        direct = tvm.ir.Op.get(operator).get_attr("FLegalize")

        def legalize(builder: Any, call: Any) -> Any:
            chosen = None
            for algorithm in self.algorithms:
                if algorithm.operator == operator and algorithm.applies(call):
                    ordinal = self.applicable[algorithm.name]
                    self.applicable[algorithm.name] += 1
                    if self.only is None or ordinal in self.only.get(algorithm.name, ()):
                        chosen = chosen or algorithm
            if chosen is None:
                return direct(builder, call)
            return chosen.replace(builder, call, self.values)

        return legalize
