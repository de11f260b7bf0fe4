"""CUDA compilers: nvcc, or NVRTC (installed by pip) if nvcc is missing.

nvcc is preferred: it measured faster, and includes its headers. Neither needs a GPU.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tvmtune.errors import TvmtuneError, UsageError, nearest

VARIABLE = "TVMTUNE_NVCC"
NVRTC = "nvrtc"
"""Stands for NVRTC where nvcc's path would be."""
_HINT = (
    "install CUDA's toolkit (nvcc), name it in TVMTUNE_NVCC, or pip install 'tvmtune[cuda]' (NVRTC)"
)


@dataclass(frozen=True)
class Compiler:
    """nvcc or NVRTC, in a form that a builder's options can hold."""

    command: str
    """The path of nvcc, or :data:`NVRTC`."""

    @property
    def name(self) -> str:
        return NVRTC if self.command == NVRTC else "nvcc"

    def version(self) -> tuple[int, int]:
        """The CUDA version, (major, minor)."""
        if self.command == NVRTC:
            from cuda.bindings import nvrtc

            _, major, minor = nvrtc.nvrtcVersion()
            return int(major), int(minor)
        found = re.search(r"release (\d+)\.(\d+)", _output_of([self.command, "--version"]))
        if found is None:
            raise TvmtuneError(f"{self.command} does not print its version: is it nvcc?")
        return int(found[1]), int(found[2])

    def architectures(self) -> tuple[str, ...]:
        """Architectures that it compiles for, e.g. ``sm_90``."""
        if self.command == NVRTC:
            from cuda.bindings import nvrtc

            return tuple(f"sm_{number}" for number in nvrtc.nvrtcGetSupportedArchs()[1])
        return tuple(_output_of([self.command, "--list-gpu-code"]).split())

    def compile(self, source: str, arch: str) -> bytes:
        """Compile a CUDA C++ program to a cubin for an architecture such as ``sm_90``.

        Raises :class:`TvmtuneError` with the first error if it does not compile.
        """
        return _by_nvrtc(source, arch) if self.command == NVRTC else _by_nvcc(self, source, arch)


def find() -> Compiler:
    """nvcc, else NVRTC. Raises :class:`TvmtuneError` if there is none."""
    if (found := nvcc()) is not None:
        return found
    if importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.bindings"):
        if _include_folders():
            return Compiler(NVRTC)
        raise TvmtuneError(f"NVRTC is installed, but CUDA's headers are not: {_HINT}")
    raise TvmtuneError(f"no CUDA compiler was found: {_HINT}")


def nvcc() -> Compiler | None:
    """nvcc from ``TVMTUNE_NVCC``, ``PATH``, ``CUDA_HOME``, ``CUDA_PATH``, the usual place or pip's
    packages; None if there is none, or no C++ compiler for its preprocessing."""
    if named := os.environ.get(VARIABLE):
        if shutil.which(named) is None:
            raise TvmtuneError(f"{VARIABLE} names '{named}', which cannot be run")
        return Compiler(str(shutil.which(named)))
    if not any(shutil.which(name) for name in ("g++", "c++", "clang++")):
        return None
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    folders = [Path(home) / "bin" for home in homes if home]
    folders += [Path("/usr/local/cuda/bin"), *(home / "bin" for home in homes_of_pip())]
    for place in (None, *map(str, folders)):
        if path := shutil.which("nvcc", path=place):
            return Compiler(path)
    return None


def check_arch(compiler: Compiler, arch: str) -> None:
    """Raise :class:`UsageError` if the compiler does not support ``arch``."""
    known = compiler.architectures()
    # Architecture-specific (sm_90a) and family-specific (sm_100f) variants are not listed.
    if re.sub(r"[af]$", "", arch) in known:
        return
    version = "{}.{}".format(*compiler.version())
    raise UsageError(
        f"arch={arch}: {compiler.name} {version} does not compile for it.{nearest(arch, [*known])} "
        f"It supports {', '.join(known)}."
    )


def _by_nvcc(compiler: Compiler, source: str, arch: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix=f"tvmtune-{os.getpid()}-") as folder:
        program, binary = Path(folder) / "kernels.cu", Path(folder) / "kernels.cubin"
        program.write_text(source)
        command = [compiler.command, "--cubin", "-O3", f"-arch={arch}", "-w", "-o", str(binary)]
        done = subprocess.run(
            [*command, str(program)], capture_output=True, text=True, errors="replace"
        )
        if done.returncode != 0:
            raise TvmtuneError(f"nvcc: {_first_error(done.stdout + done.stderr)}")
        return binary.read_bytes()


def _by_nvrtc(source: str, arch: str) -> bytes:
    from cuda.bindings import nvrtc

    # GPU code does not use the driver's header, which NVRTC lacks.
    text = source.replace("#include <cuda.h>", "").encode()
    _, program = nvrtc.nvrtcCreateProgram(text, b"kernels.cu", 0, None, None)
    options = [f"--gpu-architecture={arch}", "-default-device", "-w"]
    options += [f"-I{folder}" for folder in _include_folders()]
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            _, size = nvrtc.nvrtcGetProgramLogSize(program)
            log = bytearray(size)
            nvrtc.nvrtcGetProgramLog(program, log)
            message = _first_error(log.decode(errors="replace")) or str(status)
            raise TvmtuneError(f"NVRTC: {message}")
        _, size = nvrtc.nvrtcGetCUBINSize(program)
        binary = bytearray(size)
        nvrtc.nvrtcGetCUBIN(program, binary)
        return bytes(binary)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _output_of(command: list[str]) -> str:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=60, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as exc:
        raise TvmtuneError(f"{' '.join(command)} cannot be run: {exc}") from exc


def _first_error(text: str) -> str:
    """The first error in a compiler's output."""
    lines = [line.strip() for line in text.splitlines() if line.strip("\0 \t")]
    return next((line for line in lines if "error" in line or "fatal" in line), "".join(lines[-1:]))


@functools.cache
def homes_of_pip() -> tuple[Path, ...]:
    """Folders of NVIDIA's pip packages: one per major version of CUDA, the newest first."""
    places = {Path(sysconfig.get_path(kind)) / "nvidia" for kind in ("purelib", "platlib")}
    places |= {Path(entry) / "nvidia" for entry in sys.path if entry.endswith("-packages")}
    return tuple(sorted((home for p in places for home in p.glob("cu[0-9]*")), reverse=True))


def _include_folders() -> tuple[str, ...]:
    """Folders of CUDA's headers and of their C++ library; empty if missing."""
    for home in (*homes_of_pip(), Path("/usr/local/cuda")):
        if (home / "include" / "cuda_fp16.h").exists():
            return str(home / "include"), str(home / "include" / "cccl")
    return ()
