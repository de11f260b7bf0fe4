"""What a library takes end to end whose accelerator is simulated: that part by a model, the rest timed
on this machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvmtune.deploy.session import KernelTime
    from tvmtune.types import JSON


@dataclass(frozen=True)
class Parts:
    """Milliseconds of a run, and where they go."""

    accelerator_ms: float
    """Modelled, without the launches."""
    launches_ms: float
    """Modelled: what the host needs to start the accelerator."""
    launches: int
    borders_ms: float
    """Timed: packing for the accelerator and unpacking."""
    cpu_ms: float
    """Timed: everything else."""

    @property
    def total_ms(self) -> float:
        return self.accelerator_ms + self.launches_ms + self.borders_ms + self.cpu_ms

    def to_json(self) -> JSON:
        return {"total_ms": self.total_ms, **asdict(self)}

    def __str__(self) -> str:
        plural = "es" if self.launches > 1 else ""
        return (
            f"{self.total_ms:.3f} ms end to end: accelerator {self.accelerator_ms:.3f} and "
            f"{self.launches} launch{plural} {self.launches_ms:.3f}, both modelled; packing "
            f"{self.borders_ms:.3f} and the rest {self.cpu_ms:.3f}, timed on this machine's CPU"
        )


def parts(programs: Sequence[JSON], kernels: Sequence[KernelTime]) -> Parts:
    """Of a library whose metadata name ``programs`` as modelled, and what its kernels took.

    A program says which packed ``function`` simulates it, which kernels are its ``borders``, its
    modelled ``seconds`` with the ``launch_seconds`` in them.
    """
    simulated = {str(each["function"]) for each in programs}
    names = tuple({str(name) for each in programs for name in each["borders"]})
    launches = 1e3 * sum(float(each["launch_seconds"]) for each in programs)
    borders = sum(row.ms for row in kernels if row.name.startswith(names))
    own = sum(row.ms for row in kernels if row.name not in simulated) - borders
    seconds = sum(float(each["seconds"]) for each in programs)
    return Parts(1e3 * seconds - launches, launches, len(programs), borders, own)
