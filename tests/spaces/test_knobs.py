"""Knobs: the sampling decisions of a trace, their number of options, and their names."""

from __future__ import annotations

import itertools
import math

import pytest

from tvmtune.spaces.knobs import configuration, factorings, knobs, size

TRACE = [
    [
        ["GetSBlock", [], ["c", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1", "l2"]],
        ["SamplePerfectTile", ["l2"], [2, 8], ["v3", "v4"]],
        ["Split", ["l2", "v3", "v4"], [True, False], ["l5", "l6"]],
        ["Fuse", ["l1", "l5"], [1], ["l7"]],
        ["SamplePerfectTile", ["l7"], [2, -1], ["v8", "v9"]],
        ["SampleCategorical", [], [[0, 16, 64], [0.3, 0.3, 0.4]], ["v10"]],
        ["SampleComputeLocation", ["b0"], [], ["l11"]],
        ["EnterPostproc", [], [], []],
        ["SampleCategorical", [], [[0, 1], [0.5, 0.5]], ["v12"]],
    ],
    [[2, [3, 4]], [5, [6, 2]], [6, 2], [7, -1]],
]


def test_knobs_are_named_by_block_and_loop():
    assert [(k.name, k.kind, k.options) for k in knobs(TRACE)] == [
        ("c.1", "tile", 5),  # 12 = 12x1, 6x2, 4x3, 3x4, 2x6; 1x12 is too wide
        ("c.0*c.1.0", "tile", 6),
        ("choice0", "choice", 3),
        ("c at", "location", None),
    ]


def test_a_space_can_name_its_knobs():
    instructions, decisions = TRACE
    design = [*instructions[:-2], ["Annotate", ["b0", "v10"], ["tvmtune_chip.threads"], []]]
    assert [k.name for k in knobs([design, decisions])][2] == "threads"
    foreign = [*instructions[:-2], ["Annotate", ["b0", "v10"], ["meta_schedule.unroll"], []]]
    assert [k.name for k in knobs([foreign, decisions])][2] == "choice0"


def test_the_decision_of_a_choice_is_the_chosen_value():
    assert knobs(TRACE)[2].decision == 64
    assert configuration(TRACE) == "c.1=3x4 c.0*c.1.0=6x2 choice0=64 c at=-1"


def test_the_size_is_the_product_of_all_known_options():
    assert size(knobs(TRACE)) == 5 * 6 * 3


@pytest.mark.parametrize("extent", [1, 7, 12, 36, 64, 210])
@pytest.mark.parametrize("parts", [1, 2, 3, 4])
@pytest.mark.parametrize("innermost", [1, 4, 10**6])
def test_factorings_equals_the_number_of_listed_ones(extent, parts, innermost):
    divisors = [d for d in range(1, extent + 1) if extent % d == 0]
    listed = [
        factors
        for factors in itertools.product(divisors, repeat=parts)
        if math.prod(factors) == extent and factors[-1] <= innermost
    ]
    assert factorings(extent, parts, innermost) == len(listed)


def test_the_space_of_the_old_tutorial_has_the_size_it_printed():
    assert factorings(1080, 2, 1080) == 32


@pytest.mark.parametrize("trace", [None, [], [[], None], "text", [[["SampleCategorical"]], []]])
def test_an_invalid_trace_prints_as_an_empty_configuration(trace):
    assert configuration(trace) == ""
