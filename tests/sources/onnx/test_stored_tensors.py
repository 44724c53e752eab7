"""Weights are parameters however an ONNX file stores them: in its list, in nodes, or sparse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import hookscope
from hookscope.errors import ModelError
from tests.conftest import Run
from tests.sources.onnx.handmade import FLOAT, INT64, model, saved, session_values

IMAGE = torch.ones(1, 1, 8, 8)
KERNEL = np.random.default_rng(0).standard_normal((4, 1, 3, 3), np.float32)
BIAS = np.array([0.5, 1, -1, 2], np.float32)


def convolution(kernel: np.ndarray[Any, Any] = KERNEL, **options: Any) -> onnx.ModelProto:
    """A convolution with its weights in the list of tensors."""
    return model(
        [helper.make_node("Conv", ["x", "w", "b"], ["y"], "conv")],
        [("x", FLOAT, [1, 1, 8, 8])],
        [("y", FLOAT, [1, 4, 6, 6])],
        {"w": kernel, "b": BIAS},
        **options,
    )


def with_constants(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a ``Constant`` node in place of each tensor."""
    nodes = [
        helper.make_node("Constant", [], [tensor.name], f"Constant_{tensor.name}", value=tensor)
        for tensor in proto.graph.initializer
    ]
    nodes += proto.graph.node
    del proto.graph.initializer[:]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto


def shown(path: str) -> list[tuple[str, str, int]]:
    nodes = hookscope.tree(path).modules
    return [(node.name, node.type, node.own_parameters) for node in nodes]


@pytest.mark.parametrize("version", [3, 10])
def test_weights_in_constant_nodes_are_those_of_the_same_file_with_a_list(
    version: int, tmp_path: Path, run: Run
) -> None:
    options: dict[str, Any] = {"ir_version": version}
    if version == 3:
        options["opset_imports"] = [helper.make_opsetid("", 9)]
    proto = convolution(**options)
    if version == 3:  # such files list their tensors as inputs too
        for name, array in (("w", KERNEL), ("b", BIAS)):
            proto.graph.input.append(helper.make_tensor_value_info(name, FLOAT, array.shape))
    listed = saved(proto, tmp_path / "list.onnx")
    nodes = saved(with_constants(convolution(**options)), tmp_path / "nodes.onnx")
    assert shown(nodes) == shown(listed)
    found = hookscope.load_model(nodes).module.get_submodule("conv")
    assert np.array_equal(found.weight.numpy(), KERNEL)
    assert np.array_equal(found.bias.numpy(), BIAS)
    expected = session_values(nodes, {"x": IMAGE.numpy()}, ["y"])["y"]
    assert np.array_equal(hookscope.capture(nodes, input=IMAGE).output.numpy(), expected)
    hashes = [run("tree", path, "--hash").stdout for path in (listed, nodes)]
    assert hashes[0] == hashes[1]
    assert run("diff", listed, nodes).rc == 0
    drawing = tmp_path / "w.png"
    assert run("filters", nodes, "conv", "-o", str(drawing)).rc == 0
    assert drawing.exists()


def test_a_nan_in_a_constant_node_is_a_finding_at_the_weight(tmp_path: Path) -> None:
    kernel = KERNEL.copy()
    kernel[1, 0, 1, 1] = np.nan
    path = saved(with_constants(convolution(kernel)), tmp_path / "nan.onnx")
    findings = [f for f in hookscope.check(path, input=IMAGE).findings if f.check == "nan"]
    assert [(f.layer, f.message) for f in findings] == [
        ("conv", "parameter weight has 1 NaN entry")
    ]


def test_weights_that_a_node_has_as_numbers_or_of_eight_bits_are_parameters(
    tmp_path: Path,
) -> None:
    proto = model(
        [
            helper.make_node("Constant", [], ["b"], value_floats=[1.0, 2.0, 3.0]),
            helper.make_node(
                "Constant",
                [],
                ["w"],
                value=numpy_helper.from_array(np.arange(6, dtype=np.int8).reshape(2, 3)),
            ),
            helper.make_node("Constant", [], ["s"], value_float=0.5),
            helper.make_node("Constant", [], ["axes"], value_ints=[0]),
            helper.make_node("DequantizeLinear", ["w", "s"], ["wd"], "weight"),
            helper.make_node("MatMul", ["x", "wd"], ["xw"], "fc"),
            helper.make_node("Add", ["xw", "b"], ["sum"], "add"),
            helper.make_node("Unsqueeze", ["sum", "axes"], ["y"], "unsqueeze"),
        ],
        [("x", FLOAT, [1, 2])],
        [("y", FLOAT, [1, 1, 3])],
    )
    path = saved(proto, tmp_path / "a.onnx")
    counts = {node.name: node.own_parameters for node in hookscope.tree(path).modules}
    assert counts == {".": 0, "weight": 6, "fc": 0, "add": 3, "unsqueeze": 0}
    x = np.array([[2, -1]], np.float32)
    expected = session_values(path, {"x": x}, ["y"])["y"]
    assert np.array_equal(hookscope.capture(path, input=torch.from_numpy(x)).output, expected)


