"""A builder and a runner that sleep instead of working; for saturation.py."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvmtune.remote.client.board_client import LeasedBoard, with_board

SIZE = 40_000
"""Bytes of a library, as of a convolution's."""


def build(mod: Any, target: dict[str, Any], options: dict[str, Any], directory: str) -> str:
    """Sleep ``options["seconds"]`` and write a library of zeros."""
    time.sleep(options["seconds"])
    path = Path(directory) / f"{uuid.uuid4().hex}.so"
    path.write_bytes(bytes(SIZE))
    return str(path)


@with_board
def run(
    board: LeasedBoard, artifact: str, args: Sequence[Any], timing: Any, options: dict[str, Any]
) -> list[float]:
    """Upload the library, and keep the board for ``options["seconds"]``."""
    board.session.upload(artifact)
    time.sleep(options["seconds"])
    return [options["seconds"]]
