"""Elementary functions as polynomials that CPUs compute in vectors.

TVM lowers ``exp``, ``tanh``, ``erf`` and ``log`` to one call of the C library per element, even in
vectorized loops. Code that the pipeline for CPUs (:mod:`tvmtune.operators.cpu_pipeline`) lowers calls
the functions here instead, and LLVM inlines them. They use float32 arithmetic and no instructions of a
particular CPU; float16 is computed in float32, float64 stays with the C library.

Largest errors against the exact result, in units in the last place of float32, over every 257th float32
(``tests/operators/test_vector_math.py``):

=======  ====  ================================================================
exp      1.0   denormal results included; 0 below -104, infinity above 88.72
sigmoid  2.5   denormal results included
tanh     1.5
erf      1.25
log      1.0   denormal arguments included; -infinity for 0, NaN below
log1p    2.5   accurate near 0
=======  ====  ================================================================

The erf of what is rounded to bfloat16 (:func:`coarse`) has an absolute error of 3e-5 and, near zero, a
relative one of 5e-5.

NaN gives NaN, and infinities give their limits. Coefficients are minimax fits of the relative error,
found by Remez exchange (exp) or iteratively reweighted least squares (all others; those of erf are
rounded to float32 one at a time, and the rest fitted again).

The functions are written in LLVM IR, because TVM's simplifier expands let-bound variables: nested
functions, such as Mish's tanh(log(1 + exp(x))), took minutes to compile as TensorIR expressions.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import math
import re
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_LEVEL = 100
"""Above the levels at which TVM registers its own lowerings (10, and 99 for its default ``exp``)."""

# exp(r) for |r| <= ln(2) / 2, from r^6 down to 1; relative error 2^-28.
_EXP = (
    1.374498591758310794830322265625e-3,
    8.368946611881256103515625e-3,
    4.166965186595916748046875e-2,
    0.16666518151760101318359375,
    0.49999988079071044921875,
    1.0,
    1.0,
)
_LOWEST, _HIGHEST = -104.0, 89.0
"""exp rounds to 0 and to infinity beyond."""
_SIGMOID_LIMITS = -104.5, 40.0
"""sigmoid rounds to 0 and to 1 beyond, already from -103.98 and 17.4 on."""
# ln(2) in two parts (Cody and Waite): products of the first with 8-bit integers are exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, math.log(2) - 0.693359375
_ROUND = 12582912.0
"""1.5 * 2^23: adding it to a small float32 rounds that to an integer, which is then in the low bits."""
_BIAS = 127
"""Of the exponents of float32 values."""

# (tanh(x) / x - 1) / x^2 as a polynomial in x^2 for |x| < 0.6; relative error of tanh: 2^-28.
_TANH_BELOW = 0.6
_TANH_LIMIT = 9.1
"""Above 9.02, tanh rounds to 1."""
_TANH = (
    -5.895158463029901e-03,
    2.0795972012822714e-02,
    -5.3783830387660846e-02,
    1.3331924128070097e-01,
    -3.333329800216814e-01,
)

# erf(x) / x - 1 as a polynomial in x^2 for |x| < 1.1, and erf(x) as one in |x| - 2.5 for others, which
# rounds to 1 from 3.95 on; relative errors of erf: 2^-28 and 2^-26.
_ERF_BELOW, _ERF_CENTER, _ERF_LIMIT = 1.1, 2.5, 3.95
_ERF = (
    7.190482574515045e-05,
    -7.808873197063804e-04,
    5.165667273104191e-03,
    -2.6842286810278893e-02,
    1.1283331364393234e-01,
    -3.7612608075141907e-01,
    1.2837916612625122e-01,
)
_ERF_BEYOND = (
    1.1228288485654048e-06,
    -9.33735918806633e-06,
    1.3789232980343513e-05,
    6.296372885117307e-05,
    -2.6092323241755366e-04,
    2.8461997862905264e-04,
    5.490327021107078e-04,
    -2.816907363012433e-03,
    6.115506868809462e-03,
    -8.615477941930294e-03,
    8.350246585905552e-03,
    -5.4467422887682915e-03,
    2.1782799158245325e-03,
    9.995930790901184e-01,
)

# erf(x) / x as a polynomial in x^2 for |x| < 3.2; absolute error of erf: 2^-15 in float32 arithmetic.
_COARSE_ERF_LIMIT = 3.2
_COARSE_ERF = (
    -2.4000632836087332e-09,
    1.419127893278351e-07,
    -3.7397191867710248e-06,
    5.846653183513861e-05,
    -6.112870141883356e-04,
    4.584103816005443e-03,
    -2.581433833354662e-02,
    1.1186420463827318e-01,
    -3.757072383976592e-01,
    1.1283256774842727,
)

# (log(1 + f) - f + f^2 / 2) / f^3 for 1/sqrt(2) <= 1 + f <= sqrt(2); relative error of log: 2^-30.
_LOG = (
    6.746640086008225e-02,
    -1.167565170727773e-01,
    1.1888162399900774e-01,
    -1.2405588946175665e-01,
    1.421955234584133e-01,
    -1.6667995852056072e-01,
    2.0002118659522988e-01,
    -2.5000009599440254e-01,
    3.3333312604050735e-01,
)

_SCALAR = ("cosh", "sinh")
"""Functions that TVM vectorizes, though it can lower only scalar calls of them."""
_VECTOR = "nearbyint"
"""A function that TVM does not vectorize, though LLVM has vectors of it."""

_active = contextvars.ContextVar("_active", default=False)
"""Whether this thread is lowering a module with the functions here."""


@functools.cache
def register() -> None:
    """Register the lowerings that :func:`active` switches on.

    TVM's own pipelines compute the same as before, but take ``erf``, ``log1p`` and ``nearbyint`` for
    vectorizable, which their code for some GPUs is not prepared for: call this only to compile for
    CPUs.
    """
    import tvm

    for name in _FUNCTIONS:
        operator = tvm.ir.Op.get(f"tirx.{name}")
        vectorizable = operator.get_attr("TVectorizable")
        before = operator.get_attr("llvm.FLowerIntrinsic") if vectorizable else _by_lanes
        tvm.tirx.register_intrin_lowering(
            operator.name, target="llvm", f=_lowering(name, before), level=_LEVEL
        )
        # Else TVM makes loops around it scalar before it comes to the lowering (erf).
        tvm.ir.register_op_attr(operator.name, "TVectorizable", True, level=_LEVEL)
    tvm.ir.register_op_attr(f"tirx.{_VECTOR}", "TVectorizable", True, level=_LEVEL)
    for name in _SCALAR:
        tvm.tirx.register_intrin_lowering(f"tirx.{name}", target="llvm", f=_by_lanes, level=_LEVEL)


@contextlib.contextmanager
def active() -> Iterator[None]:
    """Lower to the functions here, in this thread."""
    token = _active.set(True)
    try:
        yield
    finally:
        _active.reset(token)


def _lowering(name: str, before: Any) -> Callable[[Any], Any]:
    def lower(call: Any) -> Any:
        from tvm import tirx

        dtype = str(call.ty.dtype)
        element, _, lanes = dtype.partition("x")
        if not _active.get() or element not in ("float32", "float16"):
            return call if before is None else before(call)
        single = dtype.replace("float16", "float32")
        symbol = f"{_PREFIX}{name}_x{lanes or 1}"
        return tirx.call_pure_extern(single, symbol, call.args[0].astype(single)).astype(dtype)

    return lower


def _by_lanes(call: Any) -> Any:
    """A call of the C library for each element of a vector; some functions have no LLVM intrinsic."""
    from tvm import tirx

    dtype, _, lanes = str(call.ty.dtype).partition("x")
    if not lanes:
        return call
    vector = call.args[0]
    each = [tirx.Shuffle([vector], [lane]) for lane in range(int(lanes))]
    values = [tirx.call_intrin(dtype, call.op.name, value) for value in each]
    return tirx.Shuffle(values, [*range(int(lanes))])


def coarse(expression: Any) -> Any:
    """A lowered expression whose value is rounded to bfloat16, with functions of half the digits where
    they take less time; itself if it subtracts, divides or calls other functions, which could make a
    small error a large one."""
    import tvm
    from tvm import tirx
    from tvm_ffi import structural_mutate, structural_walk

    others: list[Any] = []

    def called(text: Any) -> None:
        found = _SYMBOL.fullmatch(str(text.value))
        if found is None or _COARSE + found[1] not in _DEFINED:
            others.append(text)

    kinds = ((tvm.ir.StringImm, called), (tirx.Sub, others.append), (tirx.Div, others.append))
    structural_walk(expression, kinds)
    if others:
        return expression

    def visit(text: Any, mutator: Any) -> Any:
        return tvm.ir.StringImm(str(text.value).replace(_PREFIX, _PREFIX + _COARSE))

    return structural_mutate(expression, (tvm.ir.StringImm, visit))


def definitions(called: Collection[str]) -> list[str]:
    """In LLVM IR, of the functions here among those whose names are ``called``."""
    found = {match.groups() for name in called if (match := _SYMBOL.fullmatch(name))}
    return [llvm_ir(name, int(lanes)) for name, lanes in sorted(found)]


@functools.cache
def llvm_ir(name: str, lanes: int) -> str:
    """The definition in LLVM IR of the function for vectors of ``lanes`` values."""
    block = _Block(lanes)
    result = _DEFINED[name](block, _Value(block, "%x", "float"))
    kind = block.type("float")
    body = "\n".join([*block.lines, f"ret {kind} {result.text}"])
    return f"define {kind} @{_PREFIX}{name}_x{lanes}({kind} %x) {{\nentry:\n{body}\n}}"


@dataclass(frozen=True, eq=False)
class _Value:
    """A value in LLVM IR, scalar or vector, of float or i32 elements."""

    block: _Block
    text: str
    element: str

    def __add__(self, other: _Value) -> _Value:
        return self._binary("fadd", "add", other)

    def __sub__(self, other: _Value) -> _Value:
        return self._binary("fsub", "sub", other)

    def __mul__(self, other: _Value) -> _Value:
        return self._binary("fmul", "mul", other)

    def __truediv__(self, other: _Value) -> _Value:
        return self._binary("fdiv", "", other)

    def __and__(self, other: _Value) -> _Value:
        return self._binary("", "and", other)

    def __or__(self, other: _Value) -> _Value:
        return self._binary("", "or", other)

    def __lshift__(self, other: _Value) -> _Value:
        return self._binary("", "shl", other)

    def __rshift__(self, other: _Value) -> _Value:
        return self._binary("", "ashr", other)

    def __lt__(self, other: _Value) -> _Value:
        """Of floats; False if one is NaN."""
        return self._compare("olt", other)

    def __gt__(self, other: _Value) -> _Value:
        return self._compare("ogt", other)

    def equals(self, other: _Value) -> _Value:
        return self._compare("oeq", other)

    def _binary(self, floats: str, integers: str, other: _Value) -> _Value:
        operation = floats if self.element == "float" else integers
        kind = self.block.type(self.element)
        return self.block.emit(f"{operation} {kind} {self.text}, {other.text}", self.element)

    def _compare(self, how: str, other: _Value) -> _Value:
        kind = self.block.type("float")
        return self.block.emit(f"fcmp {how} {kind} {self.text}, {other.text}", "i1")


class _Block:
    """The body of a function, as lines of LLVM IR."""

    def __init__(self, lanes: int) -> None:
        self.lines: list[str] = []
        self._lanes = lanes

    def type(self, element: str) -> str:
        return element if self._lanes == 1 else f"<{self._lanes} x {element}>"

    def emit(self, instruction: str, element: str) -> _Value:
        name = f"%{len(self.lines)}"
        self.lines.append(f"{name} = {instruction}")
        return _Value(self, name, element)

    def constant(self, value: float) -> _Value:
        # LLVM writes a float as the bits of the double that equals it.
        single = struct.unpack("f", struct.pack("f", value))[0]
        return self._all(f"0x{struct.pack('>d', single).hex().upper()}", "float")

    def integer(self, value: int) -> _Value:
        return self._all(str(value), "i32")

    def _all(self, value: str, element: str) -> _Value:
        if self._lanes == 1:
            return _Value(self, value, element)
        elements = ", ".join([f"{element} {value}"] * self._lanes)
        return _Value(self, f"<{elements}>", element)

    def select(self, condition: _Value, yes: _Value, no: _Value) -> _Value:
        kind = self.type(yes.element)
        return self.emit(
            f"select {self.type('i1')} {condition.text}, {kind} {yes.text}, {kind} {no.text}",
            yes.element,
        )

    def bits(self, value: _Value) -> _Value:
        """The floats' bits, as integers."""
        return self._convert("bitcast", value, "i32")

    def floats(self, bits: _Value) -> _Value:
        """The floats that have these bits."""
        return self._convert("bitcast", bits, "float")

    def rounded(self, integers: _Value) -> _Value:
        return self._convert("sitofp", integers, "float")

    def _convert(self, how: str, value: _Value, element: str) -> _Value:
        source, target = self.type(value.element), self.type(element)
        return self.emit(f"{how} {source} {value.text} to {target}", element)

    def clamp(self, x: _Value, low: float, high: float) -> _Value:
        """``x`` between two bounds; NaN stays NaN."""
        least = self.constant(low)
        return self.at_most(self.select(x < least, least, x), high)

    def at_most(self, x: _Value, high: float) -> _Value:
        """``x`` or this bound; NaN stays NaN."""
        most = self.constant(high)
        return self.select(x > most, most, x)

    def magnitude(self, x: _Value) -> _Value:
        return self.floats(self.bits(x) & self.integer(0x7FFFFFFF))

    def with_sign(self, magnitude: _Value, x: _Value) -> _Value:
        """A value that is not negative, with the sign of ``x``."""
        sign = self.bits(x) & self.integer(-0x80000000)
        return self.floats(self.bits(magnitude) | sign)

    def polynomial(self, x: _Value, coefficients: Sequence[float]) -> _Value:
        """By Horner's scheme; the constant term comes last."""
        value = self.constant(coefficients[0])
        for coefficient in coefficients[1:]:
            value = value * x + self.constant(coefficient)
        return value


