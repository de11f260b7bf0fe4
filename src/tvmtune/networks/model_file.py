"""Reads the bytes of model files and explains what is wrong with other files."""

from __future__ import annotations

import contextlib
import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvmtune.errors import TvmtuneError, UsageError, one_line

if TYPE_CHECKING:
    from pathlib import Path

_OTHER_FILES: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"PK\x03\x04", "a zip archive, perhaps a PyTorch checkpoint", ""),
    (0, b"\x80\x02", "a Python pickle, perhaps a PyTorch checkpoint", ""),
    (0, b"\x89HDF", "an HDF5 file, perhaps a Keras model", ""),
    (4, b"TFL3", "a TFLite model", "give it the suffix .tflite"),
    (0, b"\x1f\x8b", "gzip-compressed", "decompress it first"),
    (0, b"\x7fELF", "a shared library", "give the network that it was compiled from"),
    (0, b"version https://git-lfs", "a Git LFS pointer", "fetch the model with git lfs pull"),
)
"""Files given by mistake: offset and bytes of their signature, what they are, and the remedy if that is
not to export the network again."""


@dataclass(frozen=True)
class Format:
    """How messages describe a file format."""

    name: str
    """As in "a NAME file"."""
    suffix: str
    export: str
    """How to make such a file, as an imperative."""

    @property
    def a_file(self) -> str:
        """``an ONNX file``."""
        return f"{'an' if self.name[0] in 'AEIOU' else 'a'} {self.name} file"

    def start(self, path: Path) -> bytes:
        """The first 512 bytes of the file.

        Raises :class:`UsageError` if there is no such file, :class:`TvmtuneError` if it is empty or
        cannot be read.
        """
        if path.is_dir():
            raise UsageError(f"{path} is a directory; give the path of a file ({self.suffix})")
        if not path.exists():
            raise UsageError(f"{path} does not exist; {self._similar_files(path)}")
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

    def wrong_format(self, path: Path, content: bytes) -> TvmtuneError:
        """The error for a file that is not of this format, judged by its first bytes."""
        start = content[:512]
        for offset, magic, kind, remedy in _OTHER_FILES:
            if start[offset:].startswith(magic) and kind != f"a {self.name} model":
                return TvmtuneError(
                    f"{path} is not {self.a_file} but {kind}; {remedy or self.export}"
                )
        if all(32 <= byte < 0xF8 or byte in b"\t\r\n\f" for byte in start):  # no UTF-8 has more
            return TvmtuneError(f"{path} is not {self.a_file} but text; {self.export}")
        return TvmtuneError(f"{path} is damaged or not {self.a_file}; export or download it again")

    def _similar_files(self, path: Path) -> str:
        with contextlib.suppress(OSError):
            present = {entry.stem: str(entry) for entry in path.parent.glob(f"*{self.suffix}")}
            if close := difflib.get_close_matches(path.stem, present, n=3, cutoff=0.6):
                return f"did you mean {', '.join(present[stem] for stem in close)}?"
        return f"give the path of a file ({self.suffix})"


def kind_and_line(error: BaseException) -> str:
    """``KeyError: 'x'``, or only ``AssertionError`` for an empty message."""
    kind = type(error).__name__
    return f"{kind}: {one_line(error)}" if str(error).strip() else kind
