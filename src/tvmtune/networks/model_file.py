"""The bytes of a network's file, and what is said about a file that holds something else."""

from __future__ import annotations

import contextlib
import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvmtune.errors import TvmtuneError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

_KINDS: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"PK\x03\x04", "a zip archive, perhaps a PyTorch checkpoint", ""),
    (0, b"\x80\x02", "a Python pickle, perhaps a PyTorch checkpoint", ""),
    (0, b"\x89HDF", "an HDF5 file, perhaps a Keras model", ""),
    (4, b"TFL3", "a TFLite model", "give it the suffix .tflite"),
    (0, b"\x1f\x8b", "gzip-compressed", "decompress it first"),
    (0, b"\x7fELF", "a shared library", "give the network that it was compiled from"),
    (0, b"version https://git-lfs", "a Git LFS pointer", "fetch the model with git lfs pull"),
)
"""Offset and first bytes of files that people give by mistake, what they are, and the remedy, where
it is not to export the network again."""


@dataclass(frozen=True)
class Format:
    """A kind of file that networks come in."""

    name: str
    """As in "a NAME file"."""
    suffix: str
    export: str
    """How such a file is made, as an imperative."""

    def start(self, path: Path) -> bytes:
        """The first 512 bytes of the file.

        Raises :class:`UsageError` if there is no such file, :class:`TvmtuneError` if it is empty or
        cannot be read.
        """
        if path.is_dir():
            raise UsageError(f"{path} is a directory; give the path of a file ({self.suffix})")
        if not path.exists():
            raise UsageError(f"{path} does not exist; {self._neighbours(path)}")
        try:
            with path.open("rb") as file:
                start = file.read(512)
        except OSError as error:
            raise TvmtuneError(f"cannot read {path}: {error.strerror or error}") from error
        if not start:
            raise TvmtuneError(f"{path} is empty; export or download the model again")
        return start

    def read(self, path: Path) -> bytes:
        """The content of the file; raises as :meth:`start` does."""
        self.start(path)
        try:
            return path.read_bytes()
        except OSError as error:
            raise TvmtuneError(f"cannot read {path}: {error.strerror or error}") from error

    def mistaken(self, path: Path, content: bytes) -> TvmtuneError:
        """What to raise for a file that is not of this format, by the look of its first bytes."""
        start = content[:512]
        for offset, magic, kind, remedy in _KINDS:
            if start[offset:].startswith(magic) and kind != f"a {self.name} model":
                return TvmtuneError(
                    f"{path} is no {self.name} file but {kind}; {remedy or self.export}"
                )
        if all(byte >= 32 or byte in b"\t\r\n\f" for byte in start):
            return TvmtuneError(f"{path} is no {self.name} file but text; {self.export}")
        return TvmtuneError(
            f"{path} is damaged or no {self.name} file; export or download it again"
        )

    def _neighbours(self, path: Path) -> str:
        with contextlib.suppress(OSError):
            present = {entry.stem: str(entry) for entry in path.parent.glob(f"*{self.suffix}")}
            if close := difflib.get_close_matches(path.stem, present, n=3, cutoff=0.6):
                return f"did you mean {', '.join(present[stem] for stem in close)}?"
        return f"give the path of a file ({self.suffix})"


def one_line(error: BaseException, limit: int = 300) -> str:
    """The message of a foreign error on one line of at most ``limit`` characters."""
    lines = [line.strip() for line in str(error).splitlines()]
    text = " ".join(line for line in lines if line).rstrip(".") or type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."


def kind_and_line(error: BaseException) -> str:
    """``KeyError: 'x'``, or ``AssertionError`` where it says no more."""
    kind = type(error).__name__
    return f"{kind}: {one_line(error)}" if str(error).strip() else kind
