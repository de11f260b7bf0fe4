"""A large library is checked with its weights in memory once, and is found right or wrong as others."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploy.building import spoiled
from models import OPSETS, tiny_cnn
from tvmtune import api
from tvmtune.deploy import image, light, metadata, program
from tvmtune.deploy.compile import compile_library
from tvmtune.deploy.library import Library
from tvmtune.errors import TvmtuneError

NETWORK = tiny_cnn(classes=2000)
"""128 kB of its weights are in the classifier."""


def plan_of(model: onnx.ModelProto, folder) -> api.Plan:
    onnx.save(model, folder / "net.onnx")
    return api.plan(api.load(str(folder / "net.onnx")))


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return plan_of(NETWORK, tmp_path_factory.mktemp("light"))


@pytest.fixture(scope="module")
def made(plan, tmp_path_factory):
    return api.compile(plan, tmp_path_factory.mktemp("made") / "lib.so").path


@pytest.fixture
def opened(monkeypatch):
    """Everything is large; whether each library that is opened was opened light."""
    monkeypatch.setattr(image, "KEPT", 1 << 16)
    found = []
    usual = Library.open

    def spy(path, *args, **options):
        found.append(options.get("light", False))
        return usual(path, *args, **options)

    monkeypatch.setattr(Library, "open", spy)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("window", [1 << 20, 100])
def test_it_has_the_code_of_the_whole_library_and_none_of_its_weights(
    made, tmp_path, monkeypatch, window
):
    monkeypatch.setattr(light, "_WINDOW", window)  # tensors that begin in one and end in the next
    found = light.write(made, tmp_path / "light.so")
    assert [weight.size for weight in found] == [16 * 2000 * 4]
    start, size = program.find(made)
    whole, copy = made.read_bytes(), (tmp_path / "light.so").read_bytes()
    assert copy[:start] == whole[:start]
    assert copy[start + size :] == whole[start + size :]
    (weight,) = found
    assert whole[weight.start : weight.start + weight.size] not in copy
    assert program.stand_in(0) in copy


@pytest.mark.slow
def test_it_computes_bit_by_bit_what_the_whole_library_computes(made):
    whole, copy = Library.open(made), Library.open(made, light=True)
    for seed in (3, 4):
        inputs = whole.random_inputs(seed)
        (want,), (got,) = whole.run(inputs), copy.run(inputs)
        np.testing.assert_array_equal(got, want)


@pytest.mark.slow
def test_a_right_library_is_found_right_and_nothing_is_left_beside_it(plan, tmp_path, opened):
    compiled = api.compile(plan, tmp_path / "lib.so")
    assert opened == [True]
    assert Library.open(compiled.path).run(Library.open(compiled.path).random_inputs())
    assert [path.name for path in tmp_path.iterdir()] == ["lib.so"]


@pytest.mark.slow
def test_a_wrong_kernel_is_caught_before_the_library_takes_its_place(plan, tmp_path, opened):
    import tvm

    def lower(*args):
        """The network with the minimum where it should have the maximum in its pooling."""
        lowered = plan.backend.lower(*args)
        changed = 0
        for variable, function in lowered.functions_items():
            source = function.script()
            if "max_pool" in variable.name_hint and "T.max(" in source:
                wrong = tvm.script.from_source(source.replace("T.max(", "T.min("))
                lowered.update_func(variable, wrong)
                changed += 1
        assert changed == 1
        return lowered

    path = tmp_path / "lib.so"
    path.write_text("what was there before")
    with pytest.raises(TvmtuneError) as raised:
        api.compile(replace(plan, backend=Changed(plan.backend, lower=lower)), path)
    assert str(raised.value).startswith(f"the output of {path} is wrong")
    assert opened == [True]
    assert path.read_text() == "what was there before"
    assert [file.name for file in tmp_path.iterdir()] == ["lib.so"]


@pytest.mark.slow
def test_a_wrong_weight_is_caught_before_the_library_takes_its_place(made, tmp_path, opened):
    other = plan_of(spoiled(NETWORK), tmp_path)
    with pytest.raises(TvmtuneError, match="is wrong: output 'logits' is off by"):
        compile_library(
            other.backend,
            other.prepared,
            other.tasks,
            {},
            other.device,
            tmp_path / "lib.so",
            check=metadata.read(made)["check"],
            verify_it=True,
        )
    assert opened == [True]
    assert not (tmp_path / "lib.so").exists()


def test_where_a_weight_is_an_output_the_whole_library_is_loaded(tmp_path, opened):
    table = np.random.RandomState(0).standard_normal((128, 256)).astype("float32")
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "table"], ["y"]),
            helper.make_node("Identity", ["table"], ["z"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 128])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 256]),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, [128, 256]),
        ],
        [numpy_helper.from_array(table, "table")],
    )
    path = tmp_path / "lib.so"
    api.compile(plan_of(helper.make_model(graph, opset_imports=OPSETS), tmp_path), path)
    assert opened == [True, False]
    library = Library.open(path)
    np.testing.assert_array_equal(library.run(library.random_inputs())[1], table)


def test_a_call_whose_result_would_be_lost_ends_the_run():
    import tvm
    from tvm.runtime.vm import VMInstrumentReturnKind as Answer

    weight = tvm.runtime.tensor(np.zeros((2, 3), "float32"))
    stands_for_it = tvm.runtime.tensor(program.placeholder(0))
    supplier = light._Supplier([weight])
    reshape = tvm.get_global_func("vm.builtin.reshape")
    shape = tvm.runtime.ShapeTuple([3, 2])
    assert supplier(reshape, "vm.builtin.reshape", True, None, weight, shape) == Answer.NO_OP
    assert not supplier.failed
    answer = supplier(reshape, "vm.builtin.reshape", True, None, stands_for_it, shape)
    assert answer == Answer.SKIP_RUN
    assert supplier.failed == "vm.builtin.reshape"
    # with what is missing from now on, nothing may be called any more
    assert supplier(reshape, "vm.builtin.reshape", True, None, weight, shape) == Answer.SKIP_RUN


@pytest.mark.slow
def test_its_weights_are_let_go_with_it(made):
    library = Library.open(made, light=True)
    library.run(library.random_inputs())
    supplier = weakref.ref(library.session._supplier)
    del library
    gc.collect()
    assert supplier() is None


@pytest.mark.slow
def test_a_program_of_another_form_is_refused(made, tmp_path, monkeypatch):
    monkeypatch.setattr(program, "KIND", b"relax.AnotherExecutable")
    with pytest.raises(TvmtuneError, match="packs its program in another way than tvmtune expects"):
        light.write(made, tmp_path / "light.so")


@pytest.mark.parametrize("content", [b"", b"\x7fELF\1\1" + bytes(80), b"\x7fELF\2\1" + bytes(80)])
def test_a_file_without_a_program_is_refused(tmp_path, content):
    (tmp_path / "lib.so").write_bytes(content)
    with pytest.raises(TvmtuneError, match="exports its program in another way"):
        program.find(tmp_path / "lib.so")


@pytest.mark.slow
def test_it_needs_the_memory_of_its_weights_once(tmp_path):
    weight = np.random.RandomState(0).standard_normal((4096, 4096)).astype("float32")  # 67 MB
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4096])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4096])],
        [numpy_helper.from_array(weight, "w")],
    )
    path = tmp_path / "lib.so"
    api.compile(plan_of(helper.make_model(graph, opset_imports=OPSETS), tmp_path), path)

    def grown(light: bool) -> float:
        """Peak of resident memory over that before, in multiples of the weights."""
        code = (
            "import json, sys, tvm, tvm.relax\n"
            "from pathlib import Path\n"
            "from tvmtune.deploy.library import Library\n"
            "def status(key):\n"
            "    lines = Path('/proc/self/status').read_text().splitlines()\n"
            "    return next(int(l.split()[1]) for l in lines if l.startswith(key)) * 1024\n"
            "Path('/proc/self/clear_refs').write_text('5')\n"
            "before = status('VmRSS')\n"
            f"library = Library.open(sys.argv[1], light={light})\n"
            "library.run(library.random_inputs())\n"
            "print(json.dumps(status('VmHWM') - before))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout) / weight.nbytes

    assert grown(light=True) < 1.5 < 3.0 < grown(light=False)


class Changed:
    """A backend with hooks of the test's own."""

    def __init__(self, backend, **hooks):
        self._backend = backend
        self.__dict__.update(hooks)

    def __getattr__(self, name):
        return getattr(self._backend, name)
