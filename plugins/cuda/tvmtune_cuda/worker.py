"""Run workers that measure on this machine's GPUs.

After a kernel with an illegal access or a trap, CUDA refuses all further work in that process. The
process then exits with CUDA's message; the next candidate gets a fresh one.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tvmtune.errors import TvmtuneError, last_line
from tvmtune.machine import file_lock
from tvmtune.measure import gpu_baseline, local
from tvmtune.types import TensorSpec, Timing
from tvmtune_cuda import build, toolkit
from tvmtune_cuda.target import VISIBLE

RUNTIME = "libcudart.so.13"
FLUSH = "tvmtune_cuda.flush"
LARGE = 128 << 20
"""Assumed bytes of an L2 cache whose size the driver does not report."""
GPU_RELEASE_TIMEOUT = 10.0
"""Seconds to wait for a process that is being replaced to release its GPU."""
STICKY_ERRORS = (
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
"""Error messages after which a process can no longer use the GPU: NVIDIA's documentation says to
terminate and relaunch it."""
_T = TypeVar("_T")
_scratch: list[Any] | None = None
"""Tensors that are copied to fill the cache."""


def init(options: dict[str, Any]) -> None:
    """Called once in each run worker."""
    from tvmtune.machine import threads

    if options["gpus"]:
        take(options["gpus"], Path(options["directory"]))
    load()
    threads.share(int(options["threads"]))


def take(names: Sequence[str], folder: Path) -> None:
    """Restrict this process to one GPU: one of those that CUDA calls ``names``, not taken by another
    process that shares ``folder``. It is released when the process ends, however it ends.

    CUDA reads the choice when it is first used. Raises :class:`TvmtuneError` if all are taken, or
    nothing can be locked in ``folder``.
    """
    end = time.monotonic() + GPU_RELEASE_TIMEOUT
    while True:
        for number, name in enumerate(names):
            held = os.open(folder / f"gpu-{number}.lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                taken = file_lock.take(held)
            except file_lock.CannotLock as error:
                os.close(held)
                raise TvmtuneError(
                    f"no GPU can be reserved in {folder}: {error.strerror}. Set TMPDIR to a local disk."
                ) from None
            if taken:
                os.environ[VISIBLE] = name
                return
            os.close(held)
        if time.monotonic() > end:
            raise TvmtuneError("every GPU is in use by another process of this session")
        time.sleep(0.01)


def load() -> None:
    """Enable CUDA for TVM in this process. Raises :class:`TvmtuneError` if something is missing."""
    import tvm
    import tvm_ffi

    tvm_ffi.register_global_func(FLUSH, flush, override=True)
    if tvm.get_global_func("device_api.cuda", allow_missing=True) is None:
        _load_runtime(Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so")
    if not tvm.cuda(0).exist:
        from tvmtune_cuda import gpus

        gpus.check(gpus.describe())
        raise TvmtuneError("the driver finds a GPU, but CUDA's runtime does not: see nvidia-smi")


def _load_runtime(library: Path) -> None:
    """Load TVM's CUDA runtime, which `import tvm` skips if a library that it needs is not found."""
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
            f"{RUNTIME} is not installed: run pip install 'tvmtune[cuda]', or install CUDA's toolkit"
        )
    try:
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    except OSError as exc:
        raise TvmtuneError(f"TVM's CUDA runtime cannot be loaded: {last_line(exc)}") from exc


def flush(first: Any, *_: Any) -> None:
    """Fill the L2 cache of a tensor's GPU with data that no kernel needs."""
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
    return _or_exit(lambda: local.run(artifact, args, timing, options))


def check(
    artifact: str, reference: str, args: Sequence[TensorSpec], options: dict[str, Any]
) -> float:
    """As :func:`tvmtune.measure.local.check`."""
    return _or_exit(lambda: local.check(artifact, reference, args, options))


def baseline(target: dict[str, Any], options: dict[str, Any]) -> float:
    """As :func:`tvmtune.measure.gpu_baseline.baseline`; ``options`` include the builder's."""
    with build.sources():
        return _or_exit(lambda: gpu_baseline.baseline(target, options, build.build))


def _or_exit(work: Callable[[], _T]) -> _T:
    """The result of ``work``; exits the process after a sticky error."""
    try:
        return work()
    except Exception as error:
        message = str(error)
        sticky = next((text for text in STICKY_ERRORS if text in message), None)
        if sticky is None:
            raise
        print(f"CUDA: {sticky}", file=sys.stderr, flush=True)
        os._exit(1)
