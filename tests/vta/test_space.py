"""VTA's knobs as a space that tuners search."""

from __future__ import annotations

import pytest
import tvm

from tvmtune.records.identity import workload_key
from tvmtune.tuning.model import CostModel
from tvmtune.tuning.tuners import create
from tvmtune.tuning.tuners.base import TunerArgs
from tvmtune.types import Implementation
from tvmtune_vta import compute
from tvmtune_vta.config import Config
from tvmtune_vta.convolution import generate
from tvmtune_vta.knobs import points
from tvmtune_vta.space import KnobSpace, noted, read
from tvmtune_vta.workload import Convolution

CONV = Convolution(1, 14, 14, 64, 64, 3, 3, 1, 1)
TRANSPOSED = Convolution(1, 7, 7, 32, 32, 3, 3, 1, 1, end_h=0, end_w=1, up_h=2, up_w=2)


def tuner(name: str):
    mod = compute.module(CONV, Config())
    space = KnobSpace(CONV, compute.EPILOGUE, Config())
    args = TunerArgs(
        implementation=Implementation("direct", workload_key(mod), mod, space),
        target=tvm.target.Target({"kind": "llvm", "num-cores": 2}),
        model=CostModel(seed=1),
        known=set(),
        seed=1,
        threads=1,
        history=(),
    )
    return create(name, args)


@pytest.mark.parametrize("conv", [CONV, TRANSPOSED], ids=str)
def test_a_schedule_notes_any_knobs(conv):
    mod = compute.module(conv, Config())
    for knobs in list(points(conv, Config()))[::37]:
        assert read(noted(mod, conv, Config(), knobs).mod) == knobs


def test_programs_that_all_look_the_same_are_not_looked_at_again(monkeypatch):
    looks = []
    whole = CostModel.features

    def counted(self, context, schedules):
        looks.append(len(schedules))
        return whole(self, context, schedules)

    monkeypatch.setattr(CostModel, "features", counted)
    made = tuner("xgb")
    for _ in range(3):
        proposals = made.ask(16)
        assert len(proposals) == 16
        made.tell(proposals, [1e-3 * (1 + n) for n in range(16)])
        made.revise(proposals[0].candidate, 2e-3)
    assert len(looks) == 1


def test_what_tuners_propose_fits_the_hardware():
    for name in ("xgb-knob", "random", "ga"):
        for proposal in tuner(name).ask(8):
            knobs = read(proposal.schedule.mod)
            generate(CONV, compute.EPILOGUE, knobs, Config())
