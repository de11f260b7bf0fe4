"""The implementations of kernels on NVIDIA GPUs, and which of them need no record to be taken.

Preferences are those of an H100 in the 20 convolutions of ResNet-18, all with their default schedules:
the direct float32 convolution of 512 channels took 730 us, split-K 61 us; at 56x56 pixels Winograd took
42 us, split-K 65 us, and at 7x7 pixels Winograd took 140 us. Dilated convolutions were not measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tvmtune import backend_defaults
from tvmtune.operators.implementations import SPLIT_K, WINOGRAD
from tvmtune.types import Algorithm, Device, ExtraSpace, product
from tvmtune_cuda import tensor_cores

WINOGRAD_PIXELS = 28 * 28
"""Fewest outputs per channel for which Winograd's convolution is preferred to split-K: with fewer, the
transforms leave most of a large GPU idle."""


def offered(device: Device) -> Iterator[Algorithm | ExtraSpace]:
    """Those for tensor cores first: of several that are preferred, the first is taken."""
    yield from tensor_cores.implementations(device)
    for each in backend_defaults.implementations_gpu(device):
        if isinstance(each, Algorithm) and each.name == WINOGRAD.name:
            yield replace(each, prefers=_is_undilated_with_many_pixels)
        elif isinstance(each, Algorithm) and each.name == SPLIT_K.name:
            yield replace(each, prefers=lambda call: True)
        else:
            yield each


def _is_undilated_with_many_pixels(call: Any) -> bool:
    image, height, width, _ = (int(extent) for extent in call.ty.shape)
    is_dilated = any(int(d) > 1 for d in call.attrs.dilation)
    return not is_dilated and product((image, height, width)) >= WINOGRAD_PIXELS
