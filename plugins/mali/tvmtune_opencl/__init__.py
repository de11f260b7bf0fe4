"""What TVM's wheel lacks to run OpenCL: a small C++ library, built on the machine that needs it.

Each ``import tvm`` calls :func:`autoload`, so nothing is imported here that takes time.
"""

from __future__ import annotations

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
"""Hardly anything is computed in it: -O2 takes a third longer and gains nothing."""
NAME = "libtvmtune_opencl.so"
DEADLINE = 120.0
"""Seconds for a look at the devices: a first import of TVM from a cold disk alone can take 20."""

_loaded: list[ctypes.CDLL] = []


def autoload() -> None:
    """Load the library where it has been built. Called by ``import tvm``; never raises or builds.

    OpenCL itself is not touched: that waits for the first use, which may be in a forked child.
    """
    try:
        if _cache().is_dir():
            library = place()
            if whole(library):
                _open(library)
    except Exception:
        # What is wrong is said where OpenCL is asked for, by load().
        return


def load() -> None:
    """Have TVM run OpenCL in this process; the library is built first where that was not done.

    Does nothing where TVM has an OpenCL runtime of its own. Raises TvmtuneError where it cannot be
    built or loaded; whether there is a device is not looked at.
    """
    import tvm  # noqa: F401 - calls autoload()

    if active():
        return
    try:
        _open(build())
    except OSError:  # built on another system that shares this home directory
        try:
            _open(build(anew=True))
        except OSError as exc:
            from tvmtune.errors import TvmtuneError

            raise TvmtuneError(f"the OpenCL add-on cannot be loaded: {exc}") from exc
    if not active():
        from tvmtune.errors import TvmtuneError

        raise TvmtuneError("the OpenCL add-on does not fit this tvm-ffi: see tvmtune doctor")


def active() -> bool:
    """Whether TVM can run OpenCL in this process, with this library or one of its own."""
    import tvm_ffi

    return tvm_ffi.get_global_func("device_api.opencl", allow_missing=True) is not None


def describe() -> dict[str, Any]:
    """The OpenCL devices of this machine, and why there are none.

    ``devices`` is a list of dicts with ``id``, ``name``, ``platform``, ``vendor``, ``version``,
    ``driver``, ``kind`` (gpu, cpu or accelerator), ``extensions``, ``local_memory`` (``own``, or
    ``global`` where it is main memory), ``local_memory_bytes``, ``memory_bytes``,
    ``largest_buffer_bytes``, ``cache_bytes``, ``work_group`` (work-items), ``compute_units``,
    ``mhz`` and ``float_vector`` (lanes). ``library`` is the driver that was loaded, ``problem`` is
    empty where there is a device. Boards answer the packed function ``tvmtune.opencl.describe``
    with the same as JSON. Raises TvmtuneError as :func:`load` does.
    """
    load()
    import tvm_ffi

    function = tvm_ffi.get_global_func("tvmtune.opencl.describe", allow_missing=True)
    if function is None:
        return _of_tvms_own()
    found: dict[str, Any] = json.loads(function())
    return found


def from_attributes(index: int, known: Mapping[str, Any]) -> dict[str, Any]:
    """A row of ``devices`` from what TVM's attributes tell of one, by their names; what they do not
    tell is empty or 0."""
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


def _of_tvms_own() -> dict[str, Any]:
    """:func:`describe` where TVM was built with OpenCL."""
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


def build(*, anew: bool = False) -> Path:
    """Compile the library unless that has been done, or ``anew``; its path in the user's cache.

    Raises TvmtuneError where there is no compiler, no room, or another version of TVM.
    """
    from tvmtune_opencl import compiler

    return compiler.build(place(), anew=anew)


def built() -> Path | None:
    """The library for these versions, this machine and these sources, or None."""
    try:
        library = place()
    except metadata.PackageNotFoundError:
        return None
    return library if whole(library) else None


def check() -> str:
    """One line on the devices found with the built library, by a process of its own.

    Raises TvmtuneError if there is none, or if the driver brings that process down.
    """
    from tvmtune.errors import TvmtuneError

    code = (
        "from tvmtune import torchless; torchless.install(); "
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
        raise TvmtuneError(f"the OpenCL driver gives no answer within {DEADLINE:g} s") from exc
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise TvmtuneError(f"the OpenCL devices cannot be listed: {said}")
    found = json.loads(lines[-1])
    if found["problem"]:
        raise TvmtuneError(found["problem"].removesuffix("."))
    return "; ".join(f"{d['id']}: {d['name']} ({d['version'].strip()})" for d in found["devices"])


def place() -> Path:
    """Where the library is, or will be.

    Every version of what it is built from, and for, has its own directory.
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


def whole(library: Path) -> bool:
    """Whether the library is there and not cut short: to load such a one ends the process (SIGBUS).

    Linkers put the table of the sections at the end.
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
    # The specification has relative paths ignored.
    root = Path(home) if home.startswith("/") else Path.home() / ".cache"
    return root / "tvmtune" / "opencl"


def _open(library: Path) -> None:
    _loaded.append(ctypes.CDLL(str(library)))
