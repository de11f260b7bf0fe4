"""What an FPGA is loaded with: Xilinx's ``.bit`` files, and which of them a board has."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tvmtune.deploy import atomic
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune_vta.config import Config

STATE = Path(os.environ.get("TVMTUNE_VTA_STATE", "/run/tvmtune-vta.json"))
"""On a board: what was loaded last. /run is empty after a start, as the FPGA is."""
PARTS = {"pynq": "7z020", "ultra96": "zu3eg", "zcu104": "zu7ev"}
"""In the name of the chip that each TARGET has (``config/pkg_config.py`` of VTA's hardware sources)."""
_MAGIC = bytes.fromhex("00090ff00ff00ff00ff0000001")


@dataclass(frozen=True)
class Bitstream:
    """The header of a file."""

    name: str
    """Of the file, without its suffix: the configuration, as published ones are named."""
    design: str
    part: str
    date: str
    sha256: str

    @classmethod
    def read(cls, path: str | Path) -> Bitstream:
        """Raises :class:`UsageError` for what cannot be read, :class:`TvmtuneError` for what is no
        bitstream or is cut short."""
        path = Path(path)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
        told = _header(data)
        if told is None:
            raise TvmtuneError(f"{path} is no bitstream of Xilinx (.bit), or is cut short.")
        date = f"{told['c']} {told['d']}"
        digest = hashlib.sha256(data).hexdigest()
        return cls(path.stem, told["a"], told["b"], date, digest)

    def check(self, config: Config) -> None:
        """Raise :class:`TvmtuneError` if it is for another configuration or another chip."""
        if self.name != config.bitstream:
            raise TvmtuneError(
                f"the bitstream is {self.name}, and the configuration {config.bitstream}: bitstreams "
                "are named by their configuration."
            )
        part = PARTS.get(config.target)
        if part is None:
            raise TvmtuneError(
                f"how {config.target} is loaded is not known: {', '.join(PARTS)} are."
            )
        if part not in self.part:
            raise TvmtuneError(
                f"the bitstream is for the chip {self.part}, and {config.target} has a {part}."
            )


def load(path: str, config: Config) -> None:
    """Load the FPGA of this board, and note with what. Raises :class:`TvmtuneError` where that is not
    possible."""
    bitstream = Bitstream.read(path)
    bitstream.check(config)
    try:
        import pynq
    except ImportError:
        raise TvmtuneError(
            "the board has no package pynq, which loads its FPGA: take an image with PYNQ."
        ) from None
    STATE.unlink(missing_ok=True)
    try:
        pynq.Bitstream(os.fspath(path)).download()
    except Exception as error:  # whatever its driver dislikes
        raise TvmtuneError(f"the FPGA was not loaded: {error}") from error
    atomic.write_text(STATE, json.dumps({**asdict(bitstream), "loaded": time.time()}))


def loaded() -> dict[str, Any] | None:
    """What :func:`load` noted since the board was started."""
    try:
        found: dict[str, Any] = json.loads(STATE.read_text())
    except (OSError, ValueError):
        return None
    return found


def _header(data: bytes) -> dict[str, str] | None:
    """The texts of fields a to d; None if the data are cut short, or something else."""
    if not data.startswith(_MAGIC):
        return None
    place, found = len(_MAGIC), {}
    try:
        for key in "abcd":
            tag, length = struct.unpack_from(">cH", data, place)
            if tag != key.encode():
                return None
            place += 3
            found[key] = data[place : place + length].rstrip(b"\0").decode("ascii")
            place += length
        tag, size = struct.unpack_from(">cI", data, place)
    except (struct.error, UnicodeDecodeError):
        return None
    return found if tag == b"e" and len(data) == place + 5 + size else None
