"""The CUDA row of ``tvmtune doctor``."""

from __future__ import annotations

from tvmtune.errors import TvmtuneError
from tvmtune_cuda import gpus, target, toolkit


def check() -> str:
    """The compiler, and the GPU or why none can be measured. Raises :class:`TvmtuneError` if there
    is no compiler."""
    compiler = toolkit.find()
    found = "{} {}.{}".format(compiler.name, *compiler.version())
    if compiler.command != toolkit.NVRTC:
        found += f" ({compiler.command})"
    try:
        gpu = gpus.check(target.look())
    except TvmtuneError as error:
        return f"{found} compiles; nothing to measure on: {error}"
    return f"{found}; {gpu['name']} ({gpu['arch']}, {gpu['memory_bytes'] >> 30} GiB)"
