"""Inputs of a network: random ones, or those from the user's file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune import bounded
from tvmtune.arrays import numpy_dtype
from tvmtune.errors import UsageError, one_line
from tvmtune.types import product

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from tvmtune.types import Network, TensorSpec


_SINGLE = b"\x93NUMPY"
"""Begins a file of one array."""


def random_inputs(
    network_inputs: Sequence[TensorSpec],
    seed: int = 0,
    ranges: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, np.ndarray]:
    """Inputs that depend only on the specs, the seed and ``ranges``.

    Floats are standard normal. 8- and 16-bit integers are data (pixels) and take their full range.
    Wider integers are usually masks or indices into a table (token ids, segment ids): 0 and 1 are valid
    for all of them. ``ranges`` maps names of integer inputs to their lowest and highest value, where
    these are known.
    """
    rng = np.random.RandomState(seed)  # its stream is frozen, unlike that of default_rng
    result: dict[str, np.ndarray] = {}
    for spec in network_inputs:
        dtype = numpy_dtype(spec.dtype)
        values: Any
        if dtype.kind == "b":
            values = rng.randint(0, 2, size=spec.shape)
        elif dtype.kind in "iu":
            wide = dtype.itemsize > 2
            low, high = (0, 1) if wide else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            if ranges and spec.name in ranges:
                low, high = ranges[spec.name]
            values = rng.randint(low, high + 1, size=spec.shape, dtype=np.int64)
        else:
            values = rng.standard_normal(spec.shape)
        result[spec.name] = np.asarray(values).astype(dtype)
    return result


def ranges_of(network: Network) -> dict[str, tuple[int, int]]:
    """The ranges of a network's integer inputs, its attribute ``ranges``; empty if it has none."""
    return dict(getattr(network, "ranges", {}))


def inputs_of(network: Network, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs of a network, integers within its ranges."""
    return random_inputs(network.inputs, seed, ranges_of(network))


def read_inputs(
    path: str | os.PathLike[str],
    specs: Sequence[TensorSpec],
    optional: Sequence[TensorSpec] = (),
) -> dict[str, np.ndarray]:
    """Read the inputs of a network from an ``.npz`` file with one array per input, which need not have
    the ``optional`` ones of ``specs``.

    Raises :class:`UsageError` if it is not such a file, or if names, shapes or dtypes differ from
    ``specs``.
    """
    arrays = read_arrays(path, specs)
    given = [spec for spec in specs if spec not in optional or spec.name in arrays]
    check_inputs(arrays, given, origin=str(path))
    return arrays


def read_samples(
    path: str | os.PathLike[str], specs: Sequence[TensorSpec]
) -> dict[str, np.ndarray]:
    """The sample inputs in an ``.npz`` file, or in all ``.npz`` and ``.npy`` files of a directory, in
    the order of their names. ``.npy`` files are for networks with one input.

    Raises :class:`UsageError` if a file cannot be read, or if there is none.
    """
    if not Path(path).is_dir():
        return read_arrays(path, specs)
    files = sorted(each for each in Path(path).iterdir() if each.suffix in (".npz", ".npy"))
    if not files:
        raise UsageError(f"{path} has no .npz or .npy files; save sample inputs there")
    parts = [
        _read_single(each, specs) if each.suffix == ".npy" else read_arrays(each, specs)
        for each in files
    ]
    for file, part in zip(files, parts, strict=True):
        if part.keys() != parts[0].keys():
            raise UsageError(
                f"{file} has the arrays {', '.join(sorted(part))}, and {files[0].name} has "
                f"{', '.join(sorted(parts[0]))}"
            )
    try:
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    except ValueError as error:
        raise UsageError(f"the arrays in {path} do not fit together: {one_line(error)}") from error


def _read_single(path: Path, specs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
    """The array of an ``.npy`` file, for the only input."""
    if len(specs) != 1:
        names = ", ".join(spec.name for spec in specs)
        raise UsageError(
            f"{path} holds a single array, and the network has the inputs {names}: save all of one run "
            "in an .npz file"
        )
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"{path} is damaged or not an .npy file ({one_line(error)})") from error
    return {specs[0].name: _restore_dtype(array, numpy_dtype(specs[0].dtype))}


def read_arrays(path: str | os.PathLike[str], specs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz`` file, unchecked; messages about other files name the ``specs``.

    Raises :class:`UsageError` if the file cannot be read.
    """
    kinds = {spec.name: numpy_dtype(spec.dtype) for spec in specs}
    floor = 2 * sum(product(spec.shape) * kinds[spec.name].itemsize for spec in specs)
    try:
        with Path(path).open("rb") as file:
            if file.read(len(_SINGLE)) == _SINGLE:
                raise UsageError(
                    f"{path} holds a single array; save one per input with "
                    f"numpy.savez({str(path)!r}, {_call(specs)})"
                )
            limit = bounded.archive_limit(Path(path).stat().st_size, floor)
            arrays = bounded.read_npz(file, limit)
    except FileNotFoundError as error:
        raise UsageError(f"input file {path} does not exist") from error
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} is damaged or not an .npz file ({one_line(error)}); make one with "
            f"numpy.savez({str(path)!r}, {_call(specs)})"
        ) from error
    return {name: _restore_dtype(array, kinds.get(name)) for name, array in arrays.items()}


def _restore_dtype(array: np.ndarray, dtype: np.dtype | None) -> np.ndarray:
    """The array as ``dtype`` if the file has only raw bytes, as for bfloat16."""
    if dtype is None or array.dtype.kind != "V" or dtype.isbuiltin == 1:
        return array
    return array.view(dtype) if array.itemsize == dtype.itemsize else array


def check_inputs(
    arrays: Mapping[str, np.ndarray], specs: Sequence[TensorSpec], *, origin: str = "the input"
) -> None:
    """Raise :class:`UsageError` if names, shapes or dtypes differ from ``specs``."""
    wanted = ", ".join(map(str, specs))
    missing = [spec.name for spec in specs if spec.name not in arrays]
    unexpected = sorted(set(arrays) - {spec.name for spec in specs})
    if missing or unexpected:
        lacks = f"lacks {', '.join(missing)}" if missing else ""
        extra = f"has the unexpected {', '.join(unexpected)}" if unexpected else ""
        raise UsageError(
            f"{origin} {' and '.join(filter(None, (lacks, extra)))}; the network takes {wanted}"
        )
    for spec in specs:
        array = arrays[spec.name]
        if array.shape != spec.shape or array.dtype != numpy_dtype(spec.dtype):
            shape = "x".join(map(str, array.shape)) or "scalar"
            raise UsageError(
                f"{origin}: '{spec.name}' is {shape} {array.dtype.name}, "
                f"but the network takes {spec}"
            )


def _call(specs: Sequence[TensorSpec]) -> str:
    return "**{" + ", ".join(f"{spec.name!r}: ..." for spec in specs) + "}"
