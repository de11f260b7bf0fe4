"""Whether two boards may measure for the same run: the same CPU, with the same extensions and GPUs.

A key is a label that anyone may give to any board. Where boards of different CPUs share one, times of
one would be compared with times of the other, and a sound candidate would count as a crash because it
ran on a CPU that lacks one of its instructions. So a run uses the boards that are equal to its first:
the one that it was planned for or, if that could not be asked, the first that it leases. The others are
named to the user and left alone, as boards of another TVM version are. A run that ended instead, hours
after it began, because somebody added a board under its key, would serve nobody.
"""

from __future__ import annotations

from typing import Any

from tvmtune import fields
from tvmtune.types import JSON

FIELDS = ("machine", "cpu", "features", "gpus")
"""Fields of a board's description that all boards of a run must have in common. Not memory, number of
CPUs or frequencies: threads are checked when a board is leased, and frequencies may be unknown."""

MOST_NAMES = 6
"""Features named in a message; CPUs may differ in dozens."""


def of(description: JSON | None) -> JSON:
    """The identity in a board's description of itself; empty if TVM's own server serves it."""
    if description is None:
        return {}
    found: dict[str, Any] = {name: description.get(name) for name in FIELDS}
    found["features"] = sorted(map(str, found["features"] or ()))
    found["gpus"] = [f"{gpu.get('device_name')} ({gpu.get('kind')})" for gpu in found["gpus"] or ()]
    return found


def check(identity: JSON) -> None:
    """Raise ValueError for an identity from a file with fields of other types."""
    text = dict.fromkeys(("machine", "cpu"), fields.TEXT_OR_NULL)
    lists = ("features", "gpus")
    fields.check(identity, {}, text | dict.fromkeys(lists, fields.LIST))
    for name in lists:
        fields.each(identity.get(name, []), fields.TEXT, name)


def difference(expected: JSON, found: JSON) -> str:
    """How ``found`` differs from ``expected``, in words; empty if not, or if either is unknown."""
    if not expected or not found:
        return ""
    words = []
    for name in ("machine", "cpu"):
        if expected.get(name) != found.get(name):
            words.append(f"it is {found.get(name)} instead of {expected.get(name)}")
    for name, what in (("features", "CPU feature"), ("gpus", "GPU")):
        here, there = set(found.get(name) or ()), set(expected.get(name) or ())
        if lacking := sorted(there - here):
            words.append(f"it lacks {what}{_listed(lacking)}")
        if more := sorted(here - there):
            words.append(f"it also has {what}{_listed(more)}")
    return "; ".join(words)


def _listed(names: list[str]) -> str:
    left = len(names) - MOST_NAMES
    shown = ", ".join(names[:MOST_NAMES]) + (f" and {left} more" if left > 0 else "")
    return f"{'s' * (len(names) > 1)} {shown}"


class Expected:
    """The identity that boards of a run must have, and where it is known from.

    ``identity`` is empty until known; ``source`` names the board in messages.
    """

    def __init__(self, identity: JSON, source: str) -> None:
        self.identity = identity
        self.source = source

    def trouble(self, description: JSON | None, address: str, key: str) -> str:
        """Why the board at ``address`` does not suit this run, and what to do; empty if it does. The
        first board of a run whose identity is unknown defines it."""
        found = of(description)
        if not self.identity:
            self.identity, self.source = found, f"the board at {address}"
            return ""
        how = difference(self.identity, found)
        if not how:
            return ""
        return (
            f"boards that share a key must be identical, and compared with {self.source}, {how}. Serve "
            f"it under another key: tvmtune serve --key {key}-2"
        )


PLANNED = "the one that this run was planned for"
TUNED = "the one that the library was tuned for"
