"""``xgb-knob``: the cost model sees the decisions alone.

For spaces whose programs look alike to the feature extractor, such as those of VTA.
"""

from __future__ import annotations

from tvmtune.tuning.tuners import evolutionary
from tvmtune.tuning.tuners.base import Tuner, TunerArgs

OPTIONS: dict[str, int | float] = {k: v for k, v in evolutionary.OPTIONS.items() if k != "replays"}


def create(args: TunerArgs) -> Tuner:
    return evolutionary.KnobTuner(args)