def _exp(b: _Block, x: _Value) -> _Value:
    result, shifted = _exp_parts(b, b.clamp(x, _LOWEST, _HIGHEST), 2 * _BIAS)
    # In two steps: neither 2^128 nor the factors of denormal results are float32 values.
    power, other = _halves(b, shifted)
    return result * power * other


def _exp_parts(b: _Block, x: _Value, bias: int, sign: int = 1) -> tuple[_Value, _Value]:
    """With ``sign`` * x = n * ln(2) + r: exp(r), and a value whose lowest nine bits are those of
    ``sign`` * n + ``bias``."""
    offset = b.constant(_ROUND + bias)
    shifted = x * b.constant(1 / math.log(2)) + offset
    n = shifted - offset
    high, low = n * b.constant(_LN2_HIGH), n * b.constant(_LN2_LOW)
    r = (x - high) - low if sign > 0 else (high - x) + low
    return b.polynomial(r, _EXP), shifted


def _power_of_two(b: _Block, bits: _Value) -> _Value:
    """2^(n - 127), with n in the lowest nine bits; it must be from 1 to 254."""
    return b.floats(bits << b.integer(23))


def _halves(b: _Block, shifted: _Value) -> tuple[_Value, _Value]:
    """Two powers of two whose product is 2^n, with n + 254 in the lowest nine bits of ``shifted``."""
    exponent = b.bits(shifted)
    half = exponent >> b.integer(1)
    return _power_of_two(b, half), _power_of_two(b, exponent - half)


