"""Networks of a single ONNX operator, compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from networks.in_tvm import assert_equal, run_in_tvm
from tvmtune.networks.onnx.evaluator import evaluator
from tvmtune.networks.onnx.network import OnnxNetwork


def quick_first(cases: Iterable[Any]) -> list[Any]:
    """Parameters of a test of which the first is in the default run and the others are slow."""
    first, *others = cases
    return [first, *(pytest.param(*_tuple(case), marks=pytest.mark.slow) for case in others)]


def _tuple(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)


Arrays = Mapping[str, "np.ndarray | None"]


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def operator(
    name: str,
    inputs: Arrays,
    *,
    constant: Sequence[str] = (),
    outputs: Sequence[str] = ("y",),
    opset: int = 20,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of the operator ``name``, of ONNX Runtime's domain after ``ms.``.

    An input is None to be left out; those in ``constant`` are weights. An output is "" to be left out.
    """
    domain, _, bare = name.rpartition(".")
    domain = {"ms": "com.microsoft"}.get(domain, domain)
    names = [key if array is not None else "" for key, array in inputs.items()]
    given = {key: array for key, array in inputs.items() if array is not None}
    node = helper.make_node(
        bare, names, list(outputs), name="the_node", domain=domain, **attributes
    )
    infos = [
        helper.make_tensor_value_info(key, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for key, a in given.items()
        if key not in constant
    ]
    results = [onnx.ValueInfoProto(name=y) for y in outputs if y]
    weights = [numpy_helper.from_array(given[key], key) for key in constant]
    graph = helper.make_graph([node], "one-operator", infos, results, weights)
    opsets = [helper.make_opsetid("", opset)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def operator_network(
    name: str, inputs: Arrays, **options: Any
) -> tuple[OnnxNetwork, dict[str, np.ndarray]]:
    """The network of :func:`operator` and its inputs.

    ONNX Runtime says which shapes its results have for ``inputs``: some operators fail on random ones.
    """
    import onnxruntime

    model = operator(name, inputs, **options)
    given = {info.name: inputs[info.name] for info in model.graph.input}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return _network(model, session.run(None, given)), given


def _network(model: onnx.ModelProto, results: Sequence[np.ndarray]) -> OnnxNetwork:
    """The network of a model that has such results."""
    for info, result in zip(model.graph.output, results, strict=True):
        kind = helper.np_dtype_to_tensor_dtype(result.dtype)
        info.CopyFrom(helper.make_tensor_value_info(info.name, kind, result.shape))
    return OnnxNetwork(model, name="net")


def assert_matches_onnxruntime(
    name: str, inputs: Arrays, *, valid: Sequence[Any] = (), tolerance: float = 1e-5, **options: Any
) -> None:
    """TVM and ONNX Runtime agree on ``inputs``.

    ``valid`` indexes the parts of the results that the operator defines.
    """
    network, given = operator_network(name, inputs, **options)
    expected, found = network.reference(given), run_in_tvm(network, given)
    for i, part in enumerate(valid):
        expected[i], found[i] = expected[i][part], found[i][part]
    assert_equal(found, expected, tolerance)


def assert_matches_evaluator(
    name: str, inputs: Arrays, *, tolerance: float = 1e-5, **options: Any
) -> None:
    """TVM and onnx's evaluator, which has all dtypes of an operator, agree on ``inputs``."""
    model = operator(name, inputs, **options)
    given = {info.name: inputs[info.name] for info in model.graph.input}
    with np.errstate(all="ignore"):
        expected = evaluator(model).run(None, given)
    assert_equal(run_in_tvm(_network(model, expected), given), expected, tolerance)
