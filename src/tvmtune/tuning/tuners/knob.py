"""``xgb-knob``: the cost model sees decisions only.

For spaces whose programs have equal features, such as those of VTA.
"""

from __future__ import annotations

from tvmtune.tuning.tuners import evolutionary
from tvmtune.tuning.tuners.base import Tuner, TunerArgs

OPTIONS: dict[str, int | float] = {k: v for k, v in evolutionary.OPTIONS.items() if k != "replays"}


def create(args: TunerArgs) -> Tuner:
    return evolutionary.KnobTuner(args)
