"""The search space of a packed convolution, as tuners use it."""

from __future__ import annotations

import pytest
import tvm

from tvmtune.passes.workload_keys import workload_key
from tvmtune.tuning.model import CostModel
from tvmtune.tuning.tuners import create
from tvmtune.tuning.tuners.base import TunerArgs
from tvmtune.types import Implementation
from tvmtune_vta.codegen.convolution import generate
from tvmtune_vta.codegen.knobs import points
from tvmtune_vta.codegen.workload import Convolution
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.tuning import conv2d_packed
from tvmtune_vta.tuning.space import KnobSpace, annotated, read_knobs

CONV = Convolution(1, 14, 14, 64, 64, 3, 3, 1, 1)
TRANSPOSED = Convolution(1, 7, 7, 32, 32, 3, 3, 1, 1, end_h=0, end_w=1, up_h=2, up_w=2)


def tuner(name: str):
    mod = conv2d_packed.module(CONV, Config())
    space = KnobSpace(CONV, conv2d_packed.EPILOGUE, Config())
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
def test_a_schedule_represents_any_knobs(conv):
    mod = conv2d_packed.module(conv, Config())
    for knobs in list(points(conv, Config()))[::37]:
        assert read_knobs(annotated(mod, conv, Config(), knobs).mod) == knobs


@pytest.mark.slow
def test_indistinguishable_features_are_extracted_only_once(monkeypatch):
    looks = []
    whole = CostModel.features

    def counted(self, context, schedules):
        looks.append(len(schedules))
        return whole(self, context, schedules)

    monkeypatch.setattr(CostModel, "features", counted)
    xgb = tuner("xgb")
    for _ in range(3):
        proposals = xgb.ask(16)
        assert len(proposals) == 16
        xgb.tell(proposals, [1e-3 * (1 + n) for n in range(16)])
        xgb.revise(proposals[0].candidate, 2e-3)
    assert len(looks) == 1


def test_tuners_propose_feasible_knobs():
    for name in ("xgb-knob", "random", "ga"):
        for proposal in tuner(name).ask(8):
            knobs = read_knobs(proposal.schedule.mod)
            generate(CONV, conv2d_packed.EPILOGUE, knobs, Config())
