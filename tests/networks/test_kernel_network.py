"""Kernel files: one operator, its reference and its templates, from the user's own Python."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tvmtune import networks
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.inputs import random_inputs
from tvmtune.types import Network, TensorSpec

RGB2YUV = Path(__file__).parents[2] / "examples" / "rgb2yuv.py"

SCALE = """\
import numpy as np
from tvm import te
import tvmtune

@tvmtune.operator
def scale(n: int = 64, by: float = 2.0, twice: bool = False, name: str = "y"):
    x = te.placeholder((n,), name="x")
    factor = by * (2 if twice else 1)
    return [x, te.compute((n,), lambda i: x[i] * factor, name=name)]

@scale.reference
def in_numpy(x, by, twice):
    return x * np.float32(by) * (2 if twice else 1)
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "my_op.py") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def load(path: str, **arguments: object) -> Network:
    return networks.load(path, arguments=arguments)


def test_the_arguments_of_the_example_set_its_shape():
    network = load(str(RGB2YUV), w=32, h=8)
    assert network.name == "rgb2yuv"
    assert network.inputs == (TensorSpec("rgb", (8, 32, 3), "float32"),)
    assert network.outputs == (TensorSpec("yuv", (8, 32, 3), "float32"),)


def test_arguments_default_to_the_functions_defaults():
    assert load(str(RGB2YUV)).inputs[0].shape == (1080, 1920, 3)


def test_the_files_reference_is_used(write):
    network = load(write(SCALE), by=3)
    x = random_inputs(network.inputs)["x"]
    np.testing.assert_allclose(network.reference({"x": x})[0], 3 * x, rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "factor"), [({"by": 4}, 4), ({"twice": "true"}, 4), ({"twice": 0}, 2)]
)
def test_arguments_take_the_types_of_their_defaults(write, given, factor):
    network = load(write(SCALE), **given)
    x = random_inputs(network.inputs)["x"]
    np.testing.assert_allclose(network.reference({"x": x})[0], factor * x, rtol=1e-6)


def test_arguments_change_the_structure_and_are_reloaded_from_the_source(write):
    path = write(SCALE)
    one, other = load(path), load(path, n=128)
    assert one.structure_hash != other.structure_hash
    assert load(path, by=5).structure_hash not in (one.structure_hash, other.structure_hash)
    again = networks.reload(other.source)
    assert (again.structure_hash, again.inputs) == (other.structure_hash, other.inputs)


def test_tvmscript_with_several_outputs_is_supported(write):
    network = load(
        write(
            """\
import tvmtune
from tvm.script import tirx as T

@tvmtune.operator
def sums():
    @T.prim_func(s_tir=True)
    def main(
        a: T.Buffer((8,), "float32"),
        b: T.Buffer((8,), "float32"),
        c: T.Buffer((8,), "float32"),
        d: T.Buffer((8,), "int32"),
    ):
        for i in range(8):
            with T.sblock("c"):
                v = T.axis.spatial(8, i)
                c[v] = a[v] + b[v]
        for i in range(8):
            with T.sblock("d"):
                v = T.axis.spatial(8, i)
                d[v] = T.Cast("int32", a[v])
    return main

@sums.reference
def in_numpy(a, b):
    return a + b, a.astype("int32")
"""
        )
    )
    assert [s.name for s in network.inputs] == ["a", "b"]
    assert [str(s) for s in network.outputs] == ["c: 8 float32", "d: 8 int32"]


def test_a_file_may_import_its_siblings_and_leaves_no_bytecode(write, tmp_path):
    write("FACTOR = 2.0\n", "factors_beside.py")
    path = write("from factors_beside import FACTOR\n" + SCALE)
    before = list(sys.path)
    try:
        load(path)
    finally:
        sys.modules.pop("factors_beside", None)
    assert sys.path == before
    assert [p.name for p in tmp_path.rglob("my_op*.pyc")] == []


def broken(old: str, new: str) -> str:
    assert old in SCALE
    return SCALE.replace(old, new)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("import no_such_module_at_all\n" + SCALE, r"my_op.py, line 1: ModuleNotFoundError"),
        ("x = (\n", r"my_op.py, line 1: SyntaxError"),
        ("print('hello')\n", "declares no operator"),
        (SCALE + SCALE.replace("scale", "other"), "several operators .'scale', 'other'"),
        (broken("@scale.reference\n", ""), "has no reference"),
        (broken("return [x, te", "return 3 # ["), "fails at .*line 5|neither TE tensors"),
        (broken("factor = by", "factor = 1 / 0 * by"), "my_op.py, line 8: ZeroDivisionError"),
        (broken("te.placeholder((n,)", 'te.placeholder((te.var("m"),)'), "symbolic extent 'm'"),
        (broken("return [x, te", "return [te").replace("name=name)]", "name=name), x]"), "inputs"),
        (broken("@scale.reference", '@scale.template("cpu")\n@scale.template("cpu")'), "two templ"),
        ("import sys\nsys.exit(3)\n" + SCALE, "line 2: SystemExit: 3"),
    ],
)
def test_errors_name_the_cause_and_the_line(write, text, cause):
    with pytest.raises(TvmtuneError, match=cause) as raised:
        load(write(text))
    assert "\n" not in str(raised.value)


