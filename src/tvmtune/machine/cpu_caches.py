"""The caches of this machine's CPUs, as Linux describes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Cache:
    """A cache that holds data."""

    level: int
    size: int
    """Bytes."""
    line: int
    """Bytes."""
    cpus: str
    """The CPUs that share it, as Linux lists them."""


def of_cpu(cpu: int) -> list[Cache]:
    """The caches of a CPU, without those of instructions; none where they are not described."""
    found = []
    for index in sorted((CPUS / f"cpu{cpu}/cache").glob("index*")):
        try:
            kind, level, size, line, cpus = (
                (index / name).read_text().strip()
                for name in ("type", "level", "size", "coherency_line_size", "shared_cpu_list")
            )
        except OSError:
            continue
        if kind != "Instruction":
            found.append(Cache(int(level), int(size.rstrip("K")) << 10, int(line), cpus))
    return found
