"""Networks in ONNX form with static shapes, from the zoo and from files."""

from __future__ import annotations

import contextlib
import functools
import gc
from typing import TYPE_CHECKING

import onnx
from onnx import helper, shape_inference

from tvmtune.errors import TvmtuneError, UsageError, one_line
from tvmtune.networks.inputs import check_inputs, inputs_of, random_inputs
from tvmtune.networks.model_file import kind_and_line
from tvmtune.networks.onnx import cache_names
from tvmtune.networks.onnx import file as onnx_file
from tvmtune.networks.onnx import weights as onnx_weights
from tvmtune.networks.onnx.evaluator import evaluator
from tvmtune.networks.onnx.fold import skeleton
from tvmtune.networks.onnx.hash import hashes
from tvmtune.networks.onnx.index_ranges import index_ranges
from tvmtune.networks.onnx.operators import (
    MICROSOFT,
    UNOFFICIAL,
    check_domains,
    check_operators,
    nodes,
    opsets,
)
from tvmtune.networks.onnx.relax import to_relax
from tvmtune.networks.shapes import resolve
from tvmtune.types import State, TensorSpec, product

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    import tvm

    from tvmtune.networks.onnx.weights import Weights
    from tvmtune.networks.shapes import Dim
    from tvmtune.types import JSON

    _Run = Callable[[dict[str, np.ndarray]], list[np.ndarray]]
    """From inputs to outputs, by a reference."""