def _sigmoid(b: _Block, x: _Value) -> _Value:
    """1 / (1 + exp(-x)) as t / (t + exp(r)), with t = 2^-n and -x = n * ln(2) + r.

    t is a product of two powers, as the smallest are no float32 values. Scaling exp(r) by 2^n instead
    would overflow for very negative x, and avoiding that takes more operations.
    """
    exp, shifted = _exp_parts(b, b.clamp(x, *_SIGMOID_LIMITS), 2 * _BIAS, sign=-1)
    power, other = _halves(b, shifted)
    return power * (other / (power * other + exp))


def _tanh(b: _Block, x: _Value) -> _Value:
    one = b.constant(1.0)
    size = b.magnitude(x)
    square = x * x
    near = b.polynomial(square, _TANH) * (square * size) + size
    limited = b.at_most(size, _TANH_LIMIT)
    result, shifted = _exp_parts(b, limited + limited, _BIAS)
    far = one - b.constant(2.0) / (result * _power_of_two(b, b.bits(shifted)) + one)
    return b.with_sign(b.select(size < b.constant(_TANH_BELOW), near, far), x)


def _erf(b: _Block, x: _Value) -> _Value:
    size = b.magnitude(x)
    square = x * x
    near = b.polynomial(square, _ERF) * size + size
    beyond = b.at_most(size, _ERF_LIMIT) - b.constant(_ERF_CENTER)
    far = b.polynomial(beyond, _ERF_BEYOND)
    return b.with_sign(b.select(size < b.constant(_ERF_BELOW), near, far), x)


