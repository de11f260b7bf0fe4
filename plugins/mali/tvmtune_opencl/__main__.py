"""``python -m tvmtune_opencl``: compile what TVM lacks, and list the devices.

For boards, which have not all that ``tvmtune doctor`` looks at.
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
