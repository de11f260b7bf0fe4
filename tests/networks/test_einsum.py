"""Einstein sums as matrix products, compared with NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax

from tvmtune.networks import einsum
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.networks.torch.network import TorchNetwork
from tvmtune.types import Network

PRODUCTS = {
    "the scores of attention": ("bhid,bhjd->bhij", (2, 3, 5, 4), (2, 3, 6, 4)),
    "heads that come last": ("bihd,bjhd->bhij", (2, 5, 3, 4), (2, 6, 3, 4)),
    "spaces": ("B G H I D, B G H J D -> B G H I J", (1, 2, 3, 5, 4), (1, 2, 3, 6, 4)),
    "a result in another order": ("bij,bjk->kbi", (2, 3, 4), (2, 4, 5)),
    "several axes that are summed": ("abcd,cdef->abef", (2, 3, 4, 5), (4, 5, 2, 3)),
    "a vector": ("bij,j->ib", (2, 3, 4), (4,)),
    "two vectors": ("i,i->", (4,), (4,)),
    "all of both": ("ij,ij", (3, 4), (3, 4)),
    "no result named": ("ca,cb", (3, 4), (3, 5)),
    "an axis that only one operand has and the result lacks": (
        "bhij,jk->bik",
        (2, 3, 4, 5),
        (5, 6),
    ),
    "an axis of one step that is repeated": ("bhij,bhjk->bhik", (2, 3, 4, 5), (2, 1, 5, 6)),
    "one that is repeated and summed": ("bhij,bhjk->bik", (2, 3, 4, 5), (2, 1, 5, 6)),
    "axes of one step in both": ("bhij,bhjk->bik", (2, 1, 4, 5), (2, 1, 5, 6)),
    "an ellipsis": ("...ij,...kj->...ik", (2, 3, 4, 5), (2, 3, 6, 5)),
    "ellipses of two lengths": ("...ij,...jk->...ik", (2, 3, 4, 5), (3, 5, 6)),
    "an ellipsis in one operand": ("i...j,jk->...ik", (4, 2, 3, 5), (5, 6)),
    "an ellipsis that is repeated": ("...ij,...jk", (2, 3, 4, 5), (1, 5, 6)),
}
OTHERS = {
    "a diagonal": ("ii,ij->j", (3, 3), (3, 4)),
    "a subscript twice in the result": ("ij,jk->ii", (3, 4), (4, 5)),
    "nothing to sum over both": ("ij,k->ijk", (3, 4), (5,)),
    "an extent that does not fit": ("ij,jk->ik", (3, 4), (5, 6)),
    "a rank that does not fit": ("ij,jk->ik", (3, 4), (4, 5, 6)),
    "an empty axis": ("ij,jk->ik", (3, 0), (0, 6)),
    "an axis of one step that is not shared": ("ij,jk->ik", (3, 1), (4, 5)),
    "three operands": ("ij,jk,kl->il", (3, 4), (4, 5)),
}


def converted(equation: str, *shapes: tuple[int, ...]) -> tvm.IRModule | None:
    operands = [
        relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in zip("xy", shapes, strict=True)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", operands):
        with builder.dataflow():
            result = einsum.matmul(builder.emit, equation, *operands)
            output = builder.emit_output(operands[0] if result is None else result)
        builder.emit_func_output(output)
    return None if result is None else builder.get()


@pytest.mark.parametrize(("equation", "left", "right"), PRODUCTS.values(), ids=PRODUCTS)
def test_a_product_of_matrices_is_one_to_tvm(equation, left, right):
    module = converted(equation, left, right)
    assert module.script().count("R.matmul") == 1
    rng = np.random.default_rng(0)
    operands = [rng.standard_normal(shape, dtype="float32") for shape in (left, right)]
    built = tvm.compile(module, target=tvm.target.Target({"kind": "llvm"}))
    found = relax.VirtualMachine(built, tvm.cpu())["main"](*map(tvm.runtime.tensor, operands))
    # NumPy knows axes of one step that are repeated only in an ellipsis.
    expected = np.einsum(equation, *operands) if "..." in equation else _einsum(equation, *operands)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)


def _einsum(equation: str, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """NumPy's, of operands whose axes of one step are repeated."""
    names = equation.replace(" ", "").split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for name, operand in zip(names, (left, right), strict=True):
        for axis, extent in zip(name, operand.shape, strict=True):
            sizes[axis] = max(sizes.get(axis, 1), extent)
    whole = [
        np.broadcast_to(operand, [sizes[axis] for axis in name])
        for name, operand in zip(names, (left, right), strict=True)
    ]
    return np.einsum(equation, *whole)


@pytest.mark.parametrize(("equation", "left", "right"), OTHERS.values(), ids=OTHERS)
def test_what_is_no_product_of_matrices_is_left_to_tvm(equation, left, right):
    assert converted(equation, left, right) is None


def products_of(network: Network) -> int:
    """How many matrix products there are in a network as it is imported; it has no Einstein sums."""
    script = network.to_relax().script()
    assert "einsum" not in script
    return script.count("R.matmul")


def test_einsum_of_onnx_is_imported_as_a_product():
    x, w, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", (2, 3, 4)), ("w", (2, 5, 4)), ("y", (2, 3, 5)))
    )
    node = helper.make_node("Einsum", ["x", "w"], ["y"], equation="bid,bjd->bij")
    graph = helper.make_graph([node], "scores", [x, w], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert products_of(OnnxNetwork(model, name="scores")) == 1


def test_einsum_of_torch_is_imported_as_a_product():
    torch = pytest.importorskip("torch")

    class Scores(torch.nn.Module):
        def forward(self, x, w):
            return torch.einsum("bid,bjd->bij", x, w)

    examples = torch.zeros(2, 3, 4), torch.zeros(2, 5, 4)
    program = torch.export.export(Scores(), examples)
    assert products_of(TorchNetwork(program, name="scores", label="scores.pt2")) == 1
