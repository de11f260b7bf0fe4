"""``python -m tvmtune_opencl``: compile the OpenCL runtime, and list the devices.

For boards, which lack some dependencies that ``tvmtune doctor`` checks.
"""

from __future__ import annotations

import sys

import tvmtune_opencl
from tvmtune.errors import TvmtuneError

try:
    print(f"compiled: {tvmtune_opencl.build()}")
    print(tvmtune_opencl.check())
except TvmtuneError as error:
    sys.exit(f"tvmtune_opencl: {error}")