def read(
    path: Path,
    *,
    label: str,
    source: JSON,
    batch: int = 1,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> OnnxNetwork:
    """The network in an ONNX file, as :func:`tvmtune.networks.load` wants it."""

    def reload() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        return onnx_file.read(path)

    model, weights = reload()
    return OnnxNetwork(
        model,
        weights=weights,
        name=path.stem,
        source=source,
        batch=batch,
        shapes=shapes,
        label=label,
        reload=reload,
    )


_ROUNDING_ERROR = 1e-6
"""Of sums in float32, relative."""
_MOST_ELEMENTS = 1 << 26
"""Of all inputs, for a run that finds the shapes of the outputs."""
_ROUNDING = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinear", "QGemm")
"""How the names of operators begin whose results, bytes, make a network one that computes in int8."""
_KEPT = 1 << 28
"""A network keeps up to this many bytes of weights in memory even if it can read them again."""


class OnnxNetwork:
    """Implements :class:`tvmtune.types.Network`; see there for the attributes.

    It keeps its weights in memory once. Large weights that can be reloaded are not kept at all, but
    read for each ``to_relax``, ``to_onnx`` and ``reference``.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    source: JSON
    structure_hash: str
    weights_hash: str
    state: dict[str, State]
    """The cache of keys and values, if it has one of constant size."""
    ranges: dict[str, tuple[int, int]]
    """Of some integer inputs; see :func:`tvmtune.networks.inputs.random_inputs`."""
    releases_weights: bool
    """Whether it drops its weights after use; callers should then do so as well."""

    def __init__(
        self,
        model: onnx.ModelProto,
        *,
        name: str,
        source: JSON | None = None,
        batch: int = 1,
        shapes: Mapping[str, Sequence[int]] | None = None,
        label: str | None = None,
        weights: Weights | None = None,
        reload: Callable[[], tuple[onnx.ModelProto, Weights]] | None = None,
    ) -> None:
        """Bind dynamic dimensions of ``model``, which is modified in place, and check it.

        ``label`` names the network in messages; ``weights`` holds the weights that the model only
        declares; ``reload`` loads both anew. Raises :class:`UsageError` if dimensions stay open or
        ``batch`` or ``shapes`` do not fit, :class:`TvmtuneError` if the model is unsound.
        """
        self.name = name
        self.source = source or {}
        self._label = label or name
        self._reload = reload
        self.releases_weights = False
        self._weights: dict[str, np.ndarray] | None
        with _values_of(self._label):
            self._model, self._weights = _open(model, weights, self._label)
        del model, weights  # with their copies of the weights
        with _values_of(self._label):
            self._prepare(batch, shapes)

    def _prepare(self, batch: int, shapes: Mapping[str, Sequence[int]] | None) -> None:
        check_operators(self._model, self._label)
        _check_tensors(self._model.graph, self._label)
        _check(self._model, self._label)
        self._bind(batch, shapes)
        graph = self._model.graph
        _write_defaults(graph)
        self.inputs = tuple(_spec(info, self._label) for info in _true_inputs(graph))
        self._infer_output_shapes(chosen=batch != 1 or bool(shapes))
        self.outputs = tuple(_spec(info, self._label) for info in graph.output)
        self.state = cache_names.state(self.inputs, self.outputs)
        self.ranges = index_ranges(self._model, self.inputs)
        self.structure_hash, self.weights_hash = hashes(self._model, self._weights)
        if any(node.op_type.startswith(_ROUNDING) for node in nodes(graph)):
            self.computes = "int8"

    def to_relax(self) -> tvm.IRModule:
        """Import into Relax. Parameters of ``main`` correspond to ``inputs`` by position."""
        with self._loaded() as weights:
            return to_relax(self._model, self.inputs, self.outputs, self._label, weights)

    def to_onnx(self) -> bytes | None:
        """The serialized model; None above the 2 GiB that the format allows."""
        with self._loaded() as weights:
            whole = onnx_weights.attach(self._model, weights)
        try:
            return whole.SerializeToString()
        except Exception:  # the class differs between protobuf's implementations
            return None

    def reference(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Outputs by ONNX Runtime, or by onnx's slow reference evaluator if that is not installed.

        Raises :class:`UsageError` if ``inputs`` have other names, shapes or dtypes than the network's.
        """
        check_inputs(inputs, self.inputs)
        return self._run(inputs)

    def references(self, samples: Iterable[Mapping[str, np.ndarray]]) -> Iterator[list[np.ndarray]]:
        """As :meth:`reference` for each of several inputs; the network is loaded once."""
        run = None
        with self._loaded() as weights:
            for inputs in samples:
                check_inputs(inputs, self.inputs)
                feed = {spec.name: inputs[spec.name] for spec in self.inputs}
                if run is None:
                    run, outputs = self._first_run(weights, feed)
                else:
                    outputs = run(feed)
                yield outputs

    @functools.cached_property
    def rounding_runs(self) -> list[tuple[list[np.ndarray], list[np.ndarray]]]:
        """Outputs of ONNX Runtime with and without its optimizations, for both inputs of a check: of
        networks that round to bytes, its own kernels decide differently what is just between two steps.
        In bert-base, they are 0.2 and 0.4 apart. Without ONNX Runtime, those for inputs that differ by
        a rounding error; empty if it runs the network only optimized."""
        feeds = [inputs_of(self, seed) for seed in (0, 1)]
        try:
            with self._loaded() as weights:
                run = _onnxruntime(self._model, weights, optimized=False)
                plain = [run(feed) for feed in feeds]
        except ImportError:
            plain = list(self.references([_shifted(feed) for feed in feeds]))
        except Exception:  # an operator that it only runs optimized
            return []
        return list(zip(self.references(feeds), plain, strict=True))

    @contextlib.contextmanager
    def _loaded(self) -> Iterator[Weights]:
        """The weights; dropped afterwards if they are large and can be reloaded."""
        weights = self._weights
        if weights is None:
            assert self._reload is not None
            gc.collect()  # ONNX Runtime's sessions hold the weights of the last run
            model, weights = _open(*self._reload(), self._label)
            if hashes(model, weights)[1] != self.weights_hash:
                raise TvmtuneError(
                    f"{self._label} has changed since this run began; start the run again"
                )
        size = sum(int(array.nbytes) for array in weights.values())
        self.releases_weights = self._reload is not None and size > _KEPT
        self._weights = None if self.releases_weights else weights
        yield weights

    def _bind(self, batch: int, shapes: Mapping[str, Sequence[int]] | None) -> None:
        _clear_placeholders(self._model.graph)
        infos = {info.name: info for info in _true_inputs(self._model.graph)}
        declared = {name: _declared(info) for name, info in infos.items()}
        static, symbols = resolve(declared, batch=batch, shapes=shapes, label=self._label)
        for name, extents in static.items():
            _set_shape(infos[name], extents)
        for info in self._model.graph.output:
            for dim in info.type.tensor_type.shape.dim:
                if dim.dim_param in symbols:
                    dim.dim_value = symbols[dim.dim_param]

    def _infer_output_shapes(self, *, chosen: bool) -> None:
        """Make the outputs' shapes static; ``chosen`` if the user set shapes of inputs."""
        graph = self._model.graph
        # The exporter's notes may be for another batch size: everything follows from the inputs.
        del graph.value_info[:]
        light_model = skeleton(self._model)
        for info in light_model.graph.output:
            info.type.tensor_type.ClearField("shape")
        try:
            inferred = shape_inference.infer_shapes(light_model, strict_mode=True, data_prop=True)
        except Exception as error:
            with contextlib.suppress(
                TvmtuneError
            ):  # a model that runs is sound, whatever inference says
                self._measure_output_shapes()
                return
            if not chosen:
                raise _invalid(self._label, error) from error
            shapes = ", ".join(map(str, self.inputs))
            raise UsageError(
                f"{self._label} cannot take the inputs {shapes}: {one_line(error)}; "
                "choose another --shape or --batch"
            ) from error
        for info, output in zip(graph.output, inferred.graph.output, strict=True):
            extents = _declared(output)
            if extents is not None and all(isinstance(extent, int) for extent in extents):
                info.type.CopyFrom(output.type)
        if any(not _is_static(info) for info in graph.output):
            self._measure_output_shapes()

    def _measure_output_shapes(self) -> None:
        """Run the network to find the shapes that inference does not."""
        if sum(product(spec.shape) for spec in self.inputs) > _MOST_ELEMENTS:
            raise TvmtuneError(
                f"the shapes of the outputs of {self._label} cannot be inferred, and its inputs are "
                f"too large to find them by a run: {', '.join(map(str, self.inputs))[:200]}"
            )
        try:
            ranges = index_ranges(self._model, self.inputs)
            runs = [self._run(random_inputs(self.inputs, seed, ranges)) for seed in (0, 1)]
        except TvmtuneError:
            check_domains(self._model, self._label)
            raise
        for info, first, second in zip(self._model.graph.output, *runs, strict=True):
            if first.shape != second.shape:
                raise TvmtuneError(
                    f"the shape of output '{info.name}' of {self._label} depends on the data: "
                    f"{first.shape} and {second.shape} were seen; only static shapes are supported"
                )
            info.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(first.dtype)
            _set_shape(info, first.shape)

    def _run(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        feed = {spec.name: inputs[spec.name] for spec in self.inputs}
        with self._loaded() as weights:
            return self._first_run(weights, feed)[1]

    def _first_run(
        self, weights: Weights, feed: dict[str, np.ndarray]
    ) -> tuple[_Run, list[np.ndarray]]:
        """The first reference that runs the network, and its outputs."""
        causes = []
        for make in (_onnxruntime, _evaluator):
            try:
                run = make(self._model, weights)
                return run, run(feed)
            except ImportError:
                continue
            except Exception as error:  # each library has its own classes
                causes.append(one_line(error))
        raise TvmtuneError(
            f"no reference can run {self._label}: {'; '.join(causes)}; "
            "check that ONNX Runtime runs the file by itself"
        )


def _open(
    model: onnx.ModelProto, weights: Weights | None, label: str
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model with its functions inlined and its large weights detached, and these weights."""
    if model.functions:
        model = _inline_functions(model, label)
    try:
        return onnx_weights.detach(model, weights)
    except ValueError as error:  # a weight with fewer bytes than its shape needs
        raise _invalid(label, error) from error


def _onnxruntime(model: onnx.ModelProto, weights: Weights, *, optimized: bool = True) -> _Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4  # failures are raised anyway
    # It uses our weights in place. Prepacking would copy all of them for a single run.
    # It would also quantize what MatMulNBits multiplies, if its accuracy_level is 4.
    options.add_session_config_entry("session.disable_prepacking", "1")
    # Without VNNI, its sums of two products of bytes would saturate at 16 bits. An optimization reads
    # this, and only for weights that are initializers.
    options.add_session_config_entry("session.x64quantprecision", "1")
    shared = {name: array for name, array in weights.items() if array.dtype.kind in "biuf"}
    if len(shared) < len(weights):  # types from ml_dtypes, such as bfloat16
        rest = {name: array for name, array in weights.items() if name not in shared}
        model = onnx_weights.attach(model, rest)
    passed: dict[str, np.ndarray] = {}
    if len(shared) == len(weights) and sum(a.nbytes for a in shared.values()) > _KEPT:
        # Sessions copy initializers, but use inputs in place.
        model, passed, shared = skeleton(model), shared, {}
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in shared.values()]
    if values:
        options.add_external_initializers(list(shared), values)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )

    def run(feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        assert len(values) == len(shared)  # what the session uses in place must stay alive
        outputs: list[np.ndarray] = session.run(None, feed | passed)
        return outputs

    return run


def _evaluator(model: onnx.ModelProto, weights: Weights) -> _Run:
    session = evaluator(onnx_weights.attach(model, weights))
    return lambda feed: list(session.run(None, feed))


def _shifted(feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs that are larger by what sums in float32 are off."""
    return {
        name: array * array.dtype.type(1 + _ROUNDING_ERROR) if array.dtype.kind == "f" else array
        for name, array in feed.items()
    }


def _write_defaults(graph: onnx.GraphProto) -> None:
    """Write ``onesided=1``, the default, into transforms: shape inference takes another one."""
    for node in nodes(graph):
        if node.op_type == "STFT" and not any(a.name == "onesided" for a in node.attribute):
            node.attribute.append(onnx.helper.make_attribute("onesided", 1))


def _inline_functions(model: onnx.ModelProto, label: str) -> onnx.ModelProto:
    """Newer exporters call functions that the model defines, which the importer does not support."""
    from onnx import inliner

    try:
        return inliner.inline_local_functions(model)
    except Exception as error:
        raise TvmtuneError(
            f"the functions that {label} defines cannot be expanded: {one_line(error)}; "
            "export it without functions"
        ) from error


def _true_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Inputs that are not weights: old files also list their weights as inputs."""
    weights = {tensor.name for tensor in graph.initializer}
    return [info for info in graph.input if info.name not in weights]


def _clear_placeholders(graph: onnx.GraphProto) -> None:
    """Make dimensions anonymous whose "name" has no letter: exporters write ``?`` for any of them,
    which says nothing about which are equal."""
    for info in (*graph.input, *graph.output):
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param and not any(map(str.isalpha, dim.dim_param)):
                dim.ClearField("dim_param")


def _declared(info: onnx.ValueInfoProto) -> list[Dim] | None:
    """Dimensions as the file declares them; in some files 0 and less stand for unknown."""
    if not info.type.tensor_type.HasField("shape"):
        return None
    dims = info.type.tensor_type.shape.dim
    return [dim.dim_value if dim.dim_value > 0 else dim.dim_param or None for dim in dims]


def _is_static(info: onnx.ValueInfoProto) -> bool:
    dims = _declared(info)
    return dims is not None and all(isinstance(dim, int) for dim in dims)


def _set_shape(info: onnx.ValueInfoProto, extents: Sequence[int]) -> None:
    shape = info.type.tensor_type.shape
    shape.SetInParent()  # a scalar has a shape without dimensions
    del shape.dim[:]
    for extent in extents:
        shape.dim.add().dim_value = extent


def _check(model: onnx.ModelProto, label: str) -> None:
    """Raise :class:`TvmtuneError` unless the model is valid ONNX."""
    light_model = skeleton(model)
    for node in light_model.graph.node:
        if node.op_type in UNOFFICIAL:  # the checker knows no operators of other domains
            node.domain = MICROSOFT
            if MICROSOFT not in opsets(light_model):
                light_model.opset_import.add(domain=MICROSOFT, version=1)
    for info in light_model.graph.output:
        # Only the checker needs types of outputs: they are inferred later.
        info.type.tensor_type.shape.SetInParent()
        if not info.type.tensor_type.elem_type:
            info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    try:
        onnx.checker.check_model(light_model)
    except Exception as error:  # also of other kinds, when its message quotes a damaged name
        raise _invalid(label, error) from error


@contextlib.contextmanager
def _values_of(label: str) -> Iterator[None]:
    """Where tensors and attributes are read: onnx's checker does not look at all of them, and onnx
    raises errors of many kinds for values that do not fit their types."""
    try:
        yield
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise _invalid(label, kind_and_line(error)) from error


def _invalid(label: str, error: Exception | str) -> TvmtuneError:
    reason = error if isinstance(error, str) else one_line(error)
    return TvmtuneError(f"{label} is not a valid ONNX model: {reason}; export it again")


def _check_tensors(graph: onnx.GraphProto, label: str) -> None:
    for info in (*_true_inputs(graph), *graph.output):
        kind = info.type.WhichOneof("value") or "tensor_type"  # outputs may have no type yet
        if kind != "tensor_type":
            raise TvmtuneError(
                f"'{info.name}' of {label} is of the type {kind.removesuffix('_type')}; "
                "only networks whose inputs and outputs are tensors are supported"
            )


def _spec(info: onnx.ValueInfoProto, label: str) -> TensorSpec:
    tensor_type = info.type.tensor_type
    if tensor_type.elem_type in (onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED):
        raise TvmtuneError(f"'{info.name}' of {label} holds no numbers, which is not supported")
    dtype = helper.tensor_dtype_to_np_dtype(tensor_type.elem_type).name
    return TensorSpec(info.name, tuple(dim.dim_value for dim in tensor_type.shape.dim), dtype)
