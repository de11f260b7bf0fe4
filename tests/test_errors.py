"""Helpers for error messages."""

from __future__ import annotations

import pytest

from tvmtune.errors import nearest

TARGETS = ["arm", "cpu", "cuda", "llvm", "mali", "opencl", "rocm", "vta"]


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("cpuu", " Did you mean cpu, cuda?"),
        ("Opencl", " Did you mean opencl?"),
        ("pencl", " Did you mean opencl?"),
        ("nope", " Known: arm, cpu, cuda, llvm, mali, opencl, rocm, vta."),
    ],
)
def test_near_names_are_suggested_else_all_are_listed(word: str, hint: str):
    assert nearest(word, TARGETS) == hint


def test_of_many_names_twelve_are_listed():
    hint = nearest("?", [chr(ord("a") + n) for n in range(13)])
    assert hint == " Known: a, b, c, d, e, f, g, h, i, j, k, l, ..."
