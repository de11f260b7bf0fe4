"""Compilers of CUDA: nvcc, or where that is missing NVRTC, which comes as a package of pip's.

nvcc is preferred: it has been the quicker one, and brings its headers. Neither needs a GPU.
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
"""In the place of nvcc's path."""
_HINT = (
    "install CUDA's toolkit (nvcc), name it in TVMTUNE_NVCC, or pip install 'tvmtune[cuda]' (NVRTC)"
)


@dataclass(frozen=True)
class Compiler:
    """One of the two, as a builder's options can hold it."""

    command: str
    """The path of nvcc, or :data:`NVRTC`."""

    @property
    def name(self) -> str:
        return NVRTC if self.command == NVRTC else "nvcc"

    def version(self) -> tuple[int, int]:
        """Of its CUDA."""
        if self.command == NVRTC:
            from cuda.bindings import nvrtc

            _, major, minor = nvrtc.nvrtcVersion()
            return int(major), int(minor)
        found = re.search(r"release (\d+)\.(\d+)", _said([self.command, "--version"]))
        if found is None:
            raise TvmtuneError(f"{self.command} does not tell its version: is it nvcc?")
        return int(found[1]), int(found[2])

    def architectures(self) -> tuple[str, ...]:
        """Those that it compiles for, as ``sm_90``."""
        if self.command == NVRTC:
            from cuda.bindings import nvrtc

            return tuple(f"sm_{number}" for number in nvrtc.nvrtcGetSupportedArchs()[1])
        return tuple(_said([self.command, "--list-gpu-code"]).split())

    def compile(self, source: str, arch: str) -> bytes:
        """The binary (a cubin) of a program in CUDA C++ for an architecture such as ``sm_90``.

        Raises :class:`TvmtuneError` with the first complaint if it cannot be compiled.
        """
        return _by_nvrtc(source, arch) if self.command == NVRTC else _by_nvcc(self, source, arch)


def find() -> Compiler:
    """nvcc, else NVRTC. Raises :class:`TvmtuneError` if there is none."""
    if (found := nvcc()) is not None:
        return found
    if importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.bindings"):
        if _include_folders():
            return Compiler(NVRTC)
        raise TvmtuneError(f"NVRTC is there, and CUDA's headers are not: {_HINT}.")
    raise TvmtuneError(f"there is no compiler for CUDA: {_HINT}.")


def nvcc() -> Compiler | None:
    """nvcc from ``TVMTUNE_NVCC``, the path, ``CUDA_HOME``, ``CUDA_PATH``, the usual place or pip's
    packages; None where there is none, or no C++ compiler for its preprocessing."""
    if named := os.environ.get(VARIABLE):
        if shutil.which(named) is None:
            raise TvmtuneError(f"{VARIABLE} names '{named}', which cannot be run.")
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


def check_arch(compiler: Compiler, arch: str) -> str:
    """``arch``, if the compiler knows it; raises :class:`UsageError` else."""
    known = compiler.architectures()
    # Those for one generation alone (sm_90a), or for a family (sm_100f), are not listed.
    if re.sub(r"[af]$", "", arch) in known:
        return arch
    version = "{}.{}".format(*compiler.version())
    raise UsageError(
        f"arch={arch}: {compiler.name} {version} does not compile for it.{nearest(arch, [*known])} "
        f"It does for {', '.join(known)}."
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
            raise TvmtuneError(f"nvcc: {_complaint(done.stdout + done.stderr)}")
        return binary.read_bytes()


def _by_nvrtc(source: str, arch: str) -> bytes:
    from cuda.bindings import nvrtc

    # The driver's header is not for code that runs on the GPU, and NVRTC has it not.
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
            said = _complaint(log.decode(errors="replace")) or str(status)
            raise TvmtuneError(f"NVRTC: {said}")
        _, size = nvrtc.nvrtcGetCUBINSize(program)
        binary = bytearray(size)
        nvrtc.nvrtcGetCUBIN(program, binary)
        return bytes(binary)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _said(command: list[str]) -> str:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=60, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as exc:
        raise TvmtuneError(f"{' '.join(command)} cannot be run: {exc}") from exc


def _complaint(text: str) -> str:
    """The first error of a compiler's output."""
    lines = [line.strip() for line in text.splitlines() if line.strip("\0 \t")]
    return next((line for line in lines if "error" in line or "fatal" in line), "".join(lines[-1:]))


@functools.cache
def homes_of_pip() -> tuple[Path, ...]:
    """Folders where NVIDIA's packages put their files: one folder for all of a major version."""
    places = {Path(sysconfig.get_path(kind)) / "nvidia" for kind in ("purelib", "platlib")}
    places |= {Path(entry) / "nvidia" for entry in sys.path if entry.endswith("-packages")}
    return tuple(sorted((home for p in places for home in p.glob("cu[0-9]*")), reverse=True))


def _include_folders() -> tuple[str, ...]:
    """CUDA's headers, and the C++ library that they are made for."""
    for home in (*homes_of_pip(), Path("/usr/local/cuda")):
        if (home / "include" / "cuda_fp16.h").exists():
            return str(home / "include"), str(home / "include" / "cccl")
    return ()
