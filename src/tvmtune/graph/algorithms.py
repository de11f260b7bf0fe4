"""Other algorithms for an operator than the direct one.

An algorithm is a custom legalisation: it replaces some calls of a Relax operator by another
TensorIR program with the same result. Fusion then works as before, so that the kernels of the
network stay the same in number and order, and each that changed has found a second implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvmtune.graph import gemm, winograd

if TYPE_CHECKING:
    from tvmtune.graph.pipeline import Legalizer
    from tvmtune.types import Device


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
    kinds: tuple[str, ...] = ()
    """Of the targets that it is for; none for all."""


_CONV = "relax.nn.conv2d"
_GPUS = ("cuda", "rocm")
"""Whose rules keep operands of products in memory that a group of threads shares."""
ALGORITHMS = (
    Algorithm("winograd", _CONV, winograd.applies, winograd.replace, exact=False),
    Algorithm("implicit-gemm", _CONV, gemm.applies, gemm.replace, kinds=_GPUS),
    Algorithm("split-k", _CONV, gemm.splits, gemm.replace_split, kinds=_GPUS),
)


def algorithms_for(device: Device) -> list[Algorithm]:
    """Those that suit the device's target."""
    kind = device.target["kind"]
    return [each for each in ALGORITHMS if not each.kinds or kind in each.kinds]


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
