"""End-to-end time of a library whose accelerator is simulated: that part modeled, the rest timed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvmtune.runtime.session import KernelTime
    from tvmtune.types import JSON


@dataclass(frozen=True)
class EndToEndTime:
    """Where the milliseconds of one run go."""

    accelerator_ms: float
    """Modeled, without launches."""
    launches_ms: float
    """Modeled: the host's time to start the accelerator."""
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
            f"{self.launches} launch{plural} {self.launches_ms:.3f}, both modeled; packing "
            f"{self.borders_ms:.3f} and the rest {self.cpu_ms:.3f}, timed on this machine's CPU"
        )


def end_to_end(programs: Sequence[JSON], kernels: Sequence[KernelTime]) -> EndToEndTime:
    """Combine the ``modelled`` programs of a library's metadata with a profile of its kernels.

    A program has the packed ``function`` that simulates it, the kernels that are its ``borders``, and
    its modeled ``seconds``, which include the ``launch_seconds``.
    """
    simulated = {str(each["function"]) for each in programs}
    border_names = tuple({str(name) for each in programs for name in each["borders"]})
    launches = 1e3 * sum(float(each["launch_seconds"]) for each in programs)
    borders = sum(row.ms for row in kernels if row.name.startswith(border_names))
    cpu = sum(row.ms for row in kernels if row.name not in simulated) - borders
    seconds = sum(float(each["seconds"]) for each in programs)
    return EndToEndTime(1e3 * seconds - launches, launches, len(programs), borders, cpu)
