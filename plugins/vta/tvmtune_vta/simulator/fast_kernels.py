"""The compiled interpreter of :mod:`tvmtune_vta.simulator.fast`: one TensorIR function over a table
of prepared instructions, compiled by TVM's LLVM for this CPU.

On-chip inputs are kept as float32, weights as int8 transposed to (in, out). A GEMM step multiplies
rows of weights, which stay in registers for all steps that share them, by one input each, and adds
them up. Sums of 16 products, each at most 2^14, are exact in float32, for which CPUs have the
fastest vector units: int32 was slower with AVX-512 and AVX2, and much slower with SSE2.
Accumulators are unsigned so that additions wrap.
"""

from __future__ import annotations

import enum
import functools
from typing import Any

from tvmtune.machine import processor


class Kind(enum.IntEnum):
    """The operation of a row."""

    RESET = 0
    GEMM = 1
    MIN = 2
    MAX = 3
    ADD = 4
    SHIFT_RIGHT = 5
    SHIFT_LEFT = 6
    INP = 7
    """Loads, by memory."""
    WGT = 8
    ACC = 9
    STORE = 10


COLUMNS = 13
"""Columns of the table: the kind, then:

GEMM: the groups of uops (begin, end), the outer and inner iterations with weights of their own, the
increments per iteration of dst, src and wgt (out, in each), the outer and inner iterations that
share a weight. RESET and ALU: the uops (begin, end), the outer and inner iterations, the increments
of dst and src, ``use_imm``, ``imm``.

Loads and stores: the operand, its first byte and the bytes between rows, the number of rows and the
values per row, the first value on chip and the values between rows there, and the start and length
of the range to zero first. On chip, weights are counted in tiles.
"""
LANES = 16
"""Maximum vector length, and the number of products whose sum is exact."""


@functools.cache
def compiled(batch: int, block: int) -> Any:
    """``run(table, groups, uops, addresses, inp, wgt, acc, status)`` for a GEMM core of ``batch`` x
    ``block`` by ``block`` x ``block``.

    ``table`` int64 (n, :data:`COLUMNS`); ``groups`` int32 (g, 3): a weight, and begin and end of
    the uops that use it; ``uops`` int32 (m, 2): dst and src; ``addresses`` int64 (operands,): the
    buffers' addresses. ``inp`` float32, ``wgt`` int8 and ``acc`` uint32 are the on-chip memories,
    flat. ``status`` int32 (2,) is set to the row + 1 and the amount of the first shift by an
    accumulator outside 0 to 15, if any. Nothing is checked.
    """
    import tvm

    cpu = processor.name()
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu})
    return tvm.compile(tvm.IRModule({"run": _interpreter(batch, block)}), target)["run"]


