"""Schedule rules use dot-product instructions where the weights are packed for them."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.s_tir.meta_schedule.postproc import RewriteTensorize

from tvmtune import dot_instructions
from tvmtune.machine import cpu_features
from tvmtune.operators import cpu_pipeline
from tvmtune.passes import quantized_kernels
from tvmtune.spaces import traces
from tvmtune.spaces.rule_space import RuleSpace, replay, tune_context

M, N, K = 6, 32, 64
PROCESSORS = {"haswell": 8, "skylake-avx512": 16, "cascadelake": 16, "alderlake": 8}
"""With the lanes of their instructions."""


def product(order: str, lanes: int, terms: int, data: str, weights: str) -> tvm.IRModule:
    """Sums of products in int32 with weights (N, K), (K, N), or packed in blocks of ``lanes``."""
    x = te.placeholder((M, K), data, name="x")
    outer, inner = (te.reduce_axis((0, n), name) for n, name in ((K // terms, "f"), (terms, "s")))
    whole = te.reduce_axis((0, K), "k")
    shape = {"nk": (N, K), "kn": (K, N), "packed": (N // lanes, K // terms, lanes, terms)}[order]
    w = te.placeholder(shape, weights, name="w")

    def element(i, j):
        if order == "packed":
            one, other = x[i, outer * terms + inner], w[j // lanes, outer, j % lanes, inner]
            return te.sum(one.astype("int32") * other.astype("int32"), axis=[outer, inner])
        other = w[j, whole] if order == "nk" else w[whole, j]
        return te.sum(x[i, whole].astype("int32") * other.astype("int32"), axis=whole)

    func = te.create_prim_func([x, w, te.compute((M, N), element, name="sums")])
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


@pytest.mark.parametrize("order", ["nk", "kn", "packed"])
@pytest.mark.parametrize("processor", PROCESSORS)
def test_products_are_right_in_every_order_of_the_weights(processor, order):
    """Only packed weights are what the instruction reads."""
    target = {"kind": "llvm", "mcpu": processor, "num-cores": 1}
    instruction = dot_instructions.for_bytes(target)
    lanes, terms = instruction.lanes, instruction.terms
    assert lanes == PROCESSORS[processor]
    mod = product(order, lanes, terms, instruction.data, instruction.weights)
    sch = RuleSpace(target).default(mod, tvm.target.Target(target))
    assert (instruction.function in str(sch.mod)) == (order == "packed")
    library = tvm.compile(
        sch.mod, tvm.target.Target(target), tir_pipeline=cpu_pipeline.pipeline_for(target)
    )
    if not cpu_features.can_run(target, ""):
        return
    rng = np.random.default_rng(0)
    x, w = (
        rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
        for dtype, shape in ((instruction.data, (M, K)), (instruction.weights, (N, K)))
    )
    blocks = w.reshape(N // lanes, lanes, K // terms, terms).transpose(0, 2, 1, 3)
    stored = {"nk": w, "kn": w.T, "packed": blocks}[order]
    sums = tvm.runtime.tensor(np.zeros((M, N), "int32"))
    arrays = [tvm.runtime.tensor(np.ascontiguousarray(each)) for each in (x, stored)]
    library["main"](*arrays, sums)
    wanted = x.astype("int64") @ w.T.astype("int64")
    # int16 products leave int32, and both wrap.
    np.testing.assert_array_equal(sums.numpy(), wanted.astype("int32"))


@pytest.mark.parametrize(("location", "usable"), [(-2, False), (-1, True)], ids=["inline", "apart"])
def test_conversions_within_the_products_are_rejected_without_a_warning(location, usable, capfd):
    """TVM prints one for each candidate whose products it cannot tensorize."""
    target = {"kind": "llvm", "mcpu": "haswell", "num-cores": 1}
    instruction = dot_instructions.for_bytes(target)
    x = te.placeholder((M, K), "uint8", name="x")
    w = te.placeholder((N // 8, 1, 1, K // 2, 8, 2), "int16", name="w")
    sums = quantized_kernels.product(x, w, (M, N), instruction)
    func = te.create_prim_func([x, w, sums]).with_attr("global_symbol", "main")
    mod = tvm.IRModule({"main": func})
    context = tune_context(mod, tvm.target.Target(target), RuleSpace(target).generator(), seed=1)
    postprocs = list(context.space_generator.postprocs)
    replayed = []
    for design in context.generate_design_space():
        if "auto_tensorize" in str(design.trace):
            trace = design.trace
            (place,) = (i for i in trace.insts if i.kind.name == "SampleComputeLocation")
            trace = trace.with_decision(place, location, remove_postproc=True)
            trace = tiled(trace, [M, N // 8])
            replayed.append(replay(mod, trace, postprocs) is not None)
    assert replayed
    assert set(replayed) == {usable}
    assert "Tensorize failed" not in capfd.readouterr().err


@pytest.mark.parametrize("around", [1, 2])
def test_loops_directly_around_the_instruction_are_rejected(around):
    """TVM would turn them into a vector of the instruction's vectors, which does not compile."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": "cascadelake", "num-cores": 1})
    instruction = dot_instructions.for_bytes({"kind": "llvm", "mcpu": "cascadelake"})
    mod = product("packed", instruction.lanes, instruction.terms, "uint8", "int8")
    space = RuleSpace({"kind": "llvm", "mcpu": "cascadelake"})
    context = tune_context(mod, target, space.generator(), seed=1)
    postprocs = list(context.space_generator.postprocs)
    design = next(d for d in context.generate_design_space() if "auto_tensorize" in str(d.trace))
    trace = tiled(design.trace, [M, N // instruction.lanes], around)
    assert (replay(mod, trace, postprocs) is not None) == (around == 1)
    (own,) = (i for i, p in enumerate(postprocs) if isinstance(p, RewriteTensorize))
    sch = replay(mod, trace, postprocs[: own - 1] + postprocs[own:])
    if around == 1:
        tvm.compile(sch.mod, target)
    else:
        with pytest.raises(Exception, match="IsScalar"):
            tvm.compile(sch.mod, target)


def tiled(trace, extents, around=1):
    """The trace with one tile of all outputs, whose innermost loop has ``around`` vectors."""
    tiles = [i for i in trace.insts if i.kind.name == "SamplePerfectTile" and len(i.outputs) == 4]
    for tile, extent, inner in zip(tiles, extents, (1, around), strict=False):
        trace = trace.with_decision(tile, [1, 1, extent // inner, inner], remove_postproc=True)
    return trace


@pytest.mark.slow
def test_a_trace_with_an_instruction_applies_in_a_process_that_has_made_no_space(tmp_path):
    target = {"kind": "llvm", "mcpu": "cascadelake", "num-cores": 1}
    instruction = dot_instructions.for_bytes(target)
    mod = product("packed", instruction.lanes, instruction.terms, "uint8", "int8")
    sch = RuleSpace(target).default(mod, tvm.target.Target(target))
    stored = {"module": traces.store_module(mod), "trace": traces.to_json(sch)}
    (tmp_path / "trace.json").write_text(json.dumps(stored))
    code = (
        "import json; from tvmtune.spaces import traces; "
        "stored = json.load(open('trace.json')); "
        "mod = traces.load_module(stored['module']); "
        "print(traces.apply(mod, stored['trace']).mod)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert instruction.function in done.stdout
