"""How ``--dtype int8`` is to calibrate, and what a calibrated source has under :data:`KEY`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from tvmtune import fields
from tvmtune.errors import TvmtuneError, UsageError, nearest

if TYPE_CHECKING:
    from tvmtune.types import JSON

KEY = "quantization"
METHODS = ("minmax", "percentile", "entropy")
OPTIONS = "--calibration-method, --skip-layers, --global-scale and --accuracy-budget"
"""For messages."""
_SHOWN = 3
"""Names of layers in a message."""


@dataclass(frozen=True)
class Calibration:
    """The options of calibration. Raises :class:`UsageError` for values out of range."""

    method: str = "minmax"
    """One of :data:`METHODS`: from the lowest to the highest value; without the outermost 0.01% at
    either end; what loses the least information (least Kullback-Leibler divergence)."""
    skip_layers: tuple[str, ...] = ()
    """Layers that stay in float: positions in program order, names or patterns of names."""
    global_scale: float | None = None
    """Bytes of all activations reach this value, whatever calibration finds."""
    accuracy_budget: float | None = None
    """The layers with the largest errors stay in float until max|y - float| / max|float| of the
    network's outputs, on the calibration inputs, is at most this."""
    data: str = ""
    """What the samples are called in descriptions, such as a file's name."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UsageError(
                f"calibration method '{self.method}' is not known.{nearest(self.method, list(METHODS))}"
            )
        for name in ("global_scale", "accuracy_budget"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise UsageError(f"the {name.replace('_', ' ')} must be above 0, not {value:g}")
        if self.global_scale is not None and self.method != METHODS[0]:
            raise UsageError(
                f"calibration method '{self.method}' has no effect with a global scale: omit one"
            )

    @property
    def is_default(self) -> bool:
        """Whether nothing was chosen."""
        return self == Calibration(data=self.data)

    def skipped(self, names: Sequence[str], network: str) -> set[str]:
        """Which of a network's layers, in program order, stay in float.

        Raises :class:`UsageError` for an entry that is no layer.
        """
        found: set[str] = set()
        for entry in self.skip_layers:
            if entry.isdecimal() and int(entry) < len(names):
                found.add(names[int(entry)])
                continue
            matching = {name for name in names if fnmatchcase(name, entry)}
            if not matching:
                raise UsageError(
                    f"{network} has no layer '{entry}' to skip: {_listed(names)}"
                    f"{nearest(entry, list(names))}"
                )
            found |= matching
        return found


def _listed(names: Sequence[str]) -> str:
    """The positions of a network's layers, and the first names."""
    if len(names) == 1:
        return f"its only layer is 0, or {names[0]}"
    more = "..." if len(names) > _SHOWN else ""
    shown = ", ".join(names[:_SHOWN])
    return f"its {len(names)} layers are 0 to {len(names) - 1}, or {shown}{more}"


DEFAULT = Calibration()


def check(found: Any, name: str) -> None:
    """Raise :class:`TvmtuneError` if this part of a source is damaged; ``name`` is the network's."""
    try:
        fields.check({KEY: found}, {KEY: fields.OBJECT})
        required = {"ranges": fields.OBJECT, "samples": fields.INTEGER}
        optional = {
            "method": fields.TEXT,
            "data": fields.TEXT,
            "skipped": fields.LIST,
            "layers": fields.LIST,
            "error": fields.NUMBER_OR_NULL,
            "accuracy_budget": fields.NUMBER_OR_NULL,
            "global_scale": fields.NUMBER_OR_NULL,
        }
        fields.check(found, required, optional)
        fields.each(found.get("skipped", []), fields.TEXT, "skipped")
        for layer in fields.each(found.get("layers", []), fields.OBJECT, "layers"):
            fields.check(
                layer,
                {"name": fields.TEXT, "operator": fields.TEXT, "sqnr": fields.NUMBER_OR_NULL},
            )
        for bounds in found["ranges"].values():
            fields.check({"range": bounds}, {"range": fields.LIST})
            if len(fields.each(bounds, fields.NUMBER, "ranges")) != 2:
                raise ValueError("'ranges' needs a lowest and a highest value for each")
    except (KeyError, TypeError, ValueError) as error:
        raise TvmtuneError(f"the quantization of {name} is damaged: {error}") from error


def describe(found: JSON) -> str:
    """How a network was calibrated, in a line."""
    scale = found.get("global_scale")
    how = f"global scale {scale:g}" if scale else found.get("method", METHODS[0])
    words = [f"{how}, {found['samples']} samples ({found.get('data') or 'given arrays'})"]
    if skipped := found.get("skipped"):
        words.append(f"{len(skipped)} of {len(found.get('layers', ()))} layers in float")
    if budget := found.get("accuracy_budget"):
        words.append(f"accuracy budget {budget:g}")
    if found.get("error") is not None:
        words.append(f"error against float {found['error']:.1e}")
    return "; ".join(words)