def test_a_script_without_the_decorator_is_not_run(write, tmp_path):
    mark = tmp_path / "mark"
    with pytest.raises(TvmtuneError, match="declares no operator, so it was not run: decorate"):
        load(write(f"open({str(mark)!r}, 'w')\n"))
    assert not mark.exists()
    imported = "from tvmtune import operator as op\n" + SCALE.replace("@tvmtune.operator", "@op")
    assert load(write(imported)).operator == "scale"


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ({"m": 3}, "no such argument. Known: by, n, name, twice"),
        ({"n": "many"}, "^n=many: must be of type int"),
        ({"n": 1.5}, "^n=1.5"),
        ({"twice": "perhaps"}, "^twice=perhaps: must be of type bool"),
    ],
)
def test_a_wrong_argument_is_refused(write, given, cause):
    with pytest.raises(UsageError, match=cause):
        load(write(SCALE), **given)


def test_an_argument_without_default_is_required(write):
    with pytest.raises(UsageError, match="^n=... is missing"):
        load(write(broken("n: int = 64", "n")))


def test_batch_and_shapes_are_refused(write):
    path = write(SCALE)
    with pytest.raises(UsageError, match="give --arg NAME=VALUE instead of --batch"):
        networks.load(path, batch=2)
    with pytest.raises(UsageError, match="instead of --shape"):
        networks.load(path, shapes={"x": (3,)})
    with pytest.raises(UsageError, match="only kernel files"):
        networks.load("mobilenet", arguments={"w": 3})


def test_a_reference_with_other_shapes_or_an_error_is_named(write):
    network = load(write(broken("return x * np", "return x[1:] * np")))
    x = random_inputs(network.inputs)
    with pytest.raises(TvmtuneError, match=r"gives the shapes \(63,\), but the operator .*\(64,\)"):
        network.reference(x)
    network = load(write(broken("return x * np", "return x.nonsense * np")))
    with pytest.raises(TvmtuneError, match="reference of 'scale' fails at .*line 13: Attribute"):
        network.reference(x)


def test_integers_are_drawn_from_a_wide_range(write):
    text = SCALE.replace(
        'te.placeholder((n,), name="x")', 'te.placeholder((n,), "int32", name="x")'
    )
    text = text.replace("x[i] * factor", "x[i] * x[i] * x[i]").replace(
        "return x * np.float32(by) * (2 if twice else 1)", "return x"
    )
    network = load(write(text))
    x = random_inputs(network.inputs, 0, network.ranges)["x"]
    assert x.min() < -100
    assert x.max() > 100
    with pytest.raises(TvmtuneError, match="and its reference disagree"):
        compile_it(network)


def test_an_author_can_set_the_range_of_indices(write):
    text = """\
import tvmtune
from tvm import te

@tvmtune.operator
def look_up(n: int = 8):
    table = te.placeholder((5,), name="table")
    ids = te.placeholder((n,), "int64", name="ids")
    return [table, ids, te.compute((n,), lambda i: table[ids[i]], name="y")]

@look_up.reference
def in_numpy(table, ids):
    return table[ids]

look_up.integers(ids=(0, 4))
"""
    network = load(write(text))
    assert network.ranges == {"ids": (0, 4)}
    assert set(random_inputs(network.inputs, 1, network.ranges)["ids"]) > {2}
    compile_it(network)
    with pytest.raises(TvmtuneError, match="has no input 'idx'"):
        load(write(text.replace("ids=(0, 4)", "idx=(0, 4)")))
    with pytest.raises(TvmtuneError, match="is an empty range"):
        load(write(text.replace("ids=(0, 4)", "ids=(4, 0)")))


def test_a_float16_operator_has_the_tolerance_of_one_kernel(write):
    text = SCALE.replace(
        'te.placeholder((n,), name="x")', 'te.placeholder((n,), "float16", name="x")'
    )
    text = text.replace("x[i] * factor", "x[i]").replace(
        "return x * np.float32(by) * (2 if twice else 1)", "return x * np.float16(0.99)"
    )
    with pytest.raises(TvmtuneError, match="at most 2e-03 allowed"):
        compile_it(load(write(text)))


def test_a_template_for_an_unknown_target_is_refused(write):
    text = SCALE + '\n@scale.template("cpuu")\ndef t(sch): pass\n'
    with pytest.raises(
        TvmtuneError, match="template for 'cpuu', which is not a target. Did you mean cpu"
    ):
        load(write(text))


def test_a_target_without_a_template_causes_a_warning(write):
    network = load(write(SCALE + '\n@scale.template("gpu")\ndef t(sch): pass\n'))
    with pytest.warns(UserWarning, match="has no template for llvm, only for gpu"):
        assert network.template(["llvm", "cpu"]) is None


def test_a_reference_of_another_kind_is_refused(write):
    network = load(write(SCALE.replace("return x * np.float32(by)", "return x.astype(int)")))
    with pytest.raises(TvmtuneError, match="gives 'y' as int64, but the operator gives float32"):
        network.reference(random_inputs(network.inputs))


def test_an_extent_of_zero_is_a_wrong_argument(write):
    with pytest.raises(UsageError, match="every extent must be at least 1; see --arg"):
        load(write(SCALE), n=0)


def compile_it(network):
    import tempfile

    from tvmtune import api

    with tempfile.TemporaryDirectory() as folder:
        api.compile(api.plan(network), Path(folder) / "lib.so")
