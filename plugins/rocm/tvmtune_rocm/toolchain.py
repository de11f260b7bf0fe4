"""The tools that link LLVM's objects into GPU programs: lld, and ROCm's device library.

TVM 0.27 includes LLVM 22, which emits AMD's code object version 6, supported by lld since version 19.
Kernels with functions for which LLVM has no code, such as ``atan``, need the device library
(``rocm-device-libs``); convolutional networks have none.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tvmtune.errors import TvmtuneError

MIN_LLD = 19
"""The oldest lld that supports TVM's objects."""
VARIABLE = "TVMTUNE_ROCM_LLD"
_CONTROLS = (
    *("oclc_daz_opt_off", "oclc_finite_only_off", "oclc_unsafe_math_off"),
    "oclc_correctly_rounded_sqrt_on",
)
"""Switches of the device library, one file each."""
_SINCE_5_3 = "oclc_abi_version_500"
_MISNAMED = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "copysign", "cosh", "hypot"),
    *("ldexp", "log1p", "nextafter", "sinh", "tan"),
)


@dataclass(frozen=True)
class Tools:
    """The linker's command, and the device library's files for one architecture, if installed."""

    linker: tuple[str, ...]
    bitcode: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def register(self) -> None:
        """Make TVM use these in this process."""
        import tvm.support.rocm  # noqa: F401 - registers TVM's own search, which is replaced here
        import tvm_ffi

        register = tvm_ffi.register_global_func
        register("tvm_callback_rocm_bitcode_path", lambda *_: [*self.bitcode], override=True)
        register("tvm_callback_rocm_link", self.link, override=True)
        _name_functions()

    def link(self, code: Any) -> bytearray:
        """Link a relocatable object into a GPU program.

        Raises :class:`TvmtuneError` with the linker's error; undefined symbols are the device
        library's functions.
        """
        with tempfile.TemporaryDirectory(prefix=f"tvmtune-{os.getpid()}-") as folder:
            given, made = Path(folder) / "kernels.o", Path(folder) / "kernels.co"
            given.write_bytes(bytes(code))
            command = [*self.linker, "--no-undefined", "-shared", str(given), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace")
            if done.returncode == 0:
                return bytearray(made.read_bytes())
        message = (done.stderr.strip() or done.stdout.strip()).splitlines()
        if missing := sorted(set(re.findall(r"undefined (?:hidden )?symbol: (\w+)", done.stderr))):
            raise TvmtuneError(
                f"kernels call {', '.join(missing)} of ROCm's device library, which is missing "
                "or does not support this GPU: on Debian or Ubuntu, sudo apt-get install "
                "rocm-device-libs; or name ROCm's folder in ROCM_PATH"
            )
        raise TvmtuneError(
            f"{self.linker[0]}: {message[0] if message else f'exit {done.returncode}'}"
        )


@functools.cache
def _name_functions() -> None:
    """Make kernels call functions by their names in the device library, not those of the C library."""
    import tvm
    from tvm.tirx.op import register_intrin_lowering

    def rule(name: str) -> Any:
        def call(given: Any) -> Any:
            named = f"__ocml_{name}_f{tvm.DataType(str(given.ty.dtype)).bits}"
            return tvm.tirx.call_pure_extern(given.ty, named, *given.args)

        return call

    for name in _MISNAMED:
        register_intrin_lowering(f"tirx.{name}", target="rocm", f=rule(name))


def init(options: dict[str, Any]) -> None:
    """Called once in each build worker."""
    tools = options["tools"]
    Tools(tuple(tools["linker"]), tuple(tools["bitcode"])).register()


def find(arch: str) -> Tools:
    """The tools for an architecture such as ``gfx90a``.

    lld comes from ``TVMTUNE_ROCM_LLD``, ROCm, ``PATH``, or pip's ``ziglang``. Raises
    :class:`TvmtuneError` if none is new enough.
    """
    return Tools(_linker(), _bitcode(arch))


def _linker() -> tuple[str, ...]:
    candidates: list[tuple[str, ...]] = []
    if named := os.environ.get(VARIABLE):
        if shutil.which(named) is None:
            raise TvmtuneError(f"{VARIABLE} names '{named}', which cannot be run")
        candidates = [(named,)]
    else:
        names = [str(root / "llvm/bin/ld.lld") for root in _roots()]
        names += [f"ld.lld-{major}" for major in range(MIN_LLD + 9, MIN_LLD - 1, -1)] + ["ld.lld"]
        candidates = [(found,) for name in names if (found := shutil.which(name))]
        if find_spec("ziglang"):
            candidates.append((sys.executable, "-m", "ziglang", "ld.lld"))
    old = ""
    for command in candidates:
        version = _version(command)
        if version >= MIN_LLD:
            return command
        old = old or f" ({command[0]} has version {version})"
    raise TvmtuneError(
        f"programs for AMD GPUs need lld {MIN_LLD} or later{old}: run pip install "
        f"'tvmtune[rocm]', or name one in {VARIABLE}"
    )


def _version(command: tuple[str, ...]) -> int:
    try:
        done = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, errors="replace", timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r"LLD (\d+)", done.stdout)
    return int(found[1]) if found else 0


def _roots() -> list[Path]:
    named = os.environ.get("ROCM_PATH")
    return [Path(named)] if named else [Path("/opt/rocm"), Path("/usr/lib/x86_64-linux-gnu")]


def _bitcode(arch: str) -> tuple[str, ...]:
    """The device library's files; none if it is not installed or older than the architecture."""
    for root in _roots():
        folder = root / "amdgcn" / "bitcode"
        wave = "off" if arch.startswith(("gfx10", "gfx11", "gfx12")) else "on"
        names = ["ocml", *_CONTROLS, f"oclc_wavefrontsize64_{wave}"]
        names.append(f"oclc_isa_version_{arch.removeprefix('gfx')}")
        files = [folder / f"{name}.bc" for name in names]
        if all(file.exists() for file in files):
            newer = folder / f"{_SINCE_5_3}.bc"
            return tuple(map(str, [*files, *([newer] if newer.exists() else [])]))
    return ()
