"""Xilinx bitstreams (``.bit``): their headers, and which one the FPGA of this board is loaded
with."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tvmtune import atomic_write
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune_vta.hardware.config import Config

STATE = Path(os.environ.get("TVMTUNE_VTA_STATE", "/run/tvmtune-vta.json"))
"""The record of the last bitstream loaded on this board. /run is cleared at boot, as the FPGA
is."""
PARTS = {"pynq": "7z020", "ultra96": "zu3eg", "zcu104": "zu7ev"}
"""Part of the chip name for each TARGET (``config/pkg_config.py`` of VTA's hardware sources)."""
_MAGIC = bytes.fromhex("00090ff00ff00ff00ff0000001")


@dataclass(frozen=True)
class Bitstream:
    """The header of a bitstream file."""

    name: str
    """Name of the file without suffix; published bitstreams are named by their configuration."""
    design: str
    part: str
    date: str
    sha256: str

    @classmethod
    def read(cls, path: str | Path) -> Bitstream:
        """Raises :class:`UsageError` if the file cannot be read, :class:`TvmtuneError` if it is not
        a bitstream or is truncated."""
        path = Path(path)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
        header = _header(data)
        if header is None:
            raise TvmtuneError(f"{path} is not a Xilinx bitstream (.bit), or is truncated")
        date = f"{header['c']} {header['d']}"
        digest = hashlib.sha256(data).hexdigest()
        return cls(path.stem, header["a"], header["b"], date, digest)

    def check(self, config: Config) -> None:
        """Raise :class:`TvmtuneError` if it is for another configuration or chip."""
        if self.name != config.bitstream:
            raise TvmtuneError(
                f"the bitstream is {self.name}, but the configuration is {config.bitstream}: "
                "bitstreams must be named by their configuration"
            )
        part = PARTS.get(config.target)
        if part is None:
            raise TvmtuneError(
                f"loading a {config.target} is not supported, only {', '.join(PARTS)}"
            )
        if part not in self.part:
            raise TvmtuneError(
                f"the bitstream is for the chip {self.part}, but {config.target} has a {part}"
            )


def load(path: str, config: Config) -> None:
    """Load the FPGA of this board and record the bitstream. Raises :class:`TvmtuneError` if that
    fails."""
    bitstream = Bitstream.read(path)
    bitstream.check(config)
    try:
        import pynq
    except ImportError:
        raise TvmtuneError(
            "no Python package pynq, which loads the FPGA: use a PYNQ image"
        ) from None
    STATE.unlink(missing_ok=True)
    try:
        pynq.Bitstream(os.fspath(path)).download()
    except Exception as error:  # the driver raises many kinds
        raise TvmtuneError(f"the FPGA was not loaded: {error}") from error
    atomic_write.write_text(STATE, json.dumps({**asdict(bitstream), "loaded": time.time()}))


def loaded() -> dict[str, Any] | None:
    """The bitstream that :func:`load` recorded since the board was started, or None."""
    try:
        record: dict[str, Any] = json.loads(STATE.read_text())
    except (OSError, ValueError):
        return None
    return record


def _header(data: bytes) -> dict[str, str] | None:
    """Fields a to d as text; None if the data are truncated or not a bitstream."""
    if not data.startswith(_MAGIC):
        return None
    offset, fields = len(_MAGIC), {}
    try:
        for key in "abcd":
            tag, length = struct.unpack_from(">cH", data, offset)
            if tag != key.encode():
                return None
            offset += 3
            fields[key] = data[offset : offset + length].rstrip(b"\0").decode("ascii")
            offset += length
        tag, size = struct.unpack_from(">cI", data, offset)
    except (struct.error, UnicodeDecodeError):
        return None
    return fields if tag == b"e" and len(data) == offset + 5 + size else None
