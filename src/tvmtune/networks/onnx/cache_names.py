"""Inputs and outputs of ONNX decoders that are the cache of keys and values, by their names.

Exporters of Hugging Face and of ONNX Runtime name the cache ``past_key_values.0.key`` before a step and
``present.0.key`` after it; older ones ``past_0`` and ``present_0``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tvmtune.types import State, TensorSpec

_PAST = re.compile(r"^past(_key_values|_key|_value)?(?=[._]\d)")


def state(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> dict[str, State]:
    """The state of a network with these inputs and outputs: those of such names, and of the same shape
    and dtype before and after a step. It begins with zeros.

    A cache that grows in each step is not state.
    """
    after = {(spec.name, spec.shape, spec.dtype) for spec in outputs}
    found = {}
    for spec in inputs:
        name = _PAST.sub(lambda match: "present" + _kind(match[1]), spec.name)
        if name != spec.name and (name, spec.shape, spec.dtype) in after:
            found[spec.name] = State(output=name)
    return found


def is_past(name: str) -> bool:
    """Whether this is the name of a cache before a step, perhaps with other characters than letters and
    digits replaced by ``_``."""
    return _PAST.match(name) is not None


def _kind(suffix: str | None) -> str:
    """``_key`` and ``_value`` stay: ``past_key_0`` becomes ``present_key_0``."""
    return suffix if suffix in ("_key", "_value") else ""
