"""Builders and boards that take their time and nobody's processor; for saturation.py."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvmtune.farm.lending import Board, with_board

SIZE = 40_000
"""Bytes of a library: a convolution's has as many."""


def build(mod: Any, target: dict[str, Any], options: dict[str, Any], directory: str) -> str:
    """Take ``options["seconds"]``."""
    time.sleep(options["seconds"])
    path = Path(directory) / f"{uuid.uuid4().hex}.so"
    path.write_bytes(bytes(SIZE))
    return str(path)


@with_board
def run(
    board: Board, artifact: str, args: Sequence[Any], timing: Any, options: dict[str, Any]
) -> list[float]:
    """Upload the library, and keep the board for ``options["seconds"]``."""
    board.session.upload(artifact)
    time.sleep(options["seconds"])
    return [options["seconds"]]
