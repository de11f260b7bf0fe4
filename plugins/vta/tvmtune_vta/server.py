"""``python3 -m tvmtune_vta.server``: the command of :mod:`tvmtune_vta.device.server`.

It needs Python and NumPy only: boards without TVM run it.
"""

import sys

from tvmtune_vta.device.server import main

if __name__ == "__main__":
    sys.exit(main())
