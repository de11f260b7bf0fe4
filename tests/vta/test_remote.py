"""Libraries for VTA on boards that simulate the accelerator."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cli.commands import complaint, tvmtune
from quantize import cnn
from remote.served import Farm, free_port
from tvmtune import api
from tvmtune.networks.inputs import random_inputs
from tvmtune.remote.client.lease import BoardLease
from tvmtune.runtime.library import Library
from tvmtune_vta.hardware.config import Config

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*is calibrated with.*")]

STOCK = Path(__file__).parents[1] / "measure" / "stock.py"


@pytest.fixture(scope="module")
def plan() -> api.Plan:
    return api.plan(cnn.residual(), "vta")


@pytest.fixture(scope="module")
def library(plan, tmp_path_factory):
    return api.compile(plan, tmp_path_factory.mktemp("library") / "lib.so").path


@pytest.mark.parametrize("words", [(), ("--target", "vta", "--target-attr", "config=sim")])
def test_a_board_is_bit_exact(farm: Farm, plan, library, words):
    """Also a board served without --target."""
    _, tracker = farm.tracker()
    farm.board("simulated", tracker, *words)
    with BoardLease(f"simulated@{tracker}") as board:
        inputs = random_inputs(plan.network.inputs, 5)
        (got,) = Library.open(library, board=board).run(inputs)
    assert np.array_equal(got, plan.network.reference(inputs)[0])


def test_bench_checks_on_the_board_and_reports_the_simulation(farm: Farm, library, tmp_path):
    _, tracker = farm.tracker()
    farm.board("simulated", tracker)
    words = ["--remote", f"simulated@{tracker}", "--check", "--repeat", "3", "--json", "-"]
    done = tvmtune("bench", library, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["runs"][0]["check"]["passed"]
    assert any("the accelerator is simulated" in note for note in report["notes"])


def test_a_board_with_another_configuration_rejects_the_library(farm: Farm, library, tmp_path):
    other = tmp_path / "vta_config.json"
    other.write_text(json.dumps(Config().as_dict() | {"LOG_UOP_BUFF_SIZE": 14}))
    _, tracker = farm.tracker()
    farm.board("other", tracker, "--target", "vta", "--target-attr", f"config={other}")
    done = tvmtune("bench", library, "--remote", f"other@{tracker}", cwd=tmp_path)
    text = complaint(done.stderr)
    assert (
        "for another configuration, 1x16_i8w8a32_15_15_18_17, not 1x16_i8w8a32_14_15_18_17" in text
    )
    assert "LOG_UOP_BUFF_SIZE 15 instead of 14" in text


@pytest.mark.parametrize(
    ("attr", "message"),
    [
        ("config=pinq", "neither a published configuration"),
        ("device=foo", "there is no device 'foo'"),
    ],
)
def test_invalid_attributes_stop_a_board_before_it_serves(tmp_path, attr, message):
    words = ["serve", "--key", "x", "--port", free_port(), "--target", "vta", "--target-attr", attr]
    done = tvmtune(*words, cwd=tmp_path)
    assert done.returncode != 0
    assert message in done.stderr
    assert "serving" not in done.stderr


def test_a_board_served_by_tvm_is_reported_as_unsuitable(farm: Farm, library, tmp_path):
    port = free_port()
    words = [sys.executable, str(STOCK), str(port), "stock", str(free_port())]
    farm.start(words, {"TVM_NUM_THREADS": "1"}).expect("are up")
    time.sleep(1)  # it registers shortly after
    done = tvmtune("bench", library, "--remote", f"stock@127.0.0.1:{port}", cwd=tmp_path)
    assert "serve it with tvmtune serve" in complaint(done.stderr)
