"""SIMD extensions: which a target's code may use, and which this CPU lacks.

Code for an extension that is not there ends the process with SIGILL at its first such instruction,
so a library names what it needs, and it is refused before it is loaded.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune import hwcap

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tvmtune.types import JSON

_LINUX_NAMES = {
    # LLVM's name on the left, Linux's in /proc/cpuinfo on the right. Only what LLVM uses by itself
    # or TVM's intrinsics ask for: the rest would refuse libraries that run.
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512vnni": "avx512_vnni",
    "amx-int8": "amx_int8",
    "neon": "asimd",
    "fullfp16": "asimdhp",
    "dotprod": "asimddp",
    "i8mm": "i8mm",
    "sve": "sve",
    "sve2": "sve2",
}


def required(target: dict[str, Any]) -> list[str]:
    """Extensions that code for ``target`` may use, sorted, by their names in /proc/cpuinfo.

    ``target`` is a TVM target as a dict; of one for an accelerator the host part counts.
    """
    import tvm
    from tvm.target import codegen

    host = target if target.get("kind") == "llvm" else target.get("host")
    if not isinstance(host, dict) or host.get("kind") != "llvm":
        return []
    if re.match(r"arm(?!64)|thumb", str(host.get("mtriple", ""))):
        return []  # 32-bit Arm has names of its own for them
    found = codegen.llvm_get_cpu_features(tvm.target.Target(host))
    return sorted(_LINUX_NAMES[str(name)] for name in found if str(name) in _LINUX_NAMES)


_CPUINFO = Path("/proc/cpuinfo")


def missing(names: Iterable[str], cpuinfo: Path = _CPUINFO) -> list[str]:
    """Those of ``names`` that this CPU lacks, sorted; none where the system does not tell."""
    if cpuinfo == _CPUINFO and (told := hwcap.names()):
        return sorted(set(names) - set(told))
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        return []
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    if found is None:
        return []
    return sorted(set(names) - set(found.group(1).split()))


def lacking(names: Iterable[str], board: JSON) -> list[str]:
    """Those of ``names`` that a board lacks, as :mod:`tvmtune.farm.describe` describes it, sorted; none
    where it does not tell."""
    told = board.get("features")
    return sorted(set(names) - set(told)) if told else []
