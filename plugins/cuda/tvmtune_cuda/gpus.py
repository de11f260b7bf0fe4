"""Lists this machine's NVIDIA GPUs through the driver API, without the CUDA toolkit or TVM."""

from __future__ import annotations

import ctypes
from typing import Any

from tvmtune.errors import TvmtuneError

NEEDED = 13
"""CUDA's major version that TVM's runtime was built with: the driver must support it."""
LIBRARY = "libcuda.so.1"

_NO_DEVICE, _STUB, _MISMATCH = 100, 34, 803
_PROBLEMS = {
    _NO_DEVICE: "the driver finds no NVIDIA GPU",
    _STUB: f"{LIBRARY} is the toolkit's stub, not the driver's",
    _MISMATCH: "the driver's library and its kernel module are of different versions: restart",
}
_ATTRIBUTES = {
    "max_threads_per_block": 1,
    "max_shared_memory_per_block": 8,
    "warp_size": 10,
    "registers_per_block": 12,
    "clock_khz": 13,
    "multi_processors": 16,
    "l2_cache_bytes": 38,
    "major": 75,
    "minor": 76,
}
"""Values of ``CUdevice_attribute`` in the driver API."""


def describe() -> dict[str, Any]:
    """The GPUs of this machine, or why there are none.

    ``driver`` is the newest CUDA that the driver supports, ``[major, minor]``; ``devices`` a list of
    dicts with ``name``, ``arch`` (``sm_90``), ``memory_bytes`` and ``max_threads_per_block``,
    ``max_shared_memory_per_block`` (bytes), ``warp_size`` (threads), ``registers_per_block``,
    ``clock_khz``, ``multi_processors`` and ``l2_cache_bytes``. ``problem`` is empty if there is a
    GPU. Call it in a separate process: a driver may hang or crash.
    """
    found: dict[str, Any] = {"problem": "", "driver": None, "devices": []}
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError:
        found["problem"] = f"NVIDIA's driver is not installed ({LIBRARY} is missing)"
        return found
    version = ctypes.c_int()
    if cuda.cuDriverGetVersion(ctypes.byref(version)) == 0:
        found["driver"] = [version.value // 1000, version.value % 1000 // 10]
    if status := cuda.cuInit(0):
        found["problem"] = (
            _PROBLEMS.get(status) or f"the driver cannot be used: {_name(cuda, status)}"
        )
        return found
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    found["devices"] = [_device(cuda, index) for index in range(count.value)]
    if not found["devices"]:
        found["problem"] = _PROBLEMS[_NO_DEVICE]
    return found


def check(found: dict[str, Any]) -> dict[str, Any]:
    """The first GPU that :func:`describe` lists.

    Raises :class:`TvmtuneError` if there is none, or if its driver is older than TVM's runtime.
    """
    if found["problem"]:
        raise TvmtuneError(found["problem"])
    if found["driver"] and found["driver"][0] < NEEDED:
        major, minor = found["driver"]
        raise TvmtuneError(
            f"the driver of {found['devices'][0]['name']} supports CUDA {major}.{minor}, and TVM's "
            f"runtime needs {NEEDED}.0: install a newer driver"
        )
    first: dict[str, Any] = found["devices"][0]
    return first


def alike(found: dict[str, Any]) -> list[int]:
    """The indices of all GPUs identical to the first, which can measure in parallel."""
    kinds = [(each["name"], each["arch"]) for each in found["devices"]]
    return [number for number, kind in enumerate(kinds) if kind == kinds[0]]


def _device(cuda: ctypes.CDLL, index: int) -> dict[str, Any]:
    handle = ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(handle), index)
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(name, len(name), handle)
    memory = ctypes.c_size_t()
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    values: dict[str, int] = {}
    for attribute, number in _ATTRIBUTES.items():
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), number, handle)
        values[attribute] = value.value
    arch = f"sm_{values.pop('major')}{values.pop('minor')}"
    return {"name": name.value.decode(), "arch": arch, "memory_bytes": memory.value, **values}


def _name(cuda: ctypes.CDLL, status: int) -> str:
    text = ctypes.c_char_p()
    cuda.cuGetErrorName(status, ctypes.byref(text))
    return text.value.decode() if text.value else f"error {status}"
