"""The weights of a library lie in huge pages after its first run, whoever loads it.

Each test loads libraries in a program of its own that knows TVM alone.
"""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from libraries import make_library
from tvmtune.library import huge_pages
from tvmtune.runtime.library import Library

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
COLLAPSE = 25
WIDTH, LAYERS = 1024, 3
"""Each layer has 4 MB of weights."""

PROGRAM = """
import json, re, sys
from pathlib import Path
import numpy as np
import tvm
from tvm.runtime.vm import VirtualMachine

def huge(address):
    "Whether there are huge pages in the mapping that holds an address."
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address < int(found[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1]) > 0
    raise LookupError(address)

def load():
    return VirtualMachine(tvm.runtime.load_module(sys.argv[1]), tvm.cpu())

def weights(vm, x):
    "The addresses of what kernels read but none has written."
    read, written = set(), {np.from_dlpack(x).ctypes.data}
    def note(function, name, before, result, *args):
        tensors = [a for a in args if isinstance(a, tvm.runtime.Tensor)]
        if before and tensors and not name.startswith(("vm.", "tvmtune")):
            *inputs, output = (np.from_dlpack(t) for t in tensors)
            read.update(i.ctypes.data for i in inputs if i.nbytes >= 1 << 22)
            written.add(output.ctypes.data)
        return 0
    vm.set_instrument(note)
    vm["main"](x)
    vm.set_instrument(None)
    return sorted(read - written)

def run(vm):
    x = tvm.runtime.tensor(np.ones((1, WIDTH), "float32"))
    y = vm["main"](x).numpy()
    return weights(vm, x), y

found = []
programs = []
for _ in range(2):
    vm = load()
    programs.append(vm)
    addresses, y = run(vm)
    found.append([len(addresses), [huge(a) for a in addresses], float(y.sum())])
print(json.dumps(found))
""".replace("WIDTH", str(WIDTH))


def has_huge_pages() -> bool:
    """Whether the kernel moves memory into huge pages on request."""
    if not SETTING.exists():
        return False
    size = 1 << 22
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.write(bytes([1]) * size)
        try:
            memory.madvise(COLLAPSE)
        except OSError:
            return False
    return True


def make(folder: Path, width: int) -> Path:
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((width, width)).astype("float32") / 32, f"w{n}")
        for n in range(LAYERS)
    ]
    nodes = [helper.make_node("MatMul", [f"x{n}", f"w{n}"], [f"x{n + 1}"]) for n in range(LAYERS)]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, width])
        for name in ("x0", f"x{LAYERS}")
    )
    graph = helper.make_graph(nodes, "products", [x], [y], weights)
    return make_library(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return make(tmp_path_factory.mktemp("large"), WIDTH)


def load_twice(library: Path, *before: str) -> list[tuple[int, list[bool], float]]:
    done = subprocess.run(
        [*before, sys.executable, "-c", PROGRAM, str(library)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def expected(library: Path) -> float:
    model = onnx.load(library.with_name("model.onnx"))
    value = np.ones((1, WIDTH), "float32")
    for weight in model.graph.initializer:
        value = value @ numpy_helper.to_array(weight)
    return float(value.sum())


@pytest.mark.skipif(not has_huge_pages(), reason="the kernel gives no huge pages on request")
def test_weights_move_into_huge_pages_each_time_a_library_is_loaded(library):
    for count, huge, total in load_twice(library):
        assert count == LAYERS
        assert all(huge)
        assert total == pytest.approx(expected(library), rel=1e-3)


WITHOUT = """
import ctypes, os, sys
PR_SET_THP_DISABLE = 41
assert ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.skipif(not SETTING.exists(), reason="the kernel has no huge pages")
def test_a_library_runs_where_huge_pages_are_refused(library):
    for count, huge, total in load_twice(library, sys.executable, "-c", WITHOUT):
        assert count == LAYERS
        assert not any(huge)
        assert total == pytest.approx(expected(library), rel=1e-3)


def test_a_library_without_large_weights_asks_for_none(tmp_path):
    assert huge_pages.NAME.encode() not in make(tmp_path, 64).read_bytes()


def test_a_profile_lists_kernels_only(library):
    opened = Library.open(library)
    opened.set_inputs(opened.random_inputs())
    assert not [row.name for row in opened.profile(repeat=2) if huge_pages.NAME in row.name]


def test_a_check_in_low_memory_runs_the_library(library):
    whole, lean = (Library.open(library, low_memory=low) for low in (False, True))
    inputs = whole.random_inputs()
    assert np.array_equal(whole.run(inputs)[0], lean.run(inputs)[0])
