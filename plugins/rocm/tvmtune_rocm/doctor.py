"""What ``tvmtune doctor`` says of ROCm."""

from __future__ import annotations

from tvmtune_rocm import toolchain

_USUAL = "gfx90a"


def check() -> str:
    """The linker, and whether the library of functions is there. Raises
    :class:`tvmtune.errors.TvmtuneError` if there is no linker."""
    tools = toolchain.find(_USUAL)
    library = "with" if tools.bitcode else "without"
    return f"{' '.join(tools.linker)} links; {library} rocm-device-libs"
