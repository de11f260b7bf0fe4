"""The registry of the zoo: names of networks, and the family that builds each.

A family is a module with a function ``build(shape, **arguments)``, where ``shape`` is that of every
input, batch first; it returns a model and its large weights. It is imported when one of its networks is
loaded. A new network takes a line in :data:`ZOO`, and a module if its family is new.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tvmtune.networks.shapes import Dim
    from tvmtune.networks.zoo.onnx_writer import Detached
    from tvmtune.types import JSON, Network

INPUT = "data"
"""Name of the input of networks that take images or video."""


@dataclass(frozen=True)
class Entry:
    """One network of the zoo."""

    family: str
    """The module in this package that builds it."""
    sample: tuple[int, ...] = (3, 224, 224)
    """Default shape of one sample: channels, then extents; or the number of tokens."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the family's ``build``."""
    aliases: tuple[str, ...] = ()
    """Other names, besides those that differ only in case, ``-``, ``_`` and ``.``."""
    inputs: tuple[str, ...] = (INPUT,)
    """Names of the inputs; all have one shape."""

    @property
    def dims(self) -> list[Dim]:
        """Dimensions of the inputs: channels are fixed."""
        if len(self.sample) == 1:
            return ["N", "T"]
        channels, *extents = self.sample
        return ["N", channels, *"DHW"[-len(extents) :]]


_VIDEO = (3, 16, 112, 112)
"""Channels, frames, height and width."""

ZOO: dict[str, Entry] = {
    "bert-base": Entry(
        "bert",
        (128,),
        aliases=("bert-base-uncased", "bert"),
        inputs=("input_ids", "attention_mask", "token_type_ids"),
    ),
    "convnext-tiny": Entry("convnext", aliases=("convnext", "convnext-t")),
    "densenet-121": Entry("densenet", arguments={"depth": 121}, aliases=("densenet",)),
    "efficientnet-b0": Entry("efficientnet", aliases=("efficientnet",)),
    "gpt2": Entry("gpt2", (64,), aliases=("gpt2-small",), inputs=("input_ids",)),
    "inception_v3": Entry("inception", (3, 299, 299), aliases=("inception",)),
    "mobilenet": Entry("mobilenet", aliases=("mobilenet-v1", "mobilenet1.0")),
    "mobilenet-v2": Entry("mobilenet_v2", aliases=("mobilenet-v2-1.0",)),
    "mobilenet-v3-large": Entry(
        "mobilenet_v3", arguments={"size": "large"}, aliases=("mobilenet-v3",)
    ),
    "mobilenet-v3-small": Entry("mobilenet_v3", arguments={"size": "small"}),
    **{
        f"resnet-{depth}": Entry(
            "resnet", arguments={"depth": depth}, aliases=(f"resnet-{depth}-v1",)
        )
        for depth in (18, 34, 50, 101, 152)
    },
    **{
        f"resnet3d-{depth}": Entry(
            "resnet3d", _VIDEO, arguments={"depth": depth}, aliases=(f"r3d-{depth}",)
        )
        for depth in (18, 34)
    },
    "squeezenet_v1.0": Entry(
        "squeezenet", arguments={"version": "1.0"}, aliases=("squeezenet1.0",)
    ),
    "squeezenet_v1.1": Entry(
        "squeezenet", arguments={"version": "1.1"}, aliases=("squeezenet1.1", "squeezenet")
    ),
    **{f"vgg-{depth}": Entry("vgg", arguments={"depth": depth}) for depth in (11, 13, 16, 19)},
    "vit-b-16": Entry("vit", aliases=("vit", "vit-base-patch16-224")),
}


def canonical(name: str) -> str | None:
    """The canonical spelling of a name or alias; None if the zoo has no such network."""
    wanted = _plain(name)
    for known, entry in ZOO.items():
        if wanted in map(_plain, (known, *entry.aliases)):
            return known
    return None


def load(
    name: str, *, batch: int = 1, shapes: Mapping[str, Sequence[int]] | None = None
) -> Network:
    """Build the network with this canonical name; ``shapes`` may set another size of its inputs."""
    from tvmtune.networks.onnx.network import OnnxNetwork
    from tvmtune.networks.shapes import resolve

    entry = ZOO[name]
    declared = dict.fromkeys(entry.inputs, entry.dims)
    wanted = shapes or {entry.inputs[0]: (batch, *entry.sample)}
    static, _ = resolve(declared, batch=batch, shapes=wanted, label=name)
    build = import_module(f"tvmtune.networks.zoo.{entry.family}").build

    def rebuild() -> Detached:
        built: Detached = build(static[entry.inputs[0]], **entry.arguments)
        return built

    source: JSON = {"zoo": name, "batch": batch}
    if shapes:
        source["shapes"] = {key: list(dims) for key, dims in shapes.items()}
    model, weights = rebuild()
    return OnnxNetwork(model, weights=weights, name=name, source=source, reload=rebuild)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]", "", name.lower())
