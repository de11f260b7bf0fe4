"""SIMD extensions: those that a target's code may use, and those that this CPU lacks.

An instruction of a missing extension ends the process with SIGILL, so a library lists the extensions
that it needs and is refused before it is loaded.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune.machine import amx, hwcap, triples

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tvmtune.types import JSON

_CPUINFO = Path("/proc/cpuinfo")

_LINUX_NAMES = {
    # LLVM's name on the left, Linux's in /proc/cpuinfo on the right. Only extensions that LLVM uses
    # on its own or that TVM's intrinsics need: others would refuse libraries that run.
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512vnni": "avx512_vnni",
    "avxvnni": "avx_vnni",
    "amx-int8": "amx_int8",
    "neon": "asimd",
    "fullfp16": "asimdhp",
    "dotprod": "asimddp",
    "i8mm": "i8mm",
    "sve": "sve",
    "sve2": "sve2",
}

_FOR_DTYPES = {"bfloat16": {"avx512bf16": "avx512_bf16", "amx-bf16": "amx_bf16", "bf16": "bf16"}}
"""Those that only kernels of a dtype use, by dtype."""

_CLASSES = {
    "x86-64-v4": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "x86-64-v3": {"avx2", "fma"},
    "aarch64": {"asimd"},
}
"""Classes of CPUs that suit the same schedules, by the extensions that they have in common; the first
that applies. The names of x86 are those of the System V ABI (AMD64 supplement)."""


def cpu_class(target: dict[str, Any]) -> str | None:
    """The class of CPUs that code for ``target`` is for; None if it is none of the known ones."""
    names = set(required(target))
    return next((name for name, needed in _CLASSES.items() if needed <= names), None)


def required(target: dict[str, Any], dtypes: Iterable[str] = ()) -> list[str]:
    """Extensions that code for ``target`` may use, named as in /proc/cpuinfo, sorted.

    ``target`` is a TVM target as a dict; for an accelerator, its host counts. ``dtypes``: those of what
    the kernels read and write.
    """
    import tvm
    from tvm.target import codegen

    host = target if target.get("kind") == "llvm" else target.get("host")
    if not isinstance(host, dict) or host.get("kind") != "llvm":
        return []
    if re.match(r"arm(?!64)|thumb", str(host.get("mtriple", ""))):
        return []  # 32-bit ARM has other names for them
    features = codegen.llvm_get_cpu_features(tvm.target.Target(host))
    names = dict(_LINUX_NAMES)
    for dtype in dtypes:
        names |= _FOR_DTYPES.get(dtype, {})
    return sorted(names[str(name)] for name in features if str(name) in names)


def available(cpuinfo: Path = _CPUINFO) -> list[str]:
    """The extensions that this process may use, named as in /proc/cpuinfo, sorted; empty if unknown."""
    if cpuinfo == _CPUINFO and (reported := hwcap.names()):
        return reported
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        return []
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    names = set(line.group(1).split()) if line else set()
    if cpuinfo == _CPUINFO and "amx_tile" in names and not amx.is_usable():
        names = {name for name in names if not name.startswith("amx_")}
    return sorted(names)


def missing(names: Iterable[str], cpuinfo: Path = _CPUINFO) -> list[str]:
    """Those of ``names`` that this CPU lacks, sorted; empty if unknown."""
    present = available(cpuinfo)
    return sorted(set(names) - set(present)) if present else []


def can_run(target: dict[str, Any], mtriple: str, dtypes: Iterable[str] = ()) -> bool:
    """Whether this CPU runs code for an LLVM target of this triple (empty: this machine's); ``dtypes``
    as for :func:`required`."""
    return triples.runs_here(mtriple) and not missing(required(target, dtypes))


def missing_on_board(names: Iterable[str], board: JSON) -> list[str]:
    """As :func:`missing`, for a board with this description (:mod:`tvmtune.machine.describe`)."""
    present = board.get("features")
    return sorted(set(names) - set(present)) if present else []
