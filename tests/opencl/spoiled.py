"""A builder whose scheduled kernels are wrong; workers import it by name."""

from __future__ import annotations

from typing import Any

from tvmtune.measure import local


def build(mod: Any, target: dict[str, Any], options: dict[str, Any], directory: str) -> str:
    """Build device kernels with ``min`` in place of ``max``."""
    from tvm.script import from_source

    if target["kind"] == "opencl":
        text = mod.script()
        mod = from_source(text.replace("T.max(", "T.min("))
    return local.build(mod, target, options, directory)
