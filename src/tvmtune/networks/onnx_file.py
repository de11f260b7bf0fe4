"""Reading an ONNX file, and saying plainly what is wrong with one that cannot be read."""

from __future__ import annotations

import contextlib
import difflib
from typing import TYPE_CHECKING

import onnx
from onnx.external_data_helper import load_external_data_for_model

from tvmtune.errors import TvmtuneError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

_EXPORT = "export the network with torch.onnx.export and give that file"
_KINDS: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"PK\x03\x04", "a zip archive, perhaps a PyTorch checkpoint", _EXPORT),
    (0, b"\x80\x02", "a Python pickle, perhaps a PyTorch checkpoint", _EXPORT),
    (0, b"\x89HDF", "an HDF5 file, perhaps a Keras model", "convert it with tf2onnx"),
    (4, b"TFL3", "a TFLite model", "convert it with tf2onnx"),
    (0, b"\x1f\x8b", "gzip-compressed", "decompress it first"),
    (0, b"\x7fELF", "a shared library", "give the network that it was compiled from"),
    (0, b"version https://git-lfs", "a Git LFS pointer", "fetch the model with git lfs pull"),
)
"""Offset and first bytes of files that people give by mistake, what they are, and the remedy."""


def read(path: Path) -> onnx.ModelProto:
    """Load the model at ``path``, weights kept in other files included.

    Raises :class:`UsageError` if there is no such file, :class:`TvmtuneError` if it holds no model.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a directory; give the path of an ONNX file")
    if not path.exists():
        raise UsageError(f"{path} does not exist; {_siblings(path)}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TvmtuneError(f"cannot read {path}: {error.strerror or error}") from error
    if not content:
        raise TvmtuneError(f"{path} is empty; export or download the model again")
    start = content[:512]
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception as error:  # protobuf's own class, which differs between its implementations
        raise TvmtuneError(f"{path} {_what_it_is(start)}") from error
    del content  # hundreds of megabytes that the model now holds, too
    # The graph stands before the operator set in a file, so a model without one was cut short,
    # and text can by chance parse as a message without either.
    if not model.graph.node or not model.graph.output or not model.opset_import:
        raise TvmtuneError(f"{path} {_what_it_is(start)}")
    try:
        load_external_data_for_model(model, str(path.parent))
    except Exception as error:  # missing, too short, outside the directory, ...
        raise TvmtuneError(
            f"{path} keeps weights in another file, which cannot be read: {one_line(error)}; "
            "put that file beside the model under its original name"
        ) from error
    return model


def one_line(error: BaseException, limit: int = 300) -> str:
    """The message of a foreign error on one line of at most ``limit`` characters."""
    lines = [line.strip() for line in str(error).splitlines()]
    text = " ".join(line for line in lines if line).rstrip(".") or type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _what_it_is(start: bytes) -> str:
    for offset, magic, kind, remedy in _KINDS:
        if start[offset:].startswith(magic):
            return f"is no ONNX model but {kind}; {remedy}"
    if all(byte >= 32 or byte in b"\t\r\n\f" for byte in start):
        return "is no ONNX model but text; give the path of an ONNX file"
    return "is damaged or no ONNX model; export or download it again"


def _siblings(path: Path) -> str:
    """The remedy for a missing file: the models beside it that have a similar name."""
    with contextlib.suppress(OSError):
        present = {entry.stem: str(entry) for entry in path.parent.glob("*.onnx")}
        if close := difflib.get_close_matches(path.stem, present, n=3, cutoff=0.6):
            return f"did you mean {', '.join(present[stem] for stem in close)}?"
    return "give the path of an ONNX file"