def test_a_constant_that_is_an_output_stays_a_node(tmp_path: Path) -> None:
    proto = with_constants(convolution())
    proto.graph.output.append(helper.make_tensor_value_info("w", FLOAT, KERNEL.shape))
    path = saved(proto, tmp_path / "a.onnx")
    assert np.array_equal(hookscope.capture(path, input=IMAGE).output["w"].numpy(), KERNEL)


DENSE = np.zeros((3, 4), np.float32)
DENSE[[0, 1, 2], [1, 0, 3]] = 5, 6, 7


def sparse(indices: Any, dims: tuple[int, ...] = (3, 4)) -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.array([5, 6, 7], np.float32), "w")
    return helper.make_sparse_tensor(
        values, numpy_helper.from_array(np.array(indices, np.int64), "w_indices"), dims
    )


def product(tensor: onnx.SparseTensorProto, *, as_node: bool) -> onnx.ModelProto:
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "fc")],
        [("x", FLOAT, [2, 3])],
        [("y", FLOAT, [2, 4])],
    )
    if as_node:
        proto.graph.node.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=tensor))
    else:
        proto.graph.sparse_initializer.append(tensor)
    return proto


@pytest.mark.parametrize("as_node", [False, True])
@pytest.mark.parametrize("indices", [[1, 4, 11], [[0, 1], [1, 0], [2, 3]]])
def test_a_sparse_weight_is_the_dense_one(indices: Any, as_node: bool, tmp_path: Path) -> None:
    path = saved(product(sparse(indices), as_node=as_node), tmp_path / "a.onnx")
    found = hookscope.load_model(path).module.get_submodule("fc").weight
    assert np.array_equal(found.numpy(), DENSE)
    x = torch.arange(6.0).reshape(2, 3)
    shot = hookscope.capture(path, input=x, what=["output", "input"])
    expected = session_values(path, {"x": x.numpy()}, ["y"])["y"]
    assert np.array_equal(shot["fc/output"].numpy(), expected)
    assert [key for key in shot if key.startswith("fc/input")] == ["fc/input.0"]


@pytest.mark.parametrize(
    ("indices", "dims", "subject"),
    [
        ([1, 4, 12], (3, 4), "sparse tensor 'w'"),
        ([1, 4, -1], (3, 4), "sparse tensor 'w'"),
        ([1, 4], (3, 4), "sparse tensor 'w'"),
        ([[0, 1], [1, 0], [3, 3]], (3, 4), "sparse tensor 'w'"),
        ([[0], [1], [2]], (3, 4), "sparse tensor 'w'"),
        ([1, 4, 5], (1 << 40, 4), "more than 4,294,967,296 bytes"),
        ([1, 4, 5], (-3, 4), "more than 4,294,967,296 bytes"),
    ],
)
def test_a_sparse_tensor_that_does_not_fit_is_damage(
    indices: Any, dims: tuple[int, ...], subject: str, tmp_path: Path
) -> None:
    path = saved(product(sparse(indices, dims), as_node=False), tmp_path / "a.onnx")
    with pytest.raises(ModelError, match=subject):
        hookscope.tree(path)


def test_a_sparse_tensor_in_another_file_is_refused(tmp_path: Path) -> None:
    proto = product(sparse([1, 4, 11]), as_node=False)
    values = proto.graph.sparse_initializer[0].values
    values.ClearField("raw_data")
    values.data_location = TensorProto.EXTERNAL
    values.external_data.add(key="location", value="../secret")
    with pytest.raises(ModelError, match="another file"):
        hookscope.tree(saved(proto, tmp_path / "a.onnx"))


@pytest.mark.parametrize(("op", "count"), [("Sub", 0), ("PRelu", 1)])
def test_a_single_number_is_a_parameter_only_where_an_operator_has_one(
    op: str, count: int, tmp_path: Path
) -> None:
    number = numpy_helper.from_array(np.array([0.5], np.float32))
    nodes = [
        helper.make_node("Constant", [], ["number"], value=number),
        helper.make_node(op, ["x", "number"], ["y"], "node"),
    ]
    path = saved(model(nodes, [("x", FLOAT, [4])], [("y", FLOAT, [4])]), tmp_path / "a.onnx")
    assert sum(node.own_parameters for node in hookscope.tree(path).modules) == count


def test_sizes_in_constant_nodes_are_no_weights(tmp_path: Path) -> None:
    shape = numpy_helper.from_array(np.array([6], np.int64))
    proto = model(
        [
            helper.make_node("Constant", [], ["shape"], value=shape),
            helper.make_node("Reshape", ["x", "shape"], ["y"], "reshape"),
            helper.make_node("Gather", ["shape", "n"], ["size"], "gather"),
        ],
        [("x", FLOAT, [2, 3]), ("n", INT64, [1])],
        [("y", FLOAT, [6]), ("size", INT64, [1])],
    )
    path = saved(proto, tmp_path / "a.onnx")
    assert sum(node.own_parameters for node in hookscope.tree(path).modules) == 0
