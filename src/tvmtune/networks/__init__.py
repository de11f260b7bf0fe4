"""Networks: the zoo, files of other frameworks, kernel files, and the inputs to run them on.

:data:`FORMATS` and :data:`DTYPES` say what can be loaded. Importing this package loads neither a
framework nor TVM: the module of a format is imported when such a file is read.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune import checks
from tvmtune.errors import ArgumentError, UsageError, nearest
from tvmtune.networks import quantization
from tvmtune.networks.registry import DTYPES, FORMATS, convert, format_of
from tvmtune.networks.shapes import MOST_INPUT_ELEMENTS, check_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tvmtune.networks.quantization import Calibration
    from tvmtune.types import JSON, Network

__all__ = ["DTYPES", "FORMATS", "load", "names", "reload"]

_SUFFIX = re.compile(r"\.[A-Za-z]\w*$")
"""A file's suffix, which the ``.1`` of ``squeezenet1.1`` is not."""


def names() -> list[str]:
    """Names of the networks in the zoo, sorted."""
    from tvmtune.networks.zoo import ZOO

    return sorted(ZOO)


def load(
    name_or_path: str | os.PathLike[str],
    *,
    batch: int = 1,
    shapes: Mapping[str, Sequence[int]] | None = None,
    arguments: Mapping[str, Any] | None = None,
    dtype: str = "float32",
    calibration: Calibration | None = None,
) -> Network:
    """Load a network by its name in the zoo or by the path of a file; see :data:`FORMATS`.

    ``batch`` is the first extent of every input whose file leaves it open. ``shapes`` maps names of
    inputs to static shapes, for dimensions that the file leaves open and, in the zoo, for images of
    another size. ``arguments`` are those of a kernel file's operator. ``dtype`` is one of
    :data:`DTYPES`: float16 and bfloat16 are for the zoo and ONNX files, int8 for backends that
    quantize; with float32 a network keeps its own dtypes. ``calibration`` has the options of int8. A
    zoo name wins over a file of the same name, unless it ends as files do: ``g.pt2`` is not GPT-2.
    ``./name`` or a :class:`~pathlib.Path` means the file.

    Raises :class:`UsageError` for an unknown name, a missing file, or shapes, arguments or a batch that
    do not fit, and :class:`TvmtuneError` for a file without a sound network.
    """
    from tvmtune.networks import zoo

    checks.at_least("the batch size", batch, 1)
    if dtype not in DTYPES:
        raise UsageError(f"dtype '{dtype}' is not known.{nearest(dtype, list(DTYPES))}")
    if calibration is not None and dtype != "int8":
        raise UsageError(f"{quantization.OPTIONS} are for --dtype int8: omit them")
    path, label = Path(name_or_path), os.fspath(name_or_path)
    may_be_name = isinstance(name_or_path, str) and path.suffix.lower() not in FORMATS
    name = zoo.canonical(label) if may_be_name else None
    if arguments and (name is not None or not format_of(path.suffix).takes_arguments):
        raise ArgumentError(
            f"{next(iter(arguments))}: only kernel files (.py) take arguments, and "
            f"{label} is not one"
        )
    if name is not None:
        network = zoo.load(name, batch=batch, shapes=shapes)
        for spec in network.inputs:
            check_size(f"input '{spec.name}' of {name}", spec.shape, MOST_INPUT_ELEMENTS)
    else:
        network = _read(path, label, batch=batch, shapes=shapes, arguments=arguments)
    return convert(network, dtype, **({} if calibration is None else {"options": calibration}))


def _read(
    path: Path,
    label: str,
    *,
    batch: int,
    shapes: Mapping[str, Sequence[int]] | None,
    arguments: Mapping[str, Any] | None,
) -> Network:
    """Read a file in the format of its suffix."""
    if not _looks_like_path(label) and not path.exists():
        raise UsageError(
            f"'{label}' is neither a network of the zoo nor a file.{nearest(label, names())} "
            f"For a file ({', '.join(FORMATS)}), give its path."
        )
    source: JSON = {"file": str(path.absolute()), "batch": batch}
    if shapes:
        source["shapes"] = {key: list(dims) for key, dims in shapes.items()}
    file_format = format_of(path.suffix)
    extra = {"arguments": arguments or {}} if file_format.takes_arguments else {}
    return file_format.read(path, label=label, source=source, batch=batch, shapes=shapes, **extra)


def reload(source: JSON) -> Network:
    """Load the network that a :attr:`Network.source` describes."""
    where = source.get("zoo") or source.get("file")
    if not where:
        raise UsageError(f"no network can be loaded from {source!r}")
    network = load(
        str(where),
        batch=int(source.get("batch", 1)),
        shapes=source.get("shapes"),
        arguments=source.get("arguments"),
        dtype=source.get("dtype", "float32"),
    )
    found = source.get(quantization.KEY)
    if found is None or source.get("dtype") != "int8":
        return network
    from tvmtune.networks import int8

    return int8.restored(network, found)


def _looks_like_path(text: str) -> bool:
    return "/" in text or "\\" in text or bool(_SUFFIX.search(text))
