"""Loops of ONNX, as text."""

from __future__ import annotations

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'

COUNTED = """
main (float[2,3] x) => (float[2,3] y)
<int64 count = {4}, bool yes = {1}>
{
  y = Loop (count, yes, x) <body = step (int64 i, bool before, float[2,3] s)
      => (bool after, float[2,3] t) {
    after = Identity (before)
    number = Cast <to = 1> (i)
    sum = Add (s, number)
    t = Tanh (sum)
  }>
}
"""
