"""The ROCm row of ``tvmtune doctor``."""

from __future__ import annotations

from tvmtune_rocm import toolchain

_USUAL = "gfx90a"


def check() -> str:
    """The linker, and whether ROCm's device library is installed. Raises
    :class:`tvmtune.errors.TvmtuneError` if there is no linker."""
    tools = toolchain.find(_USUAL)
    library = "with" if tools.bitcode else "without"
    return f"{' '.join(tools.linker)} links; {library} rocm-device-libs"