def _interpreter(batch: int, block: int) -> Any:
    from tvm.script import tirx as T

    vector, tile = batch * block, block * block
    lanes = min(LANES, block)
    pieces, parts = block // lanes, vector // lanes
    # Two partial sums of half the products each, to shorten the chain of dependent additions.
    half = lanes // 2
    rest = lanes - half
    reset, gemm, least, most, add, right, left, load_inp, load_wgt, load_acc = (
        int(kind) for kind in list(Kind)[:-1]
    )

    @T.prim_func(s_tir=True)
    def run(
        table_: T.handle,
        groups_: T.handle,
        uops_: T.handle,
        addresses_: T.handle,
        inp_: T.handle,
        wgt_: T.handle,
        acc_: T.handle,
        status_: T.handle,
    ) -> None:
        count = T.int32()
        group_count = T.int32()
        uop_count = T.int32()
        operand_count = T.int32()
        inp_depth = T.int32()
        wgt_depth = T.int32()
        acc_depth = T.int32()
        table = T.match_buffer(table_, (count, COLUMNS), "int64")
        groups = T.match_buffer(groups_, (group_count, 3), "int32")
        uops = T.match_buffer(uops_, (uop_count, 2), "int32")
        addresses = T.match_buffer(addresses_, (operand_count,), "int64")
        inp = T.match_buffer(inp_, (inp_depth,), "float32")
        wgt = T.match_buffer(wgt_, (wgt_depth,), "int8")
        acc = T.match_buffer(acc_, (acc_depth,), "uint32")
        status = T.match_buffer(status_, (2,), "int32")
        # Each is below the 1024 bytes that TVM keeps on the stack, so LLVM promotes it to registers.
        upper = T.alloc_buffer((rest * lanes,), "float32")
        lower = T.alloc_buffer((max(1, half) * lanes,), "float32")
        sums = T.alloc_buffer((lanes,), "float32")
        more = T.alloc_buffer((lanes,), "float32")
        one = T.alloc_buffer((lanes,), "int32")
        other = T.alloc_buffer((lanes,), "int32")
        for n in range(count):
            kind: T.let[T.int32] = T.Cast("int32", table[n, 0])
            begin: T.let[T.int32] = T.Cast("int32", table[n, 1])
            end: T.let[T.int32] = T.Cast("int32", table[n, 2])
            outer: T.let[T.int32] = T.Cast("int32", table[n, 3])
            inner: T.let[T.int32] = T.Cast("int32", table[n, 4])
            dst_out: T.let[T.int32] = T.Cast("int32", table[n, 5])
            dst_in: T.let[T.int32] = T.Cast("int32", table[n, 6])
            src_out: T.let[T.int32] = T.Cast("int32", table[n, 7])
            src_in: T.let[T.int32] = T.Cast("int32", table[n, 8])
            if kind == gemm:
                wgt_out: T.let[T.int32] = T.Cast("int32", table[n, 9])
                wgt_in: T.let[T.int32] = T.Cast("int32", table[n, 10])
                same_out: T.let[T.int32] = T.Cast("int32", table[n, 11])
                same_in: T.let[T.int32] = T.Cast("int32", table[n, 12])
                for g, wo, wi, p, q in T.grid(end - begin, outer, inner, pieces, pieces):
                    first: T.let[T.int32] = groups[begin + g, 1]
                    last: T.let[T.int32] = groups[begin + g, 2]
                    which: T.let[T.int32] = groups[begin + g, 0] + wo * wgt_out + wi * wgt_in
                    corner: T.let[T.int32] = which * tile + p * lanes * block + q * lanes
                    for k in T.unroll(rest):
                        for v in T.vectorized(lanes):
                            upper[k * lanes + v] = T.Cast("float32", wgt[corner + k * block + v])
                    for k in T.unroll(half):
                        for v in T.vectorized(lanes):
                            lower[k * lanes + v] = T.Cast(
                                "float32", wgt[corner + (rest + k) * block + v]
                            )
                    for so, si in T.grid(same_out, same_in):
                        into: T.let[T.int32] = (wo + so) * dst_out + (wi + si) * dst_in
                        from_: T.let[T.int32] = (wo + so) * src_out + (wi + si) * src_in
                        for u, b in T.grid(last - first, batch):
                            dst: T.let[T.int32] = (uops[first + u, 0] + into) * vector + b * block
                            src: T.let[T.int32] = (uops[first + u, 1] + from_) * vector + b * block
                            for v in T.vectorized(lanes):
                                sums[v] = T.float32(0)
                                more[v] = T.float32(0)
                            for k in T.unroll(rest):
                                for v in T.vectorized(lanes):
                                    sums[v] += inp[src + p * lanes + k] * upper[k * lanes + v]
                            for k in T.unroll(half):
                                for v in T.vectorized(lanes):
                                    more[v] += (
                                        inp[src + p * lanes + rest + k] * lower[k * lanes + v]
                                    )
                            for v in T.vectorized(lanes):
                                acc[dst + q * lanes + v] += T.reinterpret(
                                    "uint32", T.Cast("int32", sums[v] + more[v])
                                )
            elif kind == reset:
                for o, i, u, c in T.grid(outer, inner, end - begin, parts):
                    for v in T.vectorized(lanes):
                        acc[
                            (uops[begin + u, 0] + o * dst_out + i * dst_in) * vector + c * lanes + v
                        ] = T.uint32(0)
            elif kind <= left:
                use_imm: T.let[T.int32] = T.Cast("int32", table[n, 9])
                imm: T.let[T.int32] = T.Cast("int32", table[n, 10])
                for o, i, u, c in T.grid(outer, inner, end - begin, parts):
                    here: T.let[T.int32] = (
                        uops[begin + u, 0] + o * dst_out + i * dst_in
                    ) * vector + c * lanes
                    there: T.let[T.int32] = (
                        uops[begin + u, 1] + o * src_out + i * src_in
                    ) * vector + c * lanes
                    for v in T.vectorized(lanes):
                        one[v] = T.reinterpret("int32", acc[here + v])
                    if use_imm != 0:
                        for v in T.vectorized(lanes):
                            other[v] = imm
                    else:
                        for v in T.vectorized(lanes):
                            other[v] = T.reinterpret("int32", acc[there + v])
                        if kind == right:
                            for v in range(lanes):
                                if (other[v] < 0 or other[v] > 15) and status[0] == 0:
                                    status[0] = n + 1
                                    status[1] = other[v]
                    if kind == least:
                        for v in T.vectorized(lanes):
                            acc[here + v] = T.reinterpret("uint32", T.min(one[v], other[v]))
                    elif kind == most:
                        for v in T.vectorized(lanes):
                            acc[here + v] = T.reinterpret("uint32", T.max(one[v], other[v]))
                    elif kind == add:
                        for v in T.vectorized(lanes):
                            acc[here + v] += T.reinterpret("uint32", other[v])
                    elif kind == right:
                        for v in T.vectorized(lanes):
                            acc[here + v] = T.reinterpret(
                                "uint32", T.shift_right(one[v], T.bitwise_and(other[v], 15))
                            )
                    else:
                        for v in T.vectorized(lanes):
                            acc[here + v] = T.shift_left(
                                acc[here + v], T.reinterpret("uint32", other[v])
                            )
            else:
                operand: T.let[T.int32] = T.Cast("int32", table[n, 1])
                byte: T.let[T.int64] = table[n, 2]
                stride: T.let[T.int64] = table[n, 3]
                rows: T.let[T.int32] = T.Cast("int32", table[n, 4])
                values: T.let[T.int32] = T.Cast("int32", table[n, 5])
                start: T.let[T.int32] = T.Cast("int32", table[n, 6])
                width: T.let[T.int32] = T.Cast("int32", table[n, 7])
                zeros: T.let[T.int32] = T.Cast("int32", table[n, 8])
                padded: T.let[T.int32] = T.Cast("int32", table[n, 9])
                place: T.let[T.handle("int8")] = T.reinterpret(
                    T.handle("int8").ty, addresses[operand] + byte
                )
                # As large as any address space: bounds have been checked before.
                bytes_ = T.decl_buffer((T.int64(1) << 40,), "int8", data=place)
                if kind == load_inp:
                    for x in range(padded // lanes):
                        for v in T.vectorized(lanes):
                            inp[zeros + x * lanes + v] = T.float32(0)
                    for y, x in T.grid(rows, values // lanes):
                        for v in T.vectorized(lanes):
                            inp[start + y * width + x * lanes + v] = T.Cast(
                                "float32", bytes_[y * stride + x * lanes + v]
                            )
                elif kind == load_wgt:
                    for y, x, k, p in T.grid(rows, values, block, pieces):
                        for v in T.vectorized(lanes):
                            wgt[(start + y * width + x) * tile + k * block + p * lanes + v] = (
                                bytes_[y * stride + x * tile + (p * lanes + v) * block + k]
                            )
                elif kind == load_acc:
                    words_place: T.let[T.handle("uint32")] = T.reinterpret(
                        T.handle("uint32").ty, addresses[operand] + byte
                    )
                    words = T.decl_buffer((T.int64(1) << 40,), "uint32", data=words_place)
                    for x in range(padded // lanes):
                        for v in T.vectorized(lanes):
                            acc[zeros + x * lanes + v] = T.uint32(0)
                    for y, x in T.grid(rows, values // lanes):
                        for v in T.vectorized(lanes):
                            acc[start + y * width + x * lanes + v] = words[
                                y * (stride // 4) + x * lanes + v
                            ]
                else:
                    for y, x in T.grid(rows, values // lanes):
                        for v in T.vectorized(lanes):
                            bytes_[y * stride + x * lanes + v] = T.Cast(
                                "int8", acc[start + y * width + x * lanes + v]
                            )

    return run
