"""Networks: the zoo, files of other frameworks, kernel files, and the inputs that they are run on.

The zoo and ONNX files share the ONNX form; each other kind of file has a module of its own, which is
imported when such a file is read. Importing this package loads neither a framework nor TVM.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune.errors import ArgumentError, UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tvmtune.types import JSON, Network

__all__ = ["load", "names", "reload"]

_SUFFIX = re.compile(r"\.[A-Za-z]\w*$")
"""A file's suffix; the ``.1`` of ``squeezenet1.1`` is none."""


FORMATS = {
    ".onnx": "onnx.network",
    ".pt2": "torch.network",
    ".tflite": "tflite.network",
    ".py": "kernel_network",
}
"""The module that reads files with this suffix, by its function
``read(path, *, label, source, batch, shapes) -> Network``; other files are taken for ONNX. The
reader of kernel files also takes ``arguments``."""

DTYPES = ("float32", "float16", "bfloat16", "int8")


def names() -> list[str]:
    """Names of the networks in the zoo, sorted."""
    from tvmtune.networks.zoo import ZOO

    return sorted(ZOO)


def load(
    name_or_path: str,
    *,
    batch: int = 1,
    shapes: Mapping[str, Sequence[int]] | None = None,
    arguments: Mapping[str, Any] | None = None,
    dtype: str = "float32",
) -> Network:
    """Load a network by its name in the zoo or by the path of a file; see :data:`FORMATS`.

    ``batch`` is the first extent of every input whose file leaves it open. ``shapes`` maps names of
    inputs to static shapes, for dimensions that the file leaves open and, in the zoo, for images of
    another size. ``arguments`` are those of a kernel file's operator. ``dtype`` float16 and bfloat16
    are for the zoo and ONNX files, int8 for backends that compute in whole numbers; with float32 a
    network keeps the dtypes that it has. A zoo name wins over a file of the same name; ``./name`` means
    the file.

    Raises :class:`UsageError` for an unknown name, a missing file, or shapes, arguments and a batch
    that do not fit, and :class:`TvmtuneError` for a file that holds no sound network.
    """
    from tvmtune.networks import zoo

    if batch < 1:
        raise UsageError(f"the batch size must be at least 1, got {batch}")
    if dtype not in DTYPES:
        raise UsageError(f"dtype '{dtype}' is not known.{nearest(dtype, list(DTYPES))}")
    name = zoo.canonical(name_or_path)
    path = Path(name_or_path)
    is_kernel = name is None and path.suffix.lower() == ".py"
    if arguments and not is_kernel:
        raise ArgumentError(
            f"{next(iter(arguments))}: only kernel files (.py) take arguments, and "
            f"{name_or_path} is none"
        )
    if name is not None:
        network = zoo.load(name, batch=batch, shapes=shapes)
    else:
        extra = {"arguments": arguments or {}} if is_kernel else {}
        network = _read(path, name_or_path, batch=batch, shapes=shapes, **extra)
    if dtype == "float32":
        return network
    if dtype == "int8":
        from tvmtune.networks.int8 import Int8Network

        return Int8Network(network)
    if dtype == "bfloat16":
        from tvmtune.networks.bfloat16 import Bfloat16Network

        return Bfloat16Network(network)
    from tvmtune.networks.float16 import Float16Network

    return Float16Network(network)


def _read(
    path: Path, label: str, *, shapes: Mapping[str, Sequence[int]] | None, **options: Any
) -> Network:
    """Read a file by the module for its suffix."""
    if not _looks_like_path(label) and not path.exists():
        raise UsageError(
            f"'{label}' is neither a network of the zoo nor a file.{nearest(label, names())} "
            "For a file (.onnx, .pt2, .tflite, .py), give its path."
        )
    source: JSON = {"file": str(path.absolute()), "batch": options["batch"]}
    if shapes:
        source["shapes"] = {key: list(dims) for key, dims in shapes.items()}
    home = FORMATS.get(path.suffix.lower(), "onnx.network")
    reader = import_module(f"tvmtune.networks.{home}").read
    network: Network = reader(path, label=label, source=source, shapes=shapes, **options)
    return network


def reload(source: JSON) -> Network:
    """Load the network that a :attr:`Network.source` describes."""
    where = source.get("zoo") or source.get("file")
    if not where:
        raise UsageError(f"no network can be loaded from {source!r}")
    return load(
        str(where),
        batch=int(source.get("batch", 1)),
        shapes=source.get("shapes"),
        arguments=source.get("arguments"),
        dtype=source.get("dtype", "float32"),
    )


def _looks_like_path(text: str) -> bool:
    return "/" in text or "\\" in text or bool(_SUFFIX.search(text))