def _coarse_erf(b: _Block, x: _Value) -> _Value:
    limit, one = b.constant(_COARSE_ERF_LIMIT), b.constant(1.0)
    size = b.magnitude(x)
    near = b.at_most(b.polynomial(x * x, _COARSE_ERF) * size, 1.0)
    return b.with_sign(b.select(size > limit, one, near), x)


def _log(b: _Block, x: _Value) -> _Value:
    """n * ln(2) + log(1 + f), with x = 2^n * (1 + f)."""
    smallest = b.constant(2.0**-126)
    denormal = x < smallest
    scaled = b.select(denormal, x * b.constant(2.0**23), x)
    # Exponent and mantissa such that 1/sqrt(2) <= mantissa < sqrt(2).
    offset = b.bits(b.constant(math.sqrt(0.5)))
    exponent = (b.bits(scaled) - offset) >> b.integer(23)
    f = b.floats(b.bits(scaled) - (exponent << b.integer(23))) - b.constant(1.0)
    n = b.rounded(exponent) - b.select(denormal, b.constant(23.0), b.constant(0.0))
    square = f * f
    tail = b.polynomial(f, _LOG) * square * f
    tail = n * b.constant(_LN2_LOW) + tail
    tail = tail - b.constant(0.5) * square
    result = n * b.constant(_LN2_HIGH) + (f + tail)
    infinity = b.constant(math.inf)
    result = b.select(x < infinity, result, x)  # infinity and NaN
    result = b.select(x < b.constant(0.0), b.constant(math.nan), result)
    return b.select(x.equals(b.constant(0.0)), b.constant(-math.inf), result)


def _log1p(b: _Block, x: _Value) -> _Value:
    """log(u) * x / (u - 1) with u = 1 + x rounded, by which the rounding cancels (W. Kahan)."""
    one = b.constant(1.0)
    u = x + one
    rest = u - one
    logarithm = _log(b, u)
    plain = b.select(u < b.constant(math.inf), logarithm * (x / rest), logarithm)
    return b.select(rest.equals(b.constant(0.0)), x, plain)


_FUNCTIONS: dict[str, Callable[[_Block, _Value], _Value]] = {
    "erf": _erf,
    "exp": _exp,
    "log": _log,
    "log1p": _log1p,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
}

_COARSE = "coarse_"
"""Begins the names of functions with half the digits, for what is rounded to bfloat16."""
_DEFINED = {**_FUNCTIONS, f"{_COARSE}erf": _coarse_erf}
_PREFIX = "tvmtune_vector_"
_SYMBOL = re.compile(f"{_PREFIX}({'|'.join(_DEFINED)})_x([0-9]+)")
