"""NaN and infinities are found in bfloat16, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kernels import scheduled_library

torch = pytest.importorskip("torch")

from networks.torch_models import function_network  # noqa: E402

VALUES = np.array([1, np.nan, np.inf, -np.inf, 0], ml_dtypes.bfloat16)


@pytest.mark.parametrize("name", ["isfinite", "isinf", "isnan"])
def test_they_are_found(name: str, tmp_path: Path):
    def choose(x: Any) -> Any:
        return torch.where(getattr(torch, name)(x), 1.0, 2.0)

    made = function_network(choose, torch.zeros(5, dtype=torch.bfloat16))
    (got,) = scheduled_library(made, tmp_path / "net.so", {}).run({"x_0": VALUES})
    (want,) = made.reference({"x_0": VALUES})
    assert got.tolist() == want.tolist()
    assert len({*got.tolist()}) == 2
