"""Constant folding: kernels with only constant arguments run when the network is compiled."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax, te
from tvm.script import tirx as T

from tvmtune.passes import folding


def program(schedule=lambda kernel: kernel) -> tvm.IRModule:
    """``x * (2 * [1, 2, 3, 4])``, the product with 2 from a kernel that also returns a sum."""
    x = te.placeholder((4,), "float32", "x")
    doubled = te.compute((4,), lambda i: x[i] * 2.0, "doubled")
    added = te.compute((4,), lambda i: x[i] + 1.0, "added")
    data = relax.Var("data", relax.TensorType((4,), "float32"))
    builder = relax.BlockBuilder()
    kernel = schedule(te.create_prim_func([x, doubled, added]))
    variable = builder.add_func(kernel.with_attr("global_symbol", "pack"), "pack")
    kinds = [relax.TensorType((4,), "float32")] * 2
    with builder.function("main", [data]):
        with builder.dataflow():
            weight = relax.const(np.array([1, 2, 3, 4], np.float32))
            both = builder.emit(relax.call_tir(variable, [weight], kinds))
            result = builder.emit_output(relax.op.multiply(data, relax.TupleGetItem(both, 0)))
        builder.emit_func_output(result)
    return builder.finalize()


def calls(mod: tvm.IRModule) -> int:
    return mod["main"].script().count("call_tir")


def test_calls_are_replaced_by_their_results():
    folded = folding.fold(program())
    assert calls(folded) == 0
    executable = tvm.compile(relax.transform.LegalizeOps()(folded), target="llvm")
    vm = relax.VirtualMachine(executable, tvm.cpu())
    got = vm["main"](tvm.runtime.tensor(np.full(4, 10, np.float32)))
    assert np.array_equal(got.numpy(), [20, 40, 60, 80])


def test_what_a_kernel_does_not_write_is_zero(monkeypatch):
    """As in weights that are packed for whole vectors: libraries would differ from run to run."""
    original = tvm.runtime.empty

    def used_before(*given, **options):
        tensor = original(*given, **options)
        return tensor.copyfrom(np.full(tensor.shape, 7.0, "float32"))

    @T.prim_func(s_tir=True)
    def half(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        for i in range(2):
            with T.sblock("half"):
                vi = T.axis.spatial(2, i)
                y[vi] = x[vi] + T.float32(1)

    monkeypatch.setattr(tvm.runtime, "empty", used_before)
    kind = relax.TensorType((4,), "float32")
    builder = relax.BlockBuilder()
    variable = builder.add_func(half.with_attr("global_symbol", "pack"), "pack")
    with builder.function("main", [relax.Var("data", kind)]):
        with builder.dataflow():
            weight = relax.const(np.ones(4, np.float32))
            output = builder.emit_output(relax.call_tir(variable, [weight], kind))
        builder.emit_func_output(output)
    folded = folding.fold(builder.finalize())
    (value,) = (binding.value for binding in folded["main"].body.blocks[0].bindings)
    assert value.value.numpy().tolist() == [2, 2, 0, 0]


def test_calls_with_the_same_arguments_share_their_result():
    x = te.placeholder((4,), "float32", "x")
    doubled = te.compute((4,), lambda i: x[i] * 2.0, "doubled")
    kernel = te.create_prim_func([x, doubled])
    data = relax.Var("data", relax.TensorType((4,), "float32"))
    builder = relax.BlockBuilder()
    variable = builder.add_func(kernel.with_attr("global_symbol", "pack"), "pack")
    kind = relax.TensorType((4,), "float32")
    with builder.function("main", [data]):
        with builder.dataflow():
            result, weight = data, relax.const(np.ones(4, np.float32))
            for value in (weight, weight, relax.const(np.zeros(4, np.float32))):
                packed = builder.emit(relax.call_tir(variable, [value], kind))
                result = builder.emit(relax.op.multiply(result, packed))
            output = builder.emit_output(result)
        builder.emit_func_output(output)
    bindings = folding.fold(builder.finalize())["main"].body.blocks[0].bindings
    first, second, other = (b.value for b in bindings if isinstance(b.value, tvm.ir.GenericConst))
    assert first.value.data_ptr() == second.value.data_ptr() != other.value.data_ptr()
    assert not other.value.numpy().any()


def test_a_kernel_for_another_device_is_kept():
    def on_gpu(kernel):
        sch = tvm.s_tir.Schedule(kernel)
        for name in ("doubled", "added"):
            (loop,) = sch.get_loops(sch.get_sblock(name))
            sch.bind(loop, "threadIdx.x")
        return sch.mod["main"]

    assert calls(folding.fold(program(on_gpu))) == 1


@pytest.mark.slow
def test_results_are_not_kept():
    """TVM keeps the mutator that makes them."""

    def folded() -> None:
        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((4,), "float32"))
        with builder.function("main", [x]):
            with builder.dataflow():
                weight = relax.const(np.ones(5_000_000, "float32"))
                doubled = builder.emit_te(lambda a: te.compute(a.shape, lambda i: a[i] * 2), weight)
                result = builder.emit_te(
                    lambda a, b: te.compute(b.shape, lambda i: a[i] + b[i]), doubled, x
                )
                output = builder.emit_output(result)
            builder.emit_func_output(output)
        folding.fold(builder.get())
        gc.collect()  # whatever is garbage, at a time of its own choosing, is not kept

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    for _ in range(3):
        folded()
    before = resident()
    for _ in range(8):
        folded()
    assert resident() - before < 80_000_000  # the results have 20 MB each
