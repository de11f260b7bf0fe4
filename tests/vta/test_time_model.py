"""The time model: hand-counted small programs, its bounds, and what tuning reaches."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from tvmtune_vta.codegen.convolution import generate
from tvmtune_vta.codegen.knobs import Knobs
from tvmtune_vta.codegen.workload import Convolution, Epilogue
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.simulator import reference
from tvmtune_vta.timing import svg, time_model
from tvmtune_vta.timing.time_model import TimingConstants
from vta import small
from vta.packed import arrays
from vta.test_convolution import RESNET_18

GOOD = dict(
    zip(
        RESNET_18,
        [
            Knobs(1, 7, 8, 1, 2, 2, 2),
            Knobs(1, 2, 28, 1, 4, 2, 2),
            Knobs(1, 2, 28, 4, 4, 2, 2),
            Knobs(1, 2, 28, 1, 4, 2, 1),
            Knobs(1, 14, 7, 1, 2, 2, 1),
            Knobs(1, 7, 14, 2, 8, 2, 1),
            Knobs(1, 7, 14, 1, 4, 2, 1),
            Knobs(1, 7, 7, 1, 8, 2, 1),
            Knobs(1, 7, 7, 2, 16, 2, 1),
            Knobs(1, 7, 7, 1, 8, 2, 1),
        ],
        strict=True,
    )
)
"""Knobs that a search found."""


def modeled(conv: Convolution, knobs: Knobs) -> time_model.Timeline:
    return time_model.program_timeline(generate(conv, Epilogue(True), knobs, Config()))


def test_the_default_constants():
    assert TimingConstants.default() == TimingConstants(100, 1, 2, 1, 8, 64, 8, 10)


def test_a_small_program_takes_the_cycles_counted_by_hand():
    """Two rounds, each 8 input elements, 16 products, 8 resets and 3 x 8 ALU steps."""
    timeline = time_model.program_timeline(small.program())
    uops, weights, inputs, outputs = 4 * 4, 4 * 256, 8 * 16, 8 * 16
    assert timeline.traffic == {
        "uop": uops, "wgt": weights, "inp": 2 * inputs, "acc": 0, "out": 2 * outputs
    }  # fmt: skip
    assert timeline.steps == {"gemm": 32, "reset": 16, "alu": 48}
    # The load engine gets the port first and waits for the latency of each load.
    data = weights // 8 + 8 + 64 + inputs // 8 + 8 + 64
    core = data + 16 + 8 * 3 * 2
    store = next(span for span in timeline.spans if span[0] == 8)
    assert store == (8, core, core + outputs // 8 + 2 * 8)
    assert timeline.spans[-1][2] == timeline.cycles


def test_traffic_and_steps_match_the_simulator():
    conv, knobs = Convolution(1, 14, 14, 64, 64, 3, 3, 1, 1), Knobs(1, 7, 14, 2, 2, 2, 1)
    program = generate(conv, Epilogue(True), knobs, Config())
    result = reference.run(program, arrays(conv, Epilogue(True), Config())[0])
    timeline = time_model.program_timeline(program)
    assert timeline.steps == result.steps
    assert timeline.traffic == result.traffic
    assert timeline.bound <= timeline.cycles
    assert sum(timeline.busy[e] for e in ("load", "compute", "store")) >= timeline.bound


@pytest.mark.parametrize("conv", RESNET_18, ids=str)
def test_good_knobs_are_within_a_tenth_of_the_bound(conv):
    timeline = modeled(conv, GOOD[conv])
    assert timeline.cycles <= 1.10 * timeline.bound


def test_the_packed_convolutions_of_resnet_18_take_at_most_88_ms():
    total = sum(times * modeled(c, GOOD[c]).seconds for c, times in RESNET_18.items())
    assert total <= 88e-3


def test_two_slots_beat_one_if_load_and_compute_compete():
    conv = Convolution(1, 14, 14, 256, 256, 3, 3, 1, 1)
    one = modeled(conv, Knobs(1, 7, 14, 1, 4))
    two = modeled(conv, Knobs(1, 7, 14, 1, 4, oc_nthread=2))
    assert two.cycles < one.cycles
    assert "compute for load to compute" in one.stalls


def test_the_svg_shows_each_instruction_that_takes_time():
    program = small.program()
    timeline = time_model.program_timeline(program)
    tag = "{http://www.w3.org/2000/svg}"
    boxes = ET.fromstring(svg.timeline_svg(program, timeline)).findall(f"{tag}rect[{tag}title]")
    assert len(boxes) == len(timeline.spans)
    assert {box.get("class") for box in boxes} >= {"inp", "wgt", "gemm", "alu", "store"}
