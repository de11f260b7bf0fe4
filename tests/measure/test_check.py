"""The check of a kernel sees every kind of wrong kernel, in every dtype."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, topi

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


@pytest.mark.sweep
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


def error_of(right: Any, wrong: Callable[[list[np.ndarray]], None], folder: Path) -> float:
    """The error of a kernel that computes what ``wrong`` makes of the right one's arguments."""
    mod = tvm.IRModule({"main": right.with_attr("global_symbol", "main")})
    library = str(folder / "reference.so")
    tvm.compile(mod, target="llvm").export_library(library)

    def run(values: list[np.ndarray]) -> list[np.ndarray]:
        after = [array.copy() for array in local._after(library, values, {})]
        wrong(after)
        return after

    return local.compare(run, library, kernel_arguments(mod))


def one_off(after: list[np.ndarray]) -> None:
    """The largest value is off by one."""
    flat = after[-1].reshape(-1)
    flat[np.abs(flat).argmax()] -= 1


def argmax(rows: int) -> Any:
    x = te.placeholder((rows, 4), "float32", name="x")
    return te.create_prim_func([x, topi.argmax(x, axis=0)])


def scaled(size: int) -> Any:
    x = te.placeholder((size,), "int32", name="x")
    return te.create_prim_func([x, te.compute((size,), lambda i: x[i] * 3, name="y")])


@pytest.mark.parametrize("kernel", [argmax(30000), scaled(500)], ids=["argmax", "int32"])
def test_integers_are_compared_exactly(kernel, tmp_path):
    """One off in 30,000 is within the tolerance of floats."""
    assert error_of(kernel, lambda after: None, tmp_path) == 0.0
    assert error_of(kernel, one_off, tmp_path) >= 1.0


def test_integers_that_are_rounded_from_floats_are_compared_within_the_tolerance(tmp_path):
    x = te.placeholder((500,), "float32", name="x")
    y = te.compute((500,), lambda i: (x[i] * 1e6).astype("int32"), name="y")
    error = error_of(te.create_prim_func([x, y]), one_off, tmp_path)
    assert 0.0 < error < tolerance("int32")


def scheme(body: str) -> Any:
    """A kernel of ``x`` and ``y``, 100 floats each, whose loop over ``i`` has this body."""
    text = f"""
# from tvm.script import tirx as T
@T.prim_func(s_tir=True)
def main(x: T.Buffer((100,), "float32"), y: T.Buffer((100,), "float32")):
    for i in range(100):
        {body}
"""
    return tvm.script.from_source(text)


def checked(body: str, folder: Path) -> float:
    """The error of a kernel that should double ``x``."""
    paths = []
    for name, kernel in (
        ("reference", scheme("y[i] = x[i] * T.float32(2)")),
        ("main", scheme(body)),
    ):
        mod = tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
        paths.append(str(folder / f"{name}.so"))
        tvm.compile(mod, target="llvm").export_library(paths[-1])
    return local.check(paths[1], paths[0], kernel_arguments(mod), {})


@pytest.mark.sweep
@pytest.mark.parametrize(
    "body",
    [
        "y[i] = x[i] + x[i] + x[i + 1] * T.float32(1e-30)",
        "y[i] = x[i] + x[i] + x[i - 1] * T.float32(1e-30)",
        "y[i] = x[i] * T.float32(2); y[i + 1] = T.float32(0)",
        "y[99 - i] = x[99 - i] * T.float32(2); y[98 - i] = T.float32(0)",
        "y[i] = x[i] * T.float32(2); x[i + 1] = x[i + 1]; x[100] = T.float32(0)",
    ],
    ids=["reads behind", "reads before", "writes behind", "writes before", "writes behind inputs"],
)
def test_a_kernel_that_leaves_its_arguments_is_caught(body, tmp_path):
    assert not checked(body, tmp_path) <= tolerance("float32")


def test_a_kernel_that_stays_within_its_arguments_passes(tmp_path):
    assert checked("y[i] = x[i] + x[i]", tmp_path) == 0.0


def test_a_kernel_that_is_wrong_at_its_second_call_is_caught(tmp_path, monkeypatch):
    """As one that leaves something behind, or whose threads race."""
    calls = []

    def load(artifact: str, options: Any) -> Any:
        device, module = right(artifact, options)
        if "main" not in Path(artifact).name:
            return device, module

        def main(*arrays: Any) -> None:
            module["main"](*arrays)
            calls.append(arrays)
            if len(calls) % 2 == 0:
                arrays[1].copyfrom(arrays[1].numpy() + np.float32(1))

        return device, {"main": main}

    right = local.load
    monkeypatch.setattr(local, "load", load)
    assert checked("y[i] = x[i] + x[i]", tmp_path) > 0.0
    assert len(calls) == 3
