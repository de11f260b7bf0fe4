"""A large library is checked with one copy of its weights in memory, and with the same verdict."""

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

from libraries import spoiled
from models import OPSETS, tiny_cnn
from tvmtune import api
from tvmtune.compiling.compile import compile_library
from tvmtune.errors import TvmtuneError
from tvmtune.library import embedded_weights, metadata, vm_program
from tvmtune.runtime import low_memory
from tvmtune.runtime.library import Library

NETWORK = tiny_cnn(classes=2000)
"""128 kB of its weights are in the classifier."""


def plan_of(model: onnx.ModelProto, folder) -> api.Plan:
    onnx.save(model, folder / "net.onnx")
    return api.plan(api.load(str(folder / "net.onnx")))


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return plan_of(NETWORK, tmp_path_factory.mktemp("low_memory"))


@pytest.fixture(scope="module")
def library_path(plan, tmp_path_factory):
    return api.compile(plan, tmp_path_factory.mktemp("made") / "lib.so").path


@pytest.fixture
def opened(monkeypatch):
    """Counts every library as large; lists for each opened one whether it was in low memory."""
    monkeypatch.setattr(embedded_weights, "KEPT", 1 << 16)
    found = []
    usual = Library.open

    def spy(path, *args, **options):
        found.append(options.get("low_memory", False))
        return usual(path, *args, **options)

    monkeypatch.setattr(Library, "open", spy)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("window", [1 << 20, 100])
def test_a_skeleton_has_the_code_of_the_library_and_none_of_its_weights(
    library_path, tmp_path, monkeypatch, window
):
    monkeypatch.setattr(
        low_memory, "_WINDOW", window
    )  # tensors that begin in one and end in the next
    found = low_memory.write_skeleton(library_path, tmp_path / "skeleton.so")
    assert [weight.size for weight in found] == [16 * 2000 * 4]
    start, size = vm_program.find(library_path)
    whole, copy = library_path.read_bytes(), (tmp_path / "skeleton.so").read_bytes()
    assert copy[:start] == whole[:start]
    assert copy[start + size :] == whole[start + size :]
    (weight,) = found
    assert whole[weight.start : weight.start + weight.size] not in copy
    assert vm_program.serialized_placeholder(0) in copy


@pytest.mark.slow
def test_outputs_are_bit_for_bit_those_of_the_whole_library(library_path):
    whole, copy = Library.open(library_path), Library.open(library_path, low_memory=True)
    for seed in (3, 4):
        inputs = whole.random_inputs(seed)
        (want,), (got,) = whole.run(inputs), copy.run(inputs)
        np.testing.assert_array_equal(got, want)


@pytest.mark.slow
def test_a_correct_library_passes_and_no_files_remain(plan, tmp_path, opened):
    compiled = api.compile(plan, tmp_path / "lib.so")
    assert opened == [True]
    assert Library.open(compiled.path).run(Library.open(compiled.path).random_inputs())
    assert [path.name for path in tmp_path.iterdir()] == ["lib.so"]


@pytest.mark.slow
def test_a_wrong_kernel_is_detected_before_the_library_is_replaced(plan, tmp_path, opened):
    import tvm

    def lower(*args, **options):
        """The network with minimum instead of maximum pooling."""
        lowered = plan.backend.lower(*args, **options)
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
def test_a_wrong_weight_is_detected_before_the_library_is_replaced(library_path, tmp_path, opened):
    other = plan_of(spoiled(NETWORK), tmp_path)
    with pytest.raises(TvmtuneError, match="is wrong: output 'logits' is off by"):
        check = metadata.read(library_path)["check"]
        compile_library(other, {}, tmp_path / "lib.so", check=check, verify_output=True)
    assert opened == [True]
    assert not (tmp_path / "lib.so").exists()


def test_the_whole_library_is_loaded_if_an_output_is_a_weight(tmp_path, opened):
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


def test_a_call_that_returns_a_value_from_a_weight_fails_the_run():
    import tvm
    from tvm.runtime.vm import VMInstrumentReturnKind as Answer

    weight = tvm.runtime.tensor(np.zeros((2, 3), "float32"))
    placeholder = tvm.runtime.tensor(vm_program.placeholder(0))
    injection = low_memory._WeightInjection([weight])
    reshape = tvm.get_global_func("vm.builtin.reshape")
    shape = tvm.runtime.ShapeTuple([3, 2])
    assert injection(reshape, "vm.builtin.reshape", True, None, weight, shape) == Answer.NO_OP
    assert not injection.failed
    answer = injection(reshape, "vm.builtin.reshape", True, None, placeholder, shape)
    assert answer == Answer.SKIP_RUN
    assert injection.failed == "vm.builtin.reshape"
    # after a failure every call is skipped
    assert injection(reshape, "vm.builtin.reshape", True, None, weight, shape) == Answer.SKIP_RUN


@pytest.mark.slow
def test_weights_are_freed_with_the_library(library_path):
    library = Library.open(library_path, low_memory=True)
    library.run(library.random_inputs())
    injection = weakref.ref(library.session._injection)
    del library
    gc.collect()
    assert injection() is None


@pytest.mark.slow
def test_an_unknown_program_form_is_refused(library_path, tmp_path, monkeypatch):
    monkeypatch.setattr(vm_program, "KIND", b"relax.AnotherExecutable")
    with pytest.raises(TvmtuneError, match="packs its program differently than tvmtune expects"):
        low_memory.write_skeleton(library_path, tmp_path / "skeleton.so")


@pytest.mark.parametrize("content", [b"", b"\x7fELF\1\1" + bytes(80), b"\x7fELF\2\1" + bytes(80)])
def test_a_file_without_a_program_is_refused(tmp_path, content):
    (tmp_path / "lib.so").write_bytes(content)
    with pytest.raises(TvmtuneError, match="exports its program differently"):
        vm_program.find(tmp_path / "lib.so")


@pytest.mark.slow
def test_memory_grows_by_one_copy_of_the_weights(tmp_path):
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

    def grown(low_memory: bool) -> float:
        """Peak of resident memory over that before, in multiples of the weights."""
        code = (
            "import json, sys, tvm, tvm.relax\n"
            "from pathlib import Path\n"
            "from tvmtune.runtime.library import Library\n"
            "def status(key):\n"
            "    lines = Path('/proc/self/status').read_text().splitlines()\n"
            "    return next(int(l.split()[1]) for l in lines if l.startswith(key)) * 1024\n"
            "Path('/proc/self/clear_refs').write_text('5')\n"
            "before = status('VmRSS')\n"
            f"library = Library.open(sys.argv[1], low_memory={low_memory})\n"
            "library.run(library.random_inputs())\n"
            "print(json.dumps(status('VmHWM') - before))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout) / weight.nbytes

    assert grown(low_memory=True) < 1.5 < 3.0 < grown(low_memory=False)


class Changed:
    """A backend with replaced hooks."""

    def __init__(self, backend, **hooks):
        self._backend = backend
        self.__dict__.update(hooks)

    def __getattr__(self, name):
        return getattr(self._backend, name)
