"""Elementary functions in vectors: accuracy over the whole range, special values, generated code."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from scipy import special

from tvmtune.machine import processor
from tvmtune.operators import cpu_pipeline

COUNT = 1 << 20
EXACT = {
    "exp": np.exp,
    "erf": special.erf,
    "log": np.log,
    "log1p": np.log1p,
    "sigmoid": special.expit,
    "tanh": np.tanh,
}
"""In float64."""
ULPS = {"exp": 1.0, "erf": 1.25, "log": 1.0, "log1p": 2.5, "sigmoid": 2.5, "tanh": 1.5}
"""The largest errors that the module's docstring promises."""
SPECIAL = np.array(
    [0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 88.72, 88.73, -88.8, -103.9, -104.1, 1, -1],
    "float32",
)


def build(
    name: str,
    *,
    vectorize: bool = True,
    dtype: str = "float32",
    pipeline: str = cpu_pipeline.PIPELINE,
    **target: str,
) -> Any:
    """``name`` of :data:`COUNT` values."""
    import tvm
    from tvm import te, tirx

    x = te.placeholder((COUNT,), dtype, name="x")
    y = te.compute((COUNT,), lambda i: getattr(tirx, name)(x[i]), name="y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    if vectorize:
        (loop,) = schedule.get_loops("y")
        schedule.vectorize(schedule.split(loop, [None, 16])[1])
    cpu_pipeline.register()
    return tvm.compile(
        schedule.mod,
        tvm.target.Target({"kind": "llvm", **target}),
        tir_pipeline=pipeline,
    )


def compute(function: Any, values: np.ndarray) -> np.ndarray:
    """Of up to :data:`COUNT` values."""
    import tvm

    x = np.zeros(COUNT, values.dtype)
    x[: len(values)] = values
    y = tvm.runtime.tensor(np.zeros_like(x))
    function(tvm.runtime.tensor(x), y)
    result: np.ndarray = y.numpy()
    return result[: len(values)]


def compiled_function(name: str) -> Any:
    """A function of ``vector_math`` that no operator of TVM is lowered to."""
    import tvm
    from tvm import te, tirx

    x = te.placeholder((COUNT,), "float32", name="x")
    symbol = f"tvmtune_vector_{name}_x1"
    y = te.compute((COUNT,), lambda i: tirx.call_pure_extern("float32", symbol, x[i]), name="y")
    cpu_pipeline.register()
    function = tvm.compile(te.create_prim_func([x, y]), "llvm", tir_pipeline=cpu_pipeline.PIPELINE)
    return lambda values: compute(function, values)


def host_cpu() -> str:
    return processor.name()


def errors(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """In units in the last place, where the result is finite; infinite where it is another special
    value."""
    with np.errstate(all="ignore"):
        rounded = exact.astype("float32")
        spacing = np.spacing(np.maximum(np.abs(rounded), np.finfo("float32").tiny))
        result = np.abs(got.astype("float64") - exact) / spacing
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    result[same] = 0
    result[~np.isfinite(result)] = np.inf
    return result


@pytest.mark.sweep
@pytest.mark.parametrize("cpu", ["host", "haswell"])
@pytest.mark.parametrize("name", list(EXACT))
def test_results_are_accurate_over_the_whole_range(name: str, cpu: str) -> None:
    function = build(name, mcpu=host_cpu() if cpu == "host" else cpu)
    values = np.arange(0, 1 << 32, 257, dtype="uint64").astype("uint32").view("float32")
    for part in np.array_split(values, len(values) // COUNT + 1):
        with np.errstate(all="ignore"):
            exact = EXACT[name](part.astype("float64"))
        wrong = errors(compute(function, part), exact)
        worst = wrong.argmax()
        assert wrong[worst] <= ULPS[name], f"{name}({part[worst]}) is off by {wrong[worst]} ulps"


@pytest.mark.parametrize("vectorize", [True, False])
@pytest.mark.parametrize("name", list(EXACT))
def test_special_values_give_their_limits(name: str, vectorize: bool) -> None:
    with np.errstate(all="ignore"):
        exact = EXACT[name](SPECIAL.astype("float64"))
    got = compute(build(name, vectorize=vectorize), SPECIAL)
    assert errors(got, exact).max() <= ULPS[name], got
    zero = exact == 0
    if name != "exp":
        assert np.array_equal(np.signbit(got[zero]), np.signbit(exact[zero])), "the sign of zero"


@pytest.mark.parametrize(
    "target",
    [
        {"mcpu": "haswell"},
        {"mcpu": "skylake-avx512"},
        {"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"},
    ],
    ids=["avx2", "avx512", "neon"],
)
@pytest.mark.parametrize("name", list(EXACT))
def test_no_instruction_set_calls_the_c_library(name: str, target: dict[str, str]) -> None:
    assembly = build(name, **target).mod.inspect_source("asm")
    calls = re.findall(r"\b(?:callq?|bl|jmp)\s+\S*((?:exp|erf|log|tanh)\w*)", assembly)
    assert not calls
    assert re.search(r"vmulps.*[yz]mm|fmul\s+v\d+\.4s", assembly), "computes in vectors"


@pytest.mark.parametrize("amplifies", [False, True])
def test_functions_of_what_is_rounded_to_bfloat16_have_half_the_digits(amplifies: bool) -> None:
    """Unless a difference could make their error a large one."""
    import tvm
    from tvm import te, tirx

    def value(x: Any) -> Any:
        erf = tirx.erf(x)
        return (1 - erf if amplifies else 1 + erf).astype("bfloat16")

    x = te.placeholder((COUNT,), name="x")
    y = te.compute((COUNT,), lambda i: value(x[i]), name="y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    schedule.vectorize(schedule.split(schedule.get_loops("y")[0], [None, 16])[1])
    target = {"kind": "llvm", "mcpu": "sapphirerapids"}
    library = tvm.compile(
        schedule.mod, tvm.target.Target(target), tir_pipeline=cpu_pipeline.pipeline_for(target)
    )
    multiplications, of_all_digits = (
        len(re.findall("vfn?m(?:add|sub)", each.mod.inspect_source("asm")))
        for each in (library, build("erf", mcpu="sapphirerapids"))
    )
    assert (0 < multiplications < of_all_digits) != amplifies


def test_the_erf_with_half_the_digits_is_accurate_to_15_bits_and_has_its_limits() -> None:
    function = compiled_function("coarse_erf")
    values = np.linspace(-8, 8, COUNT, dtype="float32")
    assert np.abs(function(values) - special.erf(values.astype("float64"))).max() < 3e-5
    got = function(SPECIAL)
    limits = np.isnan(SPECIAL) | (np.abs(SPECIAL) > 4) | (SPECIAL == 0)
    np.testing.assert_array_equal(got[limits], special.erf(SPECIAL[limits]))


def test_rounding_to_even_is_one_instruction_for_a_vector() -> None:
    assembly = build("nearbyint", mcpu="skylake-avx512").mod.inspect_source("asm")
    assert re.search(r"vrndscaleps\s+\$\d+, .*%zmm", assembly)
    values = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 3.4999998, 8388609, np.inf], "float32")
    np.testing.assert_array_equal(compute(build("nearbyint"), values), np.rint(values))


@pytest.mark.parametrize("name", list(EXACT))
def test_half_precision_rounds_once(name: str) -> None:
    values = np.random.default_rng(0).normal(size=1000).astype("float16")
    with np.errstate(all="ignore"):
        exact = EXACT[name](values.astype("float64")).astype("float16")
    got = compute(build(name, dtype="float16", mcpu=host_cpu()), values)
    close = np.abs(got.view("int16").astype(int) - exact.view("int16").astype(int)) <= 1
    assert np.all(close | (np.isnan(got) & np.isnan(exact)))


@pytest.mark.parametrize("name", list(EXACT))
def test_double_precision_and_references_use_the_c_library(name: str) -> None:
    values = np.random.default_rng(0).normal(size=1000)
    with np.errstate(all="ignore"):
        exact = EXACT[name](values)
    double = compute(build(name, dtype="float64"), values)
    assert np.allclose(double, exact, rtol=1e-12, atol=0, equal_nan=True)
    reference = build(name, pipeline="default")
    assert re.search(r"expf|erff|logf|log1pf|tanhf", reference.mod.inspect_source("asm"))


@pytest.mark.parametrize("name", ["cosh", "sinh"])
def test_functions_that_have_no_vector_form_compile_in_vectorized_loops(name):
    x = np.linspace(-5, 5, 1000, dtype="float32")
    got = compute(build(name), x)
    np.testing.assert_allclose(got, getattr(np, name)(x.astype("float64")), rtol=1e-5)
