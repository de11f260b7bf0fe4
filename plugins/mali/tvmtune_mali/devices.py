"""OpenCL devices as described by :func:`tvmtune_opencl.describe`.

Boards import this module, with few of tvmtune's dependencies installed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from tvmtune.errors import TvmtuneError

VARIABLES = (
    *("TVMTUNE_OPENCL_DEVICE", "TVMTUNE_OPENCL_LIBRARY", "XDG_CACHE_HOME", "CXX"),
    "POCL_CACHE_DIR",
)
"""Variables that select the device and its driver. Workers are forked from a server that may have been
started before these were set."""


def environment() -> dict[str, str]:
    """Those of :data:`VARIABLES` that are set."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def take_over(environment: Mapping[str, str]) -> None:
    """Set what :func:`environment` returned in another process."""
    for name in VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(environment)


def describe(environment: Mapping[str, str]) -> dict[str, Any]:
    """:func:`tvmtune_opencl.describe` in a worker of a process with that environment."""
    import tvmtune_opencl

    take_over(environment)
    return tvmtune_opencl.describe()


def check(found: Mapping[str, Any]) -> dict[str, Any]:
    """The first device that :func:`tvmtune_opencl.describe` lists.

    Raises :class:`TvmtuneError` if there is none, or if it does not support OpenCL 1.2.
    """
    if found["problem"]:
        raise TvmtuneError(found["problem"].removesuffix("."))
    device: dict[str, Any] = found["devices"][0]
    version = re.match(r"(?:OpenCL )?(\d+)\.(\d+)", device["version"])
    if version and (int(version[1]), int(version[2])) < (1, 2):
        raise TvmtuneError(
            f"{device['name']} has OpenCL {version[1]}.{version[2]}, and 1.2 is needed"
        )
    return device
