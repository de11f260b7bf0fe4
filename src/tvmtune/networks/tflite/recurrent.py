"""LSTMs of TFLite files, which TVM's importer has with coupled gates only."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvmtune.networks import recurrent
from tvmtune.networks.tflite.quantized import LSTM_BIASES

_INPUTS, _STATES = (1, 2, 3, 4), (5, 6, 7, 8)
*_BIASES, _PROJECTION_BIAS = LSTM_BIASES
"""The operator's inputs for the gates: input, forget, cell, output."""
_GATES = (0, 3, 1, 2)
"""These in the order of :class:`recurrent.Weights`."""
_PROJECTION = 16
_UNSUPPORTED = {"peepholes": (9, 10, 11), "layer normalization": (20, 21, 22, 23)}


def unidirectional_lstm(converter: Any, op: Any) -> Any:
    """The states after each step, in the layout of the input, of ``UNIDIRECTIONAL_SEQUENCE_LSTM`` (see
    TensorFlow's ``lstm_eval.h``). Its states begin with zeros in each run.

    Raises ValueError for what is not supported.
    """
    from tflite.ActivationFunctionType import ActivationFunctionType
    from tflite.UnidirectionalSequenceLSTMOptions import UnidirectionalSequenceLSTMOptions

    tensors = converter.get_input_tensors(op)

    def is_given(place: int) -> bool:
        return place < len(tensors) and tensors[place].tensor_idx != -1

    def value(place: int) -> np.ndarray:
        if not is_given(place):
            raise ValueError("its input gate is coupled to the forget gate")
        if not tensors[place].buffer.DataLength():
            raise ValueError("its weights are not constant")
        return np.asarray(converter.get_tensor_value(tensors[place]), "float32")

    options, table = UnidirectionalSequenceLSTMOptions(), op.BuiltinOptions()
    if table is None:
        raise ValueError("its options are missing")
    options.Init(table.Bytes, table.Pos)
    found = [what for what, places in _UNSUPPORTED.items() if any(map(is_given, places))]
    if is_given(_PROJECTION_BIAS) and value(_PROJECTION_BIAS).any():
        found.append("the bias of its projection")
    if options.ProjClip():
        found.append("bounds of its projection")
    if options.FusedActivationFunction() != ActivationFunctionType.TANH:
        found.append("an activation other than tanh")
    if found:
        raise ValueError(f"it has {' and '.join(found)}, which is not supported")
    inputs, states = (
        np.concatenate([value(places[gate]) for gate in _GATES]) for places in (_INPUTS, _STATES)
    )
    bias = np.stack([value(_BIASES[gate]) for gate in _GATES])
    weights = recurrent.Weights(
        inputs[None],
        states[None],
        np.stack([bias, np.zeros_like(bias)])[None],
        value(_PROJECTION)[None] if is_given(_PROJECTION) else None,
    )
    functions = [recurrent.ACTIVATIONS[name] for name in ("Sigmoid", "Tanh", "Tanh")]
    x, batch_first = converter.get_tensor_expr(tensors[0]), not options.TimeMajor()
    layer = recurrent.Layer(converter.bb, x, weights, functions, batch_first=batch_first)
    made = recurrent.lstm(layer, cell_bound=options.CellClip())
    return relax.op.squeeze(made.sequence, [2 if batch_first else 1])
