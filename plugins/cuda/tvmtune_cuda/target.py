"""TVM targets for NVIDIA GPUs: this machine's, a board's, or one given by architecture or tag."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from tvmtune import target_attrs
from tvmtune.errors import TvmtuneError, UsageError, nearest
from tvmtune.library import metadata
from tvmtune.machine import cpu_count, threads
from tvmtune.machine.known_boards import host_target, triple_of
from tvmtune.remote import protocol
from tvmtune.remote.client import boards
from tvmtune.types import Device
from tvmtune_cuda import gpus, tensor_cores, toolkit

LIMITS = ("max_threads_per_block", "max_shared_memory_per_block")
FLUSH = "flush-l2"
"""Flushes the L2 cache before each repeat, so that activations are cold, too."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
SWITCHES = (tensor_cores.NAME, FLUSH)
"""Attributes that are part of a device's identity in logs."""
GRAPHS = metadata.GRAPHS
"""Libraries capture their kernel launches once, in a CUDA graph. The kernels are the same: records
serve libraries with and without it."""
ATTRIBUTES = ("arch", "tag", "mcpu", "mtriple", "threads", "gpus", GRAPHS, *SWITCHES, *LIMITS)
EARLIEST = 75
"""The earliest architecture that CUDA 13, with which TVM's runtime is built, supports."""
DRIVER_TIMEOUT = 60.0
"""Deadline in seconds for this machine's driver to list its GPUs."""


@dataclass(frozen=True)
class Gpu:
    """What compiling for a GPU requires. The defaults hold for all since sm_75."""

    name: str
    arch: str
    threads: int = 1024
    """Maximum threads per block."""
    shared: int = 48 << 10
    """Bytes of shared memory per block without opting in to more."""
    registers: int = 1 << 16
    """32-bit registers per block."""
    processors: int = 0
    """Streaming multiprocessors; 0 if unknown."""
    l2: int = 0
    memory: int = 0
    host: dict[str, Any] | None = None
    """``mtriple`` and ``mcpu`` of its host if that is another machine."""
    cpus: int = 0
    """CPUs of that machine; 0 if unknown."""

    @staticmethod
    def of(found: dict[str, Any]) -> Gpu:
        """From a row of :func:`tvmtune_cuda.gpus.describe`."""
        return Gpu(
            name=found["name"],
            arch=found["arch"],
            threads=found["max_threads_per_block"],
            shared=found["max_shared_memory_per_block"],
            registers=found["registers_per_block"],
            processors=found["multi_processors"],
            l2=found["l2_cache_bytes"],
            memory=found["memory_bytes"],
        )


def describe_device(attrs: dict[str, Any], remote: str | None) -> Device:
    """The device for ``--target cuda``.

    The first GPU of this machine, or with ``remote`` that of a board. ``tag`` (one of TVM's, e.g.
    ``nvidia/nvidia-h100``) or ``arch`` (``sm_90``) names one to compile for, which need not be present.
    ``mtriple``, ``mcpu`` and ``threads`` (of the host's CPU) and the limits of a block override what is
    known. ``gpus``: how many of this machine's GPUs measure in parallel. Raises :class:`UsageError` for
    unknown names, :class:`TvmtuneError` if there is no GPU, no driver for it, or no compiler.
    """
    target_attrs.check(attrs, ATTRIBUTES)
    wanted = [name for name in SWITCHES if _wanted(name, attrs)]
    if "tag" in attrs and "arch" in attrs:
        raise UsageError("tag= and arch= both name a GPU: give one of them")
    compiler = toolkit.find()
    here = None
    if "tag" in attrs:
        gpu = _tagged(str(attrs["tag"]))
    elif "arch" in attrs:
        gpu = _of_arch(str(attrs["arch"]))
    elif remote is not None:
        gpu = _of_the_board(remote)
    else:
        gpu, here = _of_this_machine()
    toolkit.check_arch(compiler, gpu.arch)
    if remote is None and here is None:  # a GPU was named: is it the one in this machine?
        found = look()
        if not found["problem"] and _number_of(found["devices"][0]["arch"]) == _number_of(gpu.arch):
            gpus.check(found)
            here = found
    gpu_host = gpu.host or {}
    mtriple = str(attrs.get("mtriple") or gpu_host.get("mtriple", ""))
    limits = {
        name: target_attrs.number(name, attrs[name], most) if name in attrs else most
        for name, most in zip(LIMITS, (gpu.threads, gpu.shared), strict=True)
    }
    target = {
        "kind": "cuda",
        "arch": gpu.arch,
        **limits,
        "max_num_threads": limits["max_threads_per_block"],
        "thread_warp_size": 32,
        "registers_per_block": gpu.registers,
        **({"l2_cache_size_bytes": gpu.l2} if gpu.l2 else {}),
        "host": host_target(attrs.get("mcpu") or gpu_host.get("mcpu"), mtriple),
    }
    params = _parameters(gpu, target) | {GRAPHS: _wanted(GRAPHS, attrs)}
    if "gpus" in attrs:
        params["gpus"] = _parallel_gpus(attrs["gpus"], here)
    return Device(
        backend="cuda",
        target=target,
        attrs=dict.fromkeys(wanted, True),
        threads=_threads(attrs.get("threads"), gpu, here=remote is None and not mtriple),
        params=params,
        remote=remote,
        runtime="cuda",
        model=gpu.name,
        absent=remote is None and here is None,
    )


def _of_this_machine() -> tuple[Gpu, dict[str, Any]]:
    """The first GPU, and the description of all of them."""
    found = look()
    try:
        return Gpu.of(gpus.check(found)), found
    except TvmtuneError as error:
        raise TvmtuneError(
            f"{str(error).removesuffix('.')}. Measure on a board that has a GPU: --remote KEY (tvmtune "
            "devices lists them); or only compile for one: --target-attr arch=sm_90, or "
            "tag=nvidia/nvidia-h100."
        ) from None


