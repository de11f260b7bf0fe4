"""Programs for any legal configuration obey the rules and are bit-exact."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from quantize import cnn
from tvmtune import api
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.inputs import random_inputs
from tvmtune.quantize import integers
from tvmtune.quantize.layers import SumLayer
from tvmtune.runtime.library import Library
from tvmtune_vta.codegen import addition
from tvmtune_vta.codegen.addition import Addition
from tvmtune_vta.codegen.convolution import W, X, Y, generate
from tvmtune_vta.codegen.workload import Convolution, Epilogue
from tvmtune_vta.device import packed_functions
from tvmtune_vta.hardware import rules
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.simulator import reference
from vta.packed import arrays, feasible_knobs


def random_config(rng: random.Random) -> Config:
    """Any shape of the core up to 64 channels, and any sizes of the memories that it accepts."""
    while True:
        values = Config().as_dict() | {
            "LOG_BATCH": rng.choice([0, 0, 0, 1, 2]),
            "LOG_BLOCK": rng.choice([3, 4, 4, 4, 5, 6]),
            "LOG_UOP_BUFF_SIZE": rng.randint(3, 16),
            "LOG_INP_BUFF_SIZE": rng.randint(6, 20),
            "LOG_WGT_BUFF_SIZE": rng.randint(8, 22),
            "LOG_ACC_BUFF_SIZE": rng.randint(8, 20),
        }
        try:
            return Config.parse(values, "test")
        except UsageError:
            continue


def assert_sum_is_right(on: Config, rng: random.Random) -> bool:
    """False if the configuration has no room for sums."""
    shape = (1, rng.randint(1, 3), rng.randint(1, 40), rng.randint(1, 40), on.batch, on.block)
    wanted = Addition(shape, rng.choice([None, 0, 3]), rng.randint(0, 6), rng.randint(0, 7))
    try:
        program = addition.generate(wanted, on)
    except TvmtuneError as error:
        assert "no room for a sum" in str(error)
        return False
    rules.check(program)
    data = np.random.default_rng(rng.randrange(1 << 30))
    given = [data.integers(-128, 128, shape).astype(np.int8) for _ in range(2)]
    memory = dict(zip((addition.A, addition.B), given, strict=True))
    layer = SumLayer(("a", "b"), "y", (shape, shape), shape)
    factors = (wanted.left, wanted.right)
    whole = integers.QuantizedSum(layer, (0, 0), 0, wanted.shift, -127, 127, factors=factors)
    got = reference.run(program, memory).memory[addition.Y]
    assert np.array_equal(got, whole.run(given)), (on.as_dict(), wanted)
    return True


def assert_convolution_is_right(on: Config, rng: random.Random) -> bool:
    """False if no tile fits."""
    k = rng.choice([1, 3])
    conv = Convolution(
        on.batch, 6, 7, on.block, rng.randint(1, 2) * on.block, k, k, k // 2, k // 2, 1, 1
    )
    epilogue = Epilogue(True, 8, -100, 127)
    settings = feasible_knobs(conv, on, 1, seed=rng.randrange(1 << 30))
    for knobs in settings:
        program = generate(conv, epilogue, knobs, on)
        rules.check(program)
        memory, wanted = arrays(conv, epilogue, on)
        assert set(memory) >= {X, W}
        got = reference.run(program, memory).memory[Y]
        assert np.array_equal(got, wanted), (on.as_dict(), conv, knobs)
    return bool(settings)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(s, marks=pytest.mark.soak) for s in range(3, 60))]
)
def test_layers_are_bit_exact_on_any_configuration(seed: int) -> None:
    rng = random.Random(seed)
    sums, convolutions = [], []
    for _ in range(6):
        on = random_config(rng)
        sums.append(assert_sum_is_right(on, rng))
        convolutions.append(assert_convolution_is_right(on, rng))
    assert any(sums) and any(convolutions)


@pytest.mark.parametrize("size", [13, 14, 15, 16])
def test_sums_where_inputs_are_deeper_than_accumulators(size: int) -> None:
    """Their uops address inputs, which an ALU operation must not."""
    on = Config.parse(Config().as_dict() | {"LOG_ACC_BUFF_SIZE": size}, "test")
    program = addition.generate(Addition((1, 4, 32, 32, 1, 16)), on)
    rules.check(program)


def test_sums_keep_the_largest_tile_that_fits() -> None:
    program = addition.generate(Addition((1, 4, 56, 56, 1, 16)), Config())
    sizes = {step.x_size for step in program.decode() if getattr(step, "x_size", 0) > 6}
    assert max(sizes) == 512, "a quarter of the input's memory"


@pytest.mark.filterwarnings("ignore:.*is calibrated with.*")
@pytest.mark.parametrize(
    "seed",
    [
        *(pytest.param(s, marks=pytest.mark.slow) for s in range(2)),
        *(pytest.param(s, marks=pytest.mark.soak) for s in range(2, 40)),
    ],
)
def test_a_residual_network_is_bit_exact_on_any_configuration(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    network = cnn.residual(rng.choice([16, 24, 40]), rng.choice([16, 20]))
    path = tmp_path / "vta_config.json"
    while True:
        path.write_text(json.dumps(random_config(rng).as_dict()))
        try:
            plan = api.plan(network, "vta", attrs={"config": str(path)})
            break
        except TvmtuneError as error:
            assert "VTA can run none of" in str(error)  # it is too small for any layer
    packed_functions.cache.clear()
    library = Library.open(api.compile(plan, tmp_path / "lib.so").path)
    inputs = random_inputs(network.inputs, seed)
    (got,), (wanted,) = library.run(inputs), plan.network.reference(inputs)
    assert np.array_equal(got, wanted), path.read_text()
    programs = packed_functions.cache.programs()
    assert programs
    for program in programs:
        rules.check(program)
        shapes = {n: program.buffers[n].shape for n in program.numbers("input")}
        given = {
            n: np.random.default_rng(n).integers(-127, 128, shape).astype(np.int8)
            for n, shape in shapes.items()
        }
        reference.run_all_orders(program, given, seeds=1)
