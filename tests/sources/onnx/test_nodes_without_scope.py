"""Nodes that name no module, in files whose other nodes do: those that another tool has added."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
from torch import Tensor, nn

import hookscope
from tests.sources.onnx.conftest import export
from tests.sources.onnx.handmade import FLOAT, model, saved, session_values


def chain(*nodes: tuple[str, str]) -> onnx.ModelProto:
    """Nodes, each an operator and a name, of which each uses the result of the one before."""
    values = ["x", *(f"v{n}" for n in range(1, len(nodes))), "y"]
    made = [
        helper.make_node(op, [values[n]], [values[n + 1]], name)
        for n, (op, name) in enumerate(nodes)
    ]
    return model(made, [("x", FLOAT, [2, 4])], [("y", FLOAT, [2, 4])])


def records(path: Any, value: Any) -> dict[str, tuple[str, Tensor]]:
    shot = hookscope.capture(path, input=value)
    return {r.key: (r.type, shot[r.key]) for r in shot.records}


def test_nodes_after_a_module_are_modules_with_their_own_names(tmp_path: Path) -> None:
    proto = chain(("Relu", "/m/Relu"), ("Sigmoid", "mysig"), ("Tanh", "my/tanh"), ("Neg", ""))
    path, x = saved(proto, tmp_path / "net.onnx"), torch.randn(2, 4)
    found = records(path, x)
    values = session_values(path, {"x": x.numpy()}, ["v1", "v2", "v3", "y"])
    assert [(key, kind) for key, (kind, _) in found.items()] == [
        ("m/output", "Relu"),
        ("mysig/output", "Sigmoid"),
        ("my.tanh/output", "Tanh"),
        ("y/output", "Neg"),
        ("./output", "Graph"),
    ]
    for (_, tensor), value in zip(found.values(), [*values.values(), values["y"]], strict=True):
        assert np.array_equal(tensor.numpy(), value)


def test_a_node_between_two_nodes_of_a_module_is_a_module_within_it(tmp_path: Path) -> None:
    proto = chain(("Relu", "/m/Relu"), ("Sigmoid", "mysig"), ("Tanh", "/m/Tanh"))
    path, x = saved(proto, tmp_path / "net.onnx"), torch.randn(2, 4)
    found = records(path, x)
    assert [(key, kind) for key, (kind, _) in found.items()] == [
        ("m.mysig/output", "Sigmoid"),
        ("m/output", "Module"),
        ("./output", "Graph"),
    ]
    assert torch.allclose(found["m/output"][1], x.relu().sigmoid().tanh())
    assert torch.allclose(found["m.mysig/output"][1], x.relu().sigmoid())


def test_a_cast_belongs_to_the_module_around_it_alone(tmp_path: Path) -> None:
    node = helper.make_node
    nodes = [
        node("Relu", ["x"], ["a"], "/m/Relu"),
        node("Cast", ["a"], ["b"], "to_double", to=11),
        node("Tanh", ["b"], ["y"], "/n/Tanh"),
    ]
    proto = model(nodes, [("x", FLOAT, [2, 4])], [("y", 11, [2, 4])])
    found = records(saved(proto, tmp_path / "net.onnx"), torch.randn(2, 4))
    assert {key: tensor.dtype for key, (_, tensor) in found.items()} == {
        "m/output": torch.float32,
        "n/output": torch.float64,
        "./output": torch.float64,
    }


def test_a_name_that_a_module_has_gets_a_number(tmp_path: Path) -> None:
    proto = chain(("Relu", "/m/Relu"), ("Sigmoid", "m"))
    assert "m_1/output" in records(saved(proto, tmp_path / "net.onnx"), torch.randn(2, 4))


class _Images(CalibrationDataReader):
    def __init__(self) -> None:
        self._feeds = iter([{"x": torch.randn(1, 3, 8, 8).numpy()} for _ in range(2)])

    def get_next(self) -> Any:
        return next(self._feeds, None)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A net whose nodes were replaced by quantized ones without names of modules, but for one."""
    folder = tmp_path_factory.mktemp("quantized")
    layers: Sequence[nn.Module] = (nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    image = torch.randn(1, 3, 8, 8)
    export(nn.Sequential(*layers).eval(), (image,), folder / "net.onnx", input_names=["x"])
    quantize_static(
        folder / "net.onnx", folder / "q.onnx", _Images(), quant_format=QuantFormat.QOperator
    )
    return folder / "q.onnx"


def test_each_node_of_a_quantizer_is_a_module_with_the_value_of_the_graph(quantized: Path) -> None:
    proto = onnx.load(quantized)
    x = torch.randn(1, 3, 8, 8)
    found = records(quantized, x)
    assert found["2/output"][1].shape == (1, 144)
    assert found["2/output"][1].dtype == torch.int8
    names = [node.output[0] for node in proto.graph.node]
    values = session_values(quantized, {"x": x.numpy()}, names)
    for node in proto.graph.node:
        key = "2/output" if node.metadata_props else f"{node.name}/output"
        kind, tensor = found[key]
        assert kind == ("Flatten" if node.metadata_props else node.op_type)
        assert np.array_equal(tensor.numpy(), values[node.output[0]]), key


def test_a_module_whose_nodes_were_replaced_is_not_called_removed(quantized: Path) -> None:
    absent = {module.name: module.reason for module in hookscope.tree(quantized).absent}
    assert set(absent) == {"0", "3"}
    assert "node_conv2d_quant" in absent["0"]
    assert "removed" not in " ".join(absent.values())
