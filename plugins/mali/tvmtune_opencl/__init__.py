"""An OpenCL runtime for TVM's wheel: a small C++ library, compiled on the machine that needs it.

Every ``import tvm`` calls :func:`autoload`, so this module imports nothing slow.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import json
import os
import platform
import struct
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parent / "cpp"
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-s")
"""The library computes next to nothing: -O2 compiles a third longer and gains nothing."""
NAME = "libtvmtune_opencl.so"
DEADLINE = 120.0
"""Deadline in seconds for listing the devices: the first import of TVM from a cold disk can take 20."""

_loaded: list[ctypes.CDLL] = []


def autoload() -> None:
    """Load the library if it is built. Called by ``import tvm``; never raises or builds.

    OpenCL itself is initialized on first use, which may be in a forked child.
    """
    try:
        if _cache().is_dir():
            library = place()
            if is_complete(library):
                _open(library)
    except Exception:
        # load() reports the problem when OpenCL is requested.
        return


def load() -> None:
    """Enable OpenCL for TVM in this process; build the library first if necessary.

    Does nothing if TVM has its own OpenCL runtime. Raises TvmtuneError if the library cannot be built
    or loaded; does not check for devices.
    """
    import tvm  # noqa: F401 - calls autoload()

    if active():
        return
    try:
        _open(build())
    except OSError:  # built on another system that shares this home directory
        try:
            _open(build(force=True))
        except OSError as exc:
            from tvmtune.errors import TvmtuneError

            raise TvmtuneError(f"the OpenCL add-on cannot be loaded: {exc}") from exc
    if not active():
        from tvmtune.errors import TvmtuneError

        raise TvmtuneError("the OpenCL add-on does not match this tvm-ffi: see tvmtune doctor")


def active() -> bool:
    """Whether TVM can run OpenCL in this process, with this library or its own runtime."""
    import tvm_ffi

    return tvm_ffi.get_global_func("device_api.opencl", allow_missing=True) is not None


def describe() -> dict[str, Any]:
    """The OpenCL devices of this machine, or why there are none.

    ``devices`` is a list of dicts with ``id``, ``name``, ``platform``, ``vendor``, ``version``,
    ``driver``, ``kind`` (gpu, cpu or accelerator), ``extensions``, ``local_memory`` (``own``, or
    ``global`` if it is main memory), ``local_memory_bytes``, ``memory_bytes``,
    ``largest_buffer_bytes``, ``cache_bytes``, ``work_group`` (maximum work-items), ``compute_units``,
    ``mhz`` and ``float_vector`` (lanes). ``library`` is the loaded driver; ``problem`` is empty if
    there is a device. Boards return the same as JSON from the packed function
    ``tvmtune.opencl.describe``. Raises TvmtuneError as :func:`load` does.
    """
    load()
    import tvm_ffi

    function = tvm_ffi.get_global_func("tvmtune.opencl.describe", allow_missing=True)
    if function is None:
        return _describe_tvm_runtime()
    report: dict[str, Any] = json.loads(function())
    return report


def from_attributes(index: int, known: Mapping[str, Any]) -> dict[str, Any]:
    """A row of ``devices`` from TVM's device attributes, by name; missing values are empty or 0."""
    text = {"platform": "", "vendor": "", "driver": "", "kind": "gpu", "extensions": ""}
    return {
        "id": index,
        "name": str(known.get("device_name") or "an OpenCL device"),
        **text,
        "version": str(known.get("compute_version") or ""),
        "local_memory": "own",
        "local_memory_bytes": int(known.get("max_shared_memory_per_block") or 0),
        "memory_bytes": int(known.get("total_global_memory") or 0),
        "largest_buffer_bytes": 0,
        "cache_bytes": 0,
        "work_group": int(known.get("max_threads_per_block") or 0),
        "compute_units": int(known.get("multi_processor_count") or 0),
        "mhz": 0,
        "float_vector": 0,
    }


def _describe_tvm_runtime() -> dict[str, Any]:
    """:func:`describe` for a TVM built with OpenCL."""
    import tvm

    names = (
        *("device_name", "compute_version", "multi_processor_count", "max_threads_per_block"),
        *("max_shared_memory_per_block", "total_global_memory"),
    )
    rows: list[dict[str, Any]] = []
    while (device := tvm.opencl(len(rows))).exist:
        known = {name: getattr(device, name, None) for name in names}
        rows.append(from_attributes(len(rows), known))
    problem = "" if rows else "no OpenCL device: TVM's own runtime finds none."
    return {"devices": rows, "library": "TVM's own", "problem": problem}


def build(*, force: bool = False) -> Path:
    """Compile the library unless it exists, or always with ``force``; returns its path.

    Raises TvmtuneError if there is no compiler, no disk space, or an unsupported version of TVM.
    """
    from tvmtune_opencl import compiler

    return compiler.build(place(), force=force)


def built() -> Path | None:
    """The path of the library for these versions, this machine and these sources; None if not built."""
    try:
        library = place()
    except metadata.PackageNotFoundError:
        return None
    return library if is_complete(library) else None


def check() -> str:
    """One line that lists the devices, found by a separate process with the built library.

    Raises TvmtuneError if there is none, or if the driver crashes that process.
    """
    from tvmtune.errors import TvmtuneError

    code = (
        "from tvmtune import block_torch_import; block_torch_import.install(); "
        "import json, tvmtune_opencl; print(json.dumps(tvmtune_opencl.describe()))"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DEADLINE,
            env=os.environ | {"PYTHONSAFEPATH": "1"},
        )
    except subprocess.TimeoutExpired as exc:
        raise TvmtuneError(f"the OpenCL driver did not answer within {DEADLINE:g} s") from exc
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        message = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise TvmtuneError(f"the OpenCL devices cannot be listed: {message}")
    report = json.loads(lines[-1])
    if report["problem"]:
        raise TvmtuneError(report["problem"].removesuffix("."))
    return "; ".join(f"{d['id']}: {d['name']} ({d['version'].strip()})" for d in report["devices"])


def place() -> Path:
    """The path of the library, built or not.

    Each combination of sources, flags, versions and machine has its own directory.
    """
    text = hashlib.sha256(" ".join(FLAGS).encode())
    for source in sorted(SOURCES.iterdir()):
        text.update(source.read_bytes())
    libc = (os.confstr("CS_GNU_LIBC_VERSION") or "libc").replace(" ", "-")
    names = (
        f"tvm-{metadata.version('apache-tvm')}",
        f"ffi-{metadata.version('apache-tvm-ffi')}",
        f"{platform.machine()}-{libc}",
        text.hexdigest()[:12],
    )
    return _cache().joinpath("_".join(names), NAME)


def is_complete(library: Path) -> bool:
    """Whether the library exists and is not truncated.

    Loading a truncated one kills the process (SIGBUS). Linkers put the section header table at the end.
    """
    try:
        with library.open("rb") as file:
            header = file.read(64)
            size = os.fstat(file.fileno()).st_size
        (table,) = struct.unpack_from("<Q", header, 0x28)
        entry, count = struct.unpack_from("<HH", header, 0x3A)
    except (OSError, struct.error):
        return False
    return header[:5] == b"\x7fELF\x02" and size >= table + entry * count


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says to ignore relative paths.
    root = Path(home) if home.startswith("/") else Path.home() / ".cache"
    return root / "tvmtune" / "opencl"


def _open(library: Path) -> None:
    loaded = ctypes.CDLL(str(library))
    _loaded.append(loaded)
    atexit.register(loaded.tvmtune_opencl_finish)
