"""TVM targets for AMD GPUs."""

from __future__ import annotations

import re
from typing import Any

from tvmtune import target_attrs
from tvmtune.errors import TvmtuneError, UsageError, nearest
from tvmtune.machine import cpu_count, threads
from tvmtune.machine.known_boards import host_target
from tvmtune.types import Device
from tvmtune_rocm import toolchain

LIMITS = {"max_threads_per_block": 256, "max_shared_memory_per_block": 64 << 10}
"""Limits of kernels unless lower ones are given: AMD's compilers allow 256 threads by default."""
ATTRIBUTES = ("arch", "mcpu", "mtriple", "threads", *LIMITS)
TRIPLE = "amdgcn-amd-amdhsa-hcc"


def describe_device(attrs: dict[str, Any], remote: str | None) -> Device:
    """The device for ``--target rocm``.

    ``arch`` names its architecture, e.g. ``gfx90a``: required, since TVM's wheel cannot query a GPU.
    ``mtriple``, ``mcpu`` and ``threads`` are of the host's CPU. Raises
    :class:`UsageError` for unknown names, :class:`TvmtuneError` if a tool is missing.
    """
    target_attrs.check(attrs, ATTRIBUTES)
    if "arch" not in attrs:
        raise UsageError(
            "which AMD GPU? Give --target-attr arch=gfx90a or the like (rocminfo shows it); or use the "
            "GPU through OpenCL, with --target opencl, which can also measure."
        )
    arch = str(attrs["arch"])
    if arch not in (known := _known()):
        raise UsageError(f"arch={arch}: LLVM does not compile for it.{nearest(arch, known)}")
    toolchain.find(arch)
    mtriple = str(attrs.get("mtriple") or "")
    limits = {
        name: target_attrs.number(name, attrs.get(name, most), most)
        for name, most in LIMITS.items()
    }
    warp = 32 if arch.startswith(("gfx10", "gfx11", "gfx12")) else 64
    target = {
        "kind": "rocm",
        "mcpu": arch,
        "mtriple": TRIPLE,
        **limits,
        "max_num_threads": limits["max_threads_per_block"],
        "thread_warp_size": warp,
        "host": host_target(attrs.get("mcpu"), mtriple),
    }
    here = remote is None and not mtriple
    given = attrs.get("threads")
    return Device(
        backend="rocm",
        target=target,
        threads=threads.parse(given, here=here)
        if given is not None
        else cpu_count.usable_cpus()
        if here
        else 1,
        params={
            "num_cores": 0,
            "vector_unit_bytes": 16,
            "cache_line_bytes": 64,
            "max_shared_memory_per_block": limits["max_shared_memory_per_block"],
            "max_local_memory_per_block": 2**31 - 1,
            "max_threads_per_block": limits["max_threads_per_block"],
            "max_vthread_extent": 8,
            "warp_size": warp,
        },
        remote=remote,
        runtime="rocm",
        model=f"AMD GPU of {arch}",
        absent=remote is None and not has_runtime(),
    )


def has_runtime() -> bool:
    """Whether this TVM can run ROCm kernels: the wheel cannot."""
    import tvm

    return tvm.get_global_func("device_api.rocm", allow_missing=True) is not None


def check_runtime() -> None:
    """Raise :class:`TvmtuneError` if TVM has no ROCm runtime, or finds no GPU."""
    import tvm

    if not has_runtime():
        raise TvmtuneError(
            "this TVM has no ROCm runtime (TVM's wheels have none): build TVM with USE_ROCM, or "
            "use the GPU through OpenCL (--target opencl)"
        )
    if not tvm.rocm(0).exist:
        raise TvmtuneError("ROCm's runtime finds no GPU: see rocminfo")


def _known() -> list[str]:
    """The architectures that LLVM compiles for."""
    import tvm

    target = tvm.target.Target({"kind": "llvm", "mtriple": TRIPLE})
    names = map(str, tvm.get_global_func("target.llvm_get_cpu_archlist")(target))
    return [name for name in names if re.fullmatch(r"gfx[0-9a-f]{3,4}", name)]
