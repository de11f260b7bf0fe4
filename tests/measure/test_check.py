"""The check of a kernel sees every kind of wrong kernel, in every dtype."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from measure import mutants
from tvmtune.accuracy import tolerance
from tvmtune.measure import check_data, local
from tvmtune.passes.kernel_arguments import kernel_arguments

CASES = [
    *[(f, d) for f in mutants.FAMILIES for d in ("float32", "float16", "bfloat16", "int8")],
    *[(f, "int32") for f in (mutants.matmul, mutants.elementwise, mutants.gather)],
]
QUICK = (mutants.conv2d, mutants.matmul, mutants.gather)


def names(wrong: str) -> str:
    return wrong.replace(" ", "_") or "right"


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        pytest.param(
            family,
            dtype,
            id=f"{family.__name__}-{dtype}",
            marks=[] if family in QUICK and dtype != "float16" else pytest.mark.slow,
        )
        for family, dtype in CASES
    ],
)
def test_every_wrong_kernel_is_caught(family: Any, dtype: str, tmp_path: Path, monkeypatch):
    kernels = {wrong: mutants.make(family, dtype, wrong) for wrong in ("", *mutants.WRONG)}
    right = kernels[""]
    library = tvm.compile(
        tvm.IRModule(
            {
                names(wrong): kernel.with_attr("global_symbol", names(wrong))
                for wrong, kernel in kernels.items()
            }
        ),
        target="llvm",
    )

    def after(name: str, values: Any, options: Any = None) -> list[np.ndarray]:
        tensors = [tvm.runtime.tensor(each) for each in values]
        function = kernels[name]
        views = [
            tensor._create_view([int(d) for d in param.shape])
            for tensor, param in zip(tensors, function.params, strict=True)
        ]
        library[names(name)](*views)
        return [tensor.numpy() for tensor in tensors]

    monkeypatch.setattr(local, "_after", lambda path, values, options: after("", values))
    args = kernel_arguments(tvm.IRModule({"main": right}))
    reference = str(tmp_path / "reference.so")
    errors = {
        wrong: local.compare(lambda values, wrong=wrong: after(wrong, values), reference, args)
        for wrong in kernels
    }
    assert errors.pop("") == 0.0
    # Far above the tolerance: not by luck.
    missed = {wrong: error for wrong, error in errors.items() if error < 2 * tolerance(dtype)}
    assert missed == {}
    for which in check_data.SETS:
        _, expected = local._expected(reference, args, which)
        assert check_data.shows_errors(expected[-1:]) >= check_data.TELLING
