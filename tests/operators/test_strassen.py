"""Products with weights by Strassen's algorithm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm

from kernels import (
    assert_they_equal,
    error,
    one_product,
    sample_modules,
    this_machine,
)
from tvmtune import api
from tvmtune.cpu_features import AVX, AVX512, ZEN_4, has
from tvmtune.networks.inputs import random_inputs
from tvmtune.operators import strassen
from tvmtune.runtime.library import Library
from tvmtune.spaces import cpu_tiles
from tvmtune.spaces.rule_space import RuleSpace

NAME = "strassen"
PREFERRED = {"mcpu": "znver4"}

PRODUCTS = {
    "rows without a tile": ((1, 53, 64), (64, 96)),
    "an axis of one step": ((1, 1, 66, 32), (32, 64)),
    "many rows in several blocks": ((1500, 32), (32, 64)),
    "a prime number of vectors": ((64, 32), (32, 352)),
}


def _task(network, attrs=None):
    plan = api.plan(network, attrs=attrs or {})
    (task,) = [t for t in plan.tasks if NAME in [i.name for i in t.implementations]]
    return plan, task


def _assert_schedules_are_right(network):
    if not has(this_machine().target, "avx2"):
        pytest.skip("this CPU lacks AVX2")
    plan, task = _task(network)
    mod = task.implementation(NAME).mod
    space, target = RuleSpace(plan.device.target), tvm.target.Target(plan.device.target)
    assert_they_equal(mod, [space.default(mod, target).mod, *sample_modules(mod, space, 3)])


@pytest.mark.sweep
@pytest.mark.parametrize(("left", "right"), PRODUCTS.values(), ids=PRODUCTS)
@pytest.mark.filterwarnings("error:schedule rule")
def test_it_equals_the_product_in_its_default_and_in_sampled_schedules(left, right):
    _assert_schedules_are_right(one_product(left, right, constant=True, tail="residual"))


@pytest.mark.sweep
@pytest.mark.parametrize("tail", ["", "gelu"], ids=["nothing follows", "its value is read twice"])
@pytest.mark.filterwarnings("error:schedule rule")
def test_it_equals_the_product_with_other_epilogues(tail):
    _assert_schedules_are_right(one_product((1, 66, 32), (32, 64), constant=True, tail=tail))


def test_the_product_of_transformed_weights_is_that_of_the_weights():
    rng = np.random.default_rng(0)
    data, weight = rng.standard_normal((6, 8)), rng.standard_normal((8, 12)).astype("float32")
    quarters = [data[i::2, 4 * j : 4 * j + 4] for i in range(2) for j in range(2)]
    sums = np.einsum("pq,qmk->pmk", np.array(strassen.DATA), quarters)
    products = sums @ strassen.transform_weight(weight, 3)
    output = np.einsum("qp,pmn->qmn", np.array(strassen.OUTPUT), products)
    want = data @ weight
    for quarter, found in enumerate(output):
        row, column = divmod(quarter, 2)
        columns = want[row::2].reshape(3, 2, 2, 3)[:, :, column].reshape(3, 6)
        np.testing.assert_allclose(found, columns, rtol=1e-5)


@pytest.mark.slow
def test_zen_4_computes_large_products_so_without_a_record(tmp_path: Path):
    network = one_product((1, 101, 768), (768, 768), constant=True, tail="residual")
    plan, task = _task(network, PREFERRED)
    assert task.untuned.name == NAME
    if not has(this_machine().target, "avx512bf16"):
        pytest.skip("this CPU cannot run it")
    inputs = random_inputs(network.inputs, 3)
    compiled = api.compile(plan, tmp_path / "lib.so")
    (listed,) = compiled.metadata["tasks"]["list"]
    assert (listed["implementation"], listed["record"]) == (NAME, "default")
    (got,) = Library.open(compiled.path).run(inputs)
    (want,) = network.reference(inputs)
    assert error(got, want) < 1e-5


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((64, 48), (48, 64)),
        ((64, 32), (32, 48)),
        ((16, 32), (32, 64)),
        ((2, 32, 32), (32, 64)),
        ((2, 32, 32), (2, 32, 64)),
    ],
    ids=[
        "half the terms fill no vector",
        "half the columns fill no vectors",
        "few rows",
        "two axes of rows",
        "a matrix for each of several",
    ],
)
def test_other_products_are_left_to_other_implementations(left, right):
    plan = api.plan(one_product(left, right, constant=True), attrs=PREFERRED)
    assert NAME not in [i.name for task in plan.tasks for i in task.implementations]


def test_products_whose_second_operand_is_computed_are_left_to_others():
    plan = api.plan(one_product((128, 768), (768, 768), constant=False), attrs=PREFERRED)
    assert NAME not in [i.name for task in plan.tasks for i in task.implementations]


@pytest.mark.parametrize(
    ("rows", "terms", "columns", "suits"),
    [
        (128, 768, 768, True),
        (64, 768, 3072, True),
        (512, 1024, 1024, True),
        (50, 768, 3072, False),
        (196, 512, 512, False),
        (784, 768, 3072, False),
        (3136, 96, 384, False),
    ],
)
def test_zen_4_prefers_it_for_few_rows_and_large_weights(rows, terms, columns, suits):
    assert cpu_tiles.suits_strassen(rows, terms, columns, ZEN_4) == suits
    assert not cpu_tiles.suits_strassen(rows, terms, columns, AVX512), "not measured"


@pytest.mark.parametrize("unit", [AVX, AVX512, ZEN_4])
@pytest.mark.parametrize("cores", [1, 2, 3, 16])
@pytest.mark.parametrize(("rows", "columns"), [(128, 768), (197, 3072), (1500, 64), (64, 6400)])
def test_blocks_cover_the_halves_and_stay_in_the_cache(rows, columns, cores, unit):
    blocks = cpu_tiles.strassen_blocks(rows, columns, unit, cores)
    assert 2 * blocks.rows * blocks.count >= rows
    assert columns // (2 * unit.lanes) % blocks.vectors == 0
    held = 4 * strassen.PRODUCTS * blocks.rows * blocks.vectors * unit.lanes
    assert held <= cpu_tiles.STRASSEN_HELD


def test_each_thread_has_equally_many_blocks():
    blocks = cpu_tiles.strassen_blocks(128, 768, ZEN_4, 2)
    assert blocks == strassen.Blocks(rows=64, count=1, vectors=12, lanes=16)
