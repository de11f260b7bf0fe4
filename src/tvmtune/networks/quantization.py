"""What a calibrated network's source has under :data:`KEY`: how it was calibrated, with what result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmtune import fields
from tvmtune.errors import TvmtuneError

if TYPE_CHECKING:
    from tvmtune.types import JSON

KEY = "quantization"


def check(found: JSON, name: str) -> None:
    """Raise :class:`TvmtuneError` if this part of a source is damaged; ``name`` is the network's."""
    try:
        fields.check(found, {"ranges": fields.OBJECT, "samples": fields.INTEGER})
        for bounds in found["ranges"].values():
            fields.check({"range": bounds}, {"range": fields.LIST})
            if len(fields.each(bounds, fields.NUMBER, "ranges")) != 2:
                raise ValueError("'ranges' needs a lowest and a highest value for each")
    except (KeyError, TypeError, ValueError) as error:
        raise TvmtuneError(f"the quantization of {name} is damaged: {error}") from error


def describe(found: JSON) -> str:
    """How a network was calibrated, in words."""
    return f"{len(found['ranges'])} tensors, minmax of {found['samples']} samples"
