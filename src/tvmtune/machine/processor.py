"""LLVM's name for this machine's processor."""

from __future__ import annotations

import functools

from tvmtune.machine import cpu_features

_WITH_TILES = "sapphirerapids"
_NEEDED = {"amx_bf16", "amx_int8", "amx_tile", "avx512_bf16", "avx512_fp16", "avx_vnni"}
"""What a Sapphire Rapids has and no older CPU, named as in /proc/cpuinfo."""


@functools.cache
def name() -> str:
    """The processor, or what is nearest to it by its features.

    LLVM goes by the model number, for which virtual machines may report that of another CPU: an older
    one, whose code would do without AMX and AVX512-BF16. Raises :class:`ValueError` if TVM has no LLVM.
    """
    import tvm

    found = str(tvm.get_global_func("target.llvm_get_system_cpu")())
    target = {"kind": "llvm", "mcpu": found}
    if "amx_int8" not in cpu_features.required(target):
        return found if _NEEDED - set(cpu_features.available()) else _WITH_TILES
    if cpu_features.missing(["amx_int8"]):  # the kernel or a sandbox does not allow it
        return "icelake-server" if cpu_features.missing(["avx512_bf16"]) else "cooperlake"
    return found
