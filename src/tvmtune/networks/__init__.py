"""Networks: the zoo, files of other frameworks, kernel files, and the inputs that they are run on.

The zoo and ONNX files share the ONNX form; each other kind of file has a module of its own, which is
imported when such a file is read. Importing this package loads neither a framework nor TVM.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from tvmtune.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tvmtune.types import JSON, Network

__all__ = ["load", "names", "reload"]

_SUFFIX = re.compile(r"\.[A-Za-z]\w*$")
"""A file's suffix; the ``.1`` of ``squeezenet1.1`` is none."""


FORMATS = {
    ".onnx": "onnx_network",
    ".pt2": "torch_network",
    ".tflite": "tflite_network",
    ".py": "kernel_network",
}
"""The module that reads files with this suffix, by its function
``read(path, *, label, source, batch, shapes) -> Network``; other files are taken for ONNX."""


def names() -> list[str]:
    """Names of the networks in the zoo, sorted."""
    from tvmtune.networks.zoo import ZOO

    return sorted(ZOO)


def load(
    name_or_path: str,
    *,
    batch: int = 1,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Network:
    """Load a network by its name in the zoo or by the path of an ONNX file.

    ``batch`` is the first extent of every input whose file leaves it open. ``shapes`` maps names of
    inputs to static shapes, for dimensions that the file leaves open and, in the zoo, for images of
    another size. A zoo name wins over a file of the same name; ``./name`` means the file.

    Raises :class:`UsageError` for an unknown name, a missing file, or shapes and a batch that do
    not fit, and :class:`TvmtuneError` for a file that is not a sound ONNX model.
    """
    from tvmtune.networks import zoo

    if batch < 1:
        raise UsageError(f"the batch size must be at least 1, got {batch}")
    name = zoo.canonical(name_or_path)
    if name is not None:
        return zoo.load(name, batch=batch, shapes=shapes)
    path = Path(name_or_path)
    if not _looks_like_path(name_or_path) and not path.exists():
        raise UsageError(
            f"'{name_or_path}' is neither a network of the zoo nor a file."
            f"{nearest(name_or_path, names())} For an ONNX file, give its path."
        )
    source: JSON = {"file": str(path.absolute()), "batch": batch}
    if shapes:
        source["shapes"] = {key: list(dims) for key, dims in shapes.items()}
    home = FORMATS.get(path.suffix.lower(), "onnx_network")
    reader = import_module(f"tvmtune.networks.{home}").read
    network: Network = reader(path, label=name_or_path, source=source, batch=batch, shapes=shapes)
    return network


def reload(source: JSON) -> Network:
    """Load the network that a :attr:`Network.source` describes."""
    where = source.get("zoo") or source.get("file")
    if not where:
        raise UsageError(f"no network can be loaded from {source!r}")
    return load(str(where), batch=int(source.get("batch", 1)), shapes=source.get("shapes"))


def _looks_like_path(text: str) -> bool:
    return "/" in text or "\\" in text or bool(_SUFFIX.search(text))
