"""The tables of file formats and of dtypes: adding one takes a line here and a module of its own."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvmtune.types import Network


@dataclass(frozen=True)
class FileFormat:
    """A format of network files."""

    module: str
    """The module in this package that reads it, by its function
    ``read(path, *, label, source, batch, shapes) -> Network``."""
    takes_arguments: bool = False
    """Whether ``read`` also takes ``arguments``, those of an operator (``--arg``)."""

    def read(self, *args: Any, **kwargs: Any) -> Network:
        network: Network = import_module(f"tvmtune.networks.{self.module}").read(*args, **kwargs)
        return network


FORMATS = {
    ".onnx": FileFormat("onnx.network"),
    ".pt2": FileFormat("torch.network"),
    ".tflite": FileFormat("tflite.network"),
    ".py": FileFormat("kernel_network", takes_arguments=True),
}
"""File formats by suffix."""

DEFAULT_FORMAT = FORMATS[".onnx"]
"""For files with another suffix."""

DTYPES = {
    "float32": "",
    "float16": "float16:Float16Network",
    "bfloat16": "bfloat16:Bfloat16Network",
    "int8": "int8:Int8Network",
}
"""The values of ``--dtype``, and the class that turns a network into one of that dtype. float32 leaves
a network as it is."""


def format_of(suffix: str) -> FileFormat:
    """The format of files with this suffix, in any case."""
    return FORMATS.get(suffix.lower(), DEFAULT_FORMAT)


def convert(network: Network, dtype: str, **options: Any) -> Network:
    """The network in one of :data:`DTYPES`; ``options`` are those of its class."""
    if not DTYPES[dtype]:
        return network
    module, name = DTYPES[dtype].split(":")
    cls = getattr(import_module(f"tvmtune.networks.{module}"), name)
    converted: Network = cls(network, **options)
    return converted
