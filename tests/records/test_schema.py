"""Every kind of line is parsed as it was built."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from math import inf
from typing import Any

import pytest

from records.sample_log import trace, trial
from tvmtune.records import schema
from tvmtune.records.designs import Packer
from tvmtune.types import Trial


def stored(line: schema.Line) -> dict[str, Any]:
    """The line as a reader parses it."""
    record: dict[str, Any] = json.loads(json.dumps({"type": line.kind, **line.fields}))
    return record


def test_a_design_and_its_trial():
    packed = Packer().pack(trace(2))
    assert packed is not None
    design = schema.parse_design(stored(schema.design(packed.design)))
    assert (design.key, design.instructions) == (packed.design.key, packed.design.instructions)
    written = trial("a", "1", 1.0, 2.0, trace=trace(2), extra={"drift": 1.2, "joules": 0.5})
    record = stored(schema.trial(written, packed))
    assert list(record)[:3] == ["type", "drift", "joules"]
    read = schema.parse_trial(record, schema.parse_packed_trace(record, design), "identity")
    assert read == written.evolve(device="identity")


def test_a_design_that_does_not_match_its_key_is_rejected():
    packed = Packer().pack(trace(2))
    assert packed is not None
    record = stored(schema.design(packed.design)) | {"design": "0" * 16}
    with pytest.raises(ValueError, match="does not match its key"):
        schema.parse_design(record)


@pytest.mark.parametrize(("verified", "deviation"), [(True, 0.25), (False, inf), (None, None)])
def test_a_verdict(verified, deviation):
    line = schema.verdict(trial("a", "1", 1.0, verified=verified), deviation, "off by 3")
    assert line.fields["deviation"] == ("inf" if deviation == inf else deviation)
    assert schema.parse_verdict(stored(line)) == schema.Verdict("w-a", "1", verified, "off by 3")


def test_a_remeasurement():
    line = schema.remeasurement(trial("a", "1", 1.0), (3.0, 4.0))
    read = schema.parse_remeasurement(stored(line))
    assert read == schema.Remeasurement("w-a", "1", [3.0, 4.0])


def test_the_source_module_is_not_in_the_line():
    adapted = trial("a", "1", 1.0).evolve(source_module="module")
    assert "source_module" not in schema.trial(adapted).fields


class Unpacked(Exception):
    pass


def unpack() -> Any:
    raise Unpacked


@pytest.mark.parametrize(
    "learn",
    [
        lambda t: t.evolve(task="b"),
        lambda t: t.with_verdict(True),
        lambda t: t.with_verdict(False, "off by 3"),
        lambda t: t.with_repeats([1.0]),
    ],
)
def test_updates_copy_a_trial_and_leave_its_trace_packed(learn):
    packed = trial("a", "1", 1.0, trace=unpack)
    copy: Trial = learn(packed)
    assert copy is not packed
    assert (packed.task, packed.verified, packed.error) == ("a", None, None)
    assert (packed.seconds, packed.extra) == ([1.0], {})
    with pytest.raises(Unpacked):
        _ = copy.trace


@pytest.mark.parametrize("name", ["trace", "seconds", "verified"])
def test_a_trial_is_immutable(name):
    with pytest.raises(FrozenInstanceError):
        setattr(trial("a", "1", 1.0), name, None)
