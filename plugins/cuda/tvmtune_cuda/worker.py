"""What a process does that measures on this machine's GPU.

After a kernel that reads where it may not, or that traps, CUDA refuses everything else in that process,
forever. Such a process ends with its message; the next candidate gets a fresh one.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tvmtune.errors import TvmtuneError, last_line
from tvmtune.measure import gpu_baseline, local
from tvmtune.types import TensorSpec, Timing
from tvmtune_cuda import build, toolkit
from tvmtune_cuda.target import VISIBLE

RUNTIME = "libcudart.so.13"
FLUSH = "tvmtune_cuda.flush"
LARGE = 128 << 20
"""Bytes of a second-level cache whose size the driver does not tell."""
FREED = 10.0
"""Seconds within which a process that is being replaced has let go of its GPU."""
LASTING = (
    *(
        "illegal memory access",
        "illegal instruction",
        "misaligned address",
        "unspecified launch failure",
    ),
    *(
        "invalid program counter",
        "hardware stack error",
        "device-side assert",
        "invalid address space",
    ),
    *("CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_LAUNCH_TIMEOUT"),
    *("CUDA_ERROR_ILLEGAL_INSTRUCTION", "CUDA_ERROR_MISALIGNED_ADDRESS", "CUDA_ERROR_ASSERT"),
    *("CUDA_ERROR_HARDWARE_STACK_ERROR", "CUDA_ERROR_INVALID_PC", "uncorrectable ECC error"),
    *("CUDA_ERROR_INVALID_ADDRESS_SPACE", "launch timed out and was terminated"),
)
"""What errors say after which a process cannot use the GPU any more: those of which NVIDIA's
documentation says that the process must be terminated and relaunched."""
_T = TypeVar("_T")
_scratch: list[Any] | None = None
"""What is copied to fill the cache."""


def init(options: dict[str, Any]) -> None:
    """Called once in each run worker."""
    from tvmtune import threads

    if options["gpus"]:
        take(options["gpus"], Path(options["directory"]))
    load()
    threads.share(int(options["threads"]))


def take(names: Sequence[str], folder: Path) -> None:
    """Have this process see one GPU alone: one of those that CUDA calls ``names``, and that no other
    process has which shares ``folder``. It is free again when the process ends, in whatever way.

    CUDA reads what is chosen here when it is first used. Raises :class:`TvmtuneError` if all are taken.
    """
    end = time.monotonic() + FREED
    while True:
        for number, name in enumerate(names):
            held = os.open(folder / f"gpu-{number}.lock", os.O_RDWR | os.O_CREAT, 0o600)
            with contextlib.suppress(OSError):
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.environ[VISIBLE] = name
                return
            os.close(held)
        if time.monotonic() > end:
            raise TvmtuneError("every GPU is taken by another process of this run")
        time.sleep(0.01)


def load() -> None:
    """Have TVM run CUDA in this process. Raises :class:`TvmtuneError` saying what is missing."""
    import tvm
    import tvm_ffi

    tvm_ffi.register_global_func(FLUSH, flush, override=True)
    if tvm.get_global_func("device_api.cuda", allow_missing=True) is None:
        _load_runtime(Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so")
    if not tvm.cuda(0).exist:
        from tvmtune_cuda import gpus

        gpus.check(gpus.describe())
        raise TvmtuneError("CUDA's runtime finds no GPU, and the driver does: see nvidia-smi.")


def _load_runtime(library: Path) -> None:
    """TVM leaves its part for CUDA out where one of the libraries that it needs is not found."""
    from tvmtune_cuda import gpus

    gpus.check(gpus.describe())
    folders = [home / "lib" for home in (*toolkit.homes_of_pip(), Path("/usr/local/cuda"))]
    for name in (RUNTIME, *(str(folder / RUNTIME) for folder in folders)):
        try:
            ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
            break
        except OSError:
            continue
    else:
        raise TvmtuneError(
            f"{RUNTIME} is not installed: run pip install 'tvmtune[cuda]', or install CUDA's toolkit."
        )
    try:
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    except OSError as exc:
        raise TvmtuneError(f"TVM's part for CUDA cannot be loaded: {last_line(exc)}") from exc


def flush(first: Any, *_: Any) -> None:
    """Have the second-level cache of a tensor's GPU filled with what no kernel needs."""
    import tvm

    global _scratch
    if _scratch is None:
        size = 2 * (first.device.l2_cache_size_bytes or LARGE)
        _scratch = [tvm.runtime.empty((size,), "uint8", first.device) for _ in range(2)]
    _scratch[0].copyto(_scratch[1])


def run(
    artifact: str, args: Sequence[TensorSpec], timing: Timing, options: dict[str, Any]
) -> list[float]:
    """As :func:`tvmtune.measure.local.run`."""
    return _or_end(lambda: local.run(artifact, args, timing, options))


def check(
    artifact: str, reference: str, args: Sequence[TensorSpec], options: dict[str, Any]
) -> float:
    """As :func:`tvmtune.measure.local.check`."""
    return _or_end(lambda: local.check(artifact, reference, args, options))


def baseline(target: dict[str, Any], options: dict[str, Any]) -> float:
    """As :func:`tvmtune.measure.gpu_baseline.baseline`; ``options`` are the builder's, too."""
    with build.sources():
        return _or_end(lambda: gpu_baseline.baseline(target, options, build.build))


def _or_end(work: Callable[[], _T]) -> _T:
    """The result of ``work``, or the end of this process where its error lasts."""
    try:
        return work()
    except Exception as error:
        said = str(error)
        found = next((text for text in LASTING if text in said), None)
        if found is None:
            raise
        print(f"CUDA: {found}", file=sys.stderr, flush=True)
        os._exit(1)
