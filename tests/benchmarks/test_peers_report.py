"""The tables of ``benchmarks/peers.py``."""

from __future__ import annotations

import pytest
from comparison import report, roofline

PEAK = {"gflops": 100.0, "memory_gb_s": 10.0, "weights_gb_s": 50.0}
LAYERS = [
    {"name": "at-peak", "task": "t0", "calls": 1, "ms": 10.0, "gflop": 1.0, "mb": 1.0},
    {"name": "slow", "task": "t1", "calls": 2, "ms": 4.0, "gflop": 0.1, "mb": 1.0},
    {"name": "streams", "task": "t2", "calls": 1, "ms": 2.0, "gflop": 0.0, "mb": 100.0},
    {"name": "(between kernels)", "task": None, "calls": 1, "ms": 9.0, "gflop": None, "mb": None},
]


def row(network: str, state_key: str = "s", measured: float = 0.0, **medians: float):
    kinds, peers = ["untuned", "tuned"], ["onnxruntime", "openvino", "ncnn"]
    return {
        "network": network,
        "threads": 2,
        "state_key": state_key,
        "measured": measured,
        "state": {
            "machine": {
                "cpu": "a CPU",
                "cpus": {"usable": 2},
                "memory_bytes": 2**30,
                "os": "Linux",
                "python": "3.11",
            },
            "versions": {"ncnn": None, "onnxruntime": "1.32"},
            "sources": "abc",
            "measuring": {
                "kinds": kinds,
                "peers": peers,
                "repeat": 5,
                "layout": "NHWC",
                "tune": 60.0,
            },
        },
        "background_load": 0.02,
        "isa": ["avx2"],
        "tasks": 3,
        "runs": [
            {"runtime": name, "median_ms": ms, "errors": {"1": 1e-6, "0.001": None, "1000": 2e-6}}
            for name, ms in medians.items()
        ],
        "peak": PEAK,
        "layers": {"tuned": LAYERS},
        "libraries": {
            "tuned": {
                "trials": 7,
                "tune_s": 60,
                "compile_s": 2.0,
                "compile_mb": 500,
                "library_mb": 9,
            }
        },
        "missing": {"ncnn": "ncnn is not installed"},
    }


def lines(rows, top: int = 2) -> list[str]:
    return report.report(rows, top).splitlines()


def test_ratios_are_those_of_the_best_peer_and_their_mean_is_geometric():
    rows = [
        row("a", untuned=8.0, tuned=4.0, onnxruntime=4.0, openvino=6.0),
        row("b", untuned=1.0, tuned=0.5, onnxruntime=9.0, openvino=2.0),
    ]
    text = lines(rows)
    assert "| a | 2 | 8.00 | 4.00 | 4.00 | 6.00 | onnxruntime | 0.50 | 1.00 | 2% |" in text
    assert "| b | 2 | 1.00 | 0.500 | 9.00 | 2.00 | openvino | 2.00 | 4.00 | 2% |" in text
    mean = next(line for line in text if line.startswith("| geometric mean | 2 |"))
    assert mean.endswith("| 1.00 (2) | 2.00 (2) |  |")
    assert "- a, ncnn: ncnn is not installed" in text


def test_a_network_that_no_peer_runs_has_no_ratio_and_does_not_count():
    rows = [row("a", untuned=8.0, tuned=4.0, openvino=4.0), row("b", untuned=1.0, tuned=1.0)]
    text = lines(rows)
    assert "| b | 2 | 1.00 | 1.00 | - | - | - | - | 2% |" in text
    mean = next(line for line in text if line.startswith("| geometric mean"))
    assert "0.50 (1) | 1.00 (1)" in mean


def test_a_peer_that_computes_something_else_is_not_the_best():
    one = row("a", untuned=8.0, tuned=4.0, onnxruntime=6.0, openvino=1.0, ncnn=2.0)
    one["runs"][-2]["errors"]["1"] = 0.5
    one["runs"][-1]["errors"]["1"] = None
    expected = "| a | 2 | 8.00 | 4.00 | 6.00 | 1.00 (wrong) | 2.00 (wrong) | onnxruntime | 0.75 |"
    assert any(line.startswith(expected) for line in lines([one]))


def test_a_failed_network_is_listed_with_its_reason():
    failed = row("b")
    failed = {key: failed[key] for key in ("network", "threads", "state", "state_key", "measured")}
    failed["failure"] = "LSTM is not supported"
    assert "- b: LSTM is not supported" in lines([failed])
    text = lines([row("a", untuned=8.0, tuned=4.0, openvino=4.0), failed])
    assert "- b: LSTM is not supported" in text
    assert any(line.startswith("| a |") for line in text)


def test_layers_are_sorted_by_the_time_beyond_the_roofline():
    text = [line for line in lines([row("a", tuned=4.0)], top=2) if "| 2 | tuned | " in line]
    assert text == [
        # 1 ms at the peak rate
        "| a | 2 | tuned | slow | 2 | 4.000 | 16% | 25% | 0% | 3.000 |",
        "| a | 2 | tuned | at-peak | 1 | 10.000 | 40% | 100% | 0% | 0.000 |",
    ]


def test_shares_of_the_roofline():
    assert roofline.shares(LAYERS[0], PEAK) == pytest.approx((1.0, 0.002, 0.0))
    assert roofline.shares(LAYERS[2], PEAK) == pytest.approx((0.0, 1.0, 0.0))


def test_only_the_newest_state_is_shown():
    rows = [
        row("old", "x", 1.0, tuned=1.0),
        row("a", "y", 2.0, tuned=1.0),
        row("b", "y", 3.0, tuned=1.0),
    ]
    chosen, others = report.newest(rows)
    assert [each["network"] for each in chosen] == ["a", "b"]
    assert others == 1
    assert report.newest([]) == ([], 0)
