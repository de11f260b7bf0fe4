"""The weights of a library lie in huge pages after its first run, whoever loads it.

Each test loads libraries in a program of its own that knows TVM alone.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from libraries import host_device, lower, make_library
from tvmtune import networks
from tvmtune.library import huge_pages
from tvmtune.library.export import export_lib
from tvmtune.machine import linkers
from tvmtune.runtime import low_memory
from tvmtune.runtime.library import Library

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
COLLAPSE = 25
WIDTH, LAYERS = 1024, 3
"""Each layer has 4 MB of weights."""

HUGE = 1 << 21

PROGRAM = """
import gc, json, re, sys
from pathlib import Path
import numpy as np
import tvm
from tvm.runtime.vm import VirtualMachine

def huge():
    "Bytes of this process in huge pages."
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(re.search("AnonHugePages: *([0-9]+)", text)[1]) << 10

def run():
    "How much the first and the second run move, and the sum of the output."
    vm = VirtualMachine(tvm.runtime.load_module(sys.argv[1]), tvm.cpu())
    x = tvm.runtime.tensor(np.ones((1, WIDTH), "float32"))
    sizes = [huge()]
    for _ in range(2):
        y = vm["main"](x)
        sizes.append(huge())
    return vm, [sizes[1] - sizes[0], sizes[2] - sizes[1], float(y.numpy().sum())]

kept, first = run()
_, second = run()
del kept, _
gc.collect()
_, third = run()
print(json.dumps([first, second, third]))
""".replace("WIDTH", str(WIDTH))


def has_huge_pages() -> bool:
    """Whether the system moves memory into huge pages on request, and only then."""
    if not SETTING.exists() or "[always]" in SETTING.read_text():
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


def load_three_times(library: Path, *before: str, **variables: str) -> list[list[float]]:
    """For each load: bytes that the first and the second run move, and the sum of the output. The third
    comes after the others were freed."""
    done = subprocess.run(
        [*before, sys.executable, "-c", PROGRAM, str(library)],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def expected(library: Path) -> float:
    model = onnx.load(library.with_name("model.onnx"))
    value = np.ones((1, WIDTH), "float32")
    for weight in model.graph.initializer:
        value = value @ numpy_helper.to_array(weight)
    return float(value.sum())


needs_huge_pages = pytest.mark.skipif(
    not has_huge_pages(), reason="the system gives no huge pages on request, or gives them always"
)


@pytest.mark.slow
@needs_huge_pages
def test_the_first_run_of_each_load_moves_the_weights(library):
    weights = LAYERS * 4 * WIDTH**2
    for first, second, total in load_three_times(library):
        assert weights - 2 * HUGE <= first
        assert second == 0
        assert total == pytest.approx(expected(library), rel=1e-3)


@pytest.mark.slow
@needs_huge_pages
def test_weights_of_a_linked_static_library_move_too(library, tmp_path):
    network = networks.load(str(library.with_name("model.onnx")))
    device = host_device()
    export_lib(lower(network, device), device, tmp_path / "objects.tar")
    with tarfile.open(tmp_path / "objects.tar") as archive:
        for member in archive:
            (tmp_path / member.name).write_bytes(archive.extractfile(member).read())
    linked, objects = tmp_path / "linked.so", sorted(tmp_path.glob("*.o"))
    subprocess.run([*linkers.find_linker(), "-shared", "-o", linked, *objects], check=True)
    (first, second, total), *_ = load_three_times(linked)
    assert first > 0 == second
    assert total == pytest.approx(expected(library), rel=1e-3)


WITHOUT = """
import ctypes, os, sys
PR_SET_THP_DISABLE = 41
assert ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.slow
@needs_huge_pages
@pytest.mark.parametrize(
    ("before", "variables"),
    [([sys.executable, "-c", WITHOUT], {}), ([], {"TVMTUNE_HUGE_PAGES": "0"})],
    ids=["by-the-system", "by-the-environment"],
)
def test_weights_stay_where_huge_pages_are_turned_off(library, before, variables):
    for first, second, total in load_three_times(library, *before, **variables):
        assert first == second == 0
        assert total == pytest.approx(expected(library), rel=1e-3)


def test_a_library_without_large_weights_asks_for_none(tmp_path):
    assert huge_pages.NAME.encode() not in make(tmp_path, 64).read_bytes()


def test_a_profile_lists_kernels_only(library):
    opened = Library.open(library)
    opened.set_inputs(opened.random_inputs())
    assert not [row.name for row in opened.profile(repeat=2) if huge_pages.NAME in row.name]


def test_a_check_in_low_memory_moves_nothing(library, monkeypatch):
    """It reads the weights once."""
    injected: list[str] = []
    usual = low_memory._WeightInjection.__call__

    def note(self: Any, function: Any, name: str, before: bool, *rest: Any) -> int:
        done = usual(self, function, name, before, *rest)
        if done == self._skip:
            injected.append(name)
        return done

    monkeypatch.setattr(low_memory._WeightInjection, "__call__", note)
    whole, lean = (Library.open(library, low_memory=low) for low in (False, True))
    inputs = whole.random_inputs()
    assert np.array_equal(whole.run(inputs)[0], lean.run(inputs)[0])
    assert injected
    assert huge_pages.NAME not in injected
