"""The CUDA row of ``tvmtune doctor``."""

from __future__ import annotations

from tvmtune.errors import TvmtuneError
from tvmtune_cuda import gpus, target, toolkit


def check() -> str:
    """The compiler and the GPU. Raises :class:`TvmtuneError` if there is no compiler, or only a
    compiler and no GPU to measure on."""
    compiler = toolkit.find()
    found = "{} {}.{}".format(compiler.name, *compiler.version())
    if compiler.command != toolkit.NVRTC:
        found += f" ({compiler.command})"
    try:
        gpu = gpus.check(target.look())
    except TvmtuneError as error:
        raise TvmtuneError(f"{found} compiles; nothing to measure on: {error}") from error
    return f"{found}; {gpu['name']} ({gpu['arch']}, {gpu['memory_bytes'] >> 30} GiB)"