def look() -> dict[str, Any]:
    """The result of :func:`tvmtune_cuda.gpus.describe`, from a separate process."""
    code = "import json; from tvmtune_cuda import gpus; print(json.dumps(gpus.describe()))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DRIVER_TIMEOUT,
            env=os.environ | {"PYTHONSAFEPATH": "1"},
        )
    except subprocess.TimeoutExpired as exc:
        raise TvmtuneError(f"NVIDIA's driver did not answer within {DRIVER_TIMEOUT:g} s") from exc
    if done.returncode != 0:
        message = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise TvmtuneError(f"the GPUs cannot be listed: {message}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _of_the_board(remote: str) -> Gpu:
    key = protocol.split_remote(remote)[0]
    reported = boards.ask(remote)
    if reported is None:
        raise UsageError(
            f"TVM's own server serves the board '{key}' and cannot describe it: give "
            "--target-attr arch=sm_90 or the like, or serve it with tvmtune serve --target cuda"
        )
    if trouble := boards.version_trouble(reported):
        raise TvmtuneError(f"the board '{key}' cannot be used: {trouble}")
    rows = [row for row in reported.get("gpus", ()) if row["kind"] == "cuda"]
    if not rows:
        raise TvmtuneError(f"the board '{key}' has {boards.no_device('cuda', 'cuda')}")
    row = rows[0]
    return Gpu(
        name=row["device_name"],
        arch="sm_" + str(row["compute_version"]).replace(".", ""),
        threads=int(row["max_threads_per_block"]),
        shared=int(row["max_shared_memory_per_block"]),
        processors=int(row["multi_processor_count"] or 0),
        memory=int(row["total_global_memory"] or 0),
        host={"mtriple": triple_of(str(reported["machine"]))},
        cpus=int(reported["cpus"]),
    )


def _of_arch(arch: str) -> Gpu:
    number = _number_of(arch)
    if number is None:
        raise UsageError(f"arch={arch} is not an NVIDIA architecture: give e.g. sm_90")
    if number < EARLIEST:
        raise UsageError(
            f"arch={arch}: TVM's runtime needs CUDA {gpus.NEEDED}, for sm_{EARLIEST} and later"
        )
    return Gpu(f"NVIDIA GPU of {arch}", arch)


def _tagged(tag: str) -> Gpu:
    import tvm

    known = [str(name) for name in tvm.target.list_tags()]
    if tag not in known:
        ours = [name for name in known if name.startswith("nvidia/")]
        raise UsageError(f"TVM has no tag '{tag}'.{nearest(tag, ours)}")
    target = tvm.target.Target(tag)
    if str(target.kind.name) != "cuda":
        raise UsageError(f"tag={tag} is not an NVIDIA GPU: its target kind is {target.kind.name}")
    attrs = target.attrs
    base = _of_arch(str(attrs["arch"]))
    host = target.host
    host_attrs = None
    if host is not None and "mtriple" in host.attrs:
        host_attrs = {
            name: str(host.attrs[name]) for name in ("mtriple", "mcpu") if name in host.attrs
        }
    return Gpu(
        name=tag,
        arch=base.arch,
        threads=int(attrs.get("max_threads_per_block", base.threads)),
        shared=int(attrs.get("max_shared_memory_per_block", base.shared)),
        registers=int(attrs.get("registers_per_block", base.registers)),
        l2=int(attrs.get("l2_cache_size_bytes", 0)),
        host=host_attrs,
    )


def _number_of(arch: str) -> int | None:
    found = re.fullmatch(r"sm_(\d{2,3})[af]?", arch)
    return int(found[1]) if found else None


def _parallel_gpus(given: Any, here: dict[str, Any] | None) -> list[str]:
    """CUDA's names of the first ``given`` GPUs of this machine that are identical to its first."""
    count = target_attrs.number("gpus", given)
    if here is None:
        raise UsageError(f"gpus={given}: only for GPUs of this machine")
    alike = gpus.alike(here)
    if count > len(alike):
        name = here["devices"][0]["name"]
        raise UsageError(f"gpus={count}: this machine has {len(alike)} ({name})")
    shown = os.environ.get(VISIBLE)
    names = shown.split(",") if shown else [str(n) for n in range(len(here["devices"]))]
    return [names[n] for n in alike[:count]]


def _wanted(name: str, attrs: dict[str, Any]) -> bool:
    """The value of an attribute that must be 0 or 1."""
    given = attrs.get(name, 0)
    if given not in (0, 1):
        raise UsageError(f"{name}={given}: give 1, or omit it")
    return bool(given)


def _threads(given: Any, gpu: Gpu, *, here: bool) -> int:
    if given is not None:
        return threads.parse(given, here=here)
    return gpu.cpus or (cpu_count.usable_cpus() if here else 1)


def _parameters(gpu: Gpu, target: dict[str, Any]) -> dict[str, Any]:
    """Hardware parameters under the names of TVM's auto_scheduler; memory in bytes, 0 if unknown."""
    return {
        "num_cores": gpu.processors,
        "vector_unit_bytes": 16,
        "cache_line_bytes": 128,
        "max_shared_memory_per_block": target["max_shared_memory_per_block"],
        "max_local_memory_per_block": 2**31 - 1,
        "max_threads_per_block": target["max_threads_per_block"],
        "max_vthread_extent": 8,
        "warp_size": target["thread_warp_size"],
        "registers_per_block": gpu.registers,
        "l2_cache_bytes": gpu.l2,
        "memory_bytes": gpu.memory,
        "arch": gpu.arch,
    }
