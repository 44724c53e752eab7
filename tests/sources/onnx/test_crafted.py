"""Crafted ONNX files cost bounded time and memory, and their names do no harm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

import hookscope
from hookscope.errors import ForwardError, InputError, ModelError
from tests.sources.onnx.conftest import export
from tests.sources.onnx.handmade import FLOAT, model, saved

X = torch.ones(2)
VECTOR = ("x", FLOAT, [2])


def chain(names: list[str]) -> onnx.ModelProto:
    """One ReLU after another, with these names."""
    last = len(names)
    nodes = [
        helper.make_node("Relu", [f"v{n}" if n else "x"], [f"v{n + 1}"], name)
        for n, name in enumerate(names)
    ]
    return model(nodes, [VECTOR], [(f"v{last}", FLOAT, [2])])


def test_nodes_in_any_order_are_sorted(tmp_path: Path) -> None:
    proto = chain([f"n{n}" for n in range(2000)])
    nodes = list(proto.graph.node)[::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    tree = hookscope.tree(saved(proto, tmp_path / "net.onnx"))
    assert [node.name for node in tree.modules[1:]] == [f"n{n}" for n in range(2000)]


@pytest.mark.parametrize(
    "name",
    ["/".join(f"m{n}" for n in range(3000)), "/" + "a/" * 3000 + "Relu", "x" * 10**6],
    ids=["deep", "older exporter", "long"],
)
def test_names_of_any_length_and_depth_are_cut_off(name: str, tmp_path: Path) -> None:
    path = saved(chain([name, "last"]), tmp_path / "net.onnx")
    assert max(len(node.name.split(".")) for node in hookscope.tree(path).modules) <= 64
    assert torch.equal(hookscope.capture(path, input=X)["last/output"], X)


def test_names_of_attributes_of_modules_do_no_harm(tmp_path: Path) -> None:
    names = ["forward", "_modules", "_onnx_program", "_hookscope_absent/x", "__class__", "training"]
    path = saved(chain(names), tmp_path / "net.onnx")
    expected = [
        "forward",
        "_modules",
        "_onnx_program_",
        "_hookscope_absent_",
        "__class__",
        "training_",
    ]
    tree = hookscope.tree(path)
    assert [node.name for node in tree.modules if "." not in node.name][:6] == expected[:6]
    assert len(hookscope.capture(path, input=X).records) == 7


def test_an_input_of_absurd_size_needs_one_from_the_user(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    proto = model([node], [("x", FLOAT, [10**9, 10**9])], [("y", FLOAT, [10**9, 10**9])])
    with pytest.raises(InputError, match="1000000000x1000000000"):
        hookscope.capture(saved(proto, tmp_path / "net.onnx"))


@pytest.mark.parametrize("text", ["metadata", "batch", "x"])
def test_names_that_are_no_text_are_damage(text: str, tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    proto = model([node], [("x", FLOAT, ["batch", 2])], [("y", FLOAT, ["batch", 2])])
    proto.graph.metadata_props.add(key="k", value="metadata")
    data = proto.SerializeToString().replace(text.encode(), b"\xff" * len(text))
    (tmp_path / "net.onnx").write_bytes(data)
    with pytest.raises(ModelError, match="damaged"):
        hookscope.tree(tmp_path / "net.onnx")


def test_functions_that_multiply_are_refused(tmp_path: Path) -> None:
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("d", 1)]

    def function(n: int) -> onnx.FunctionProto:
        op, domain = (f"F{n + 1}", "d") if n < 25 else ("Relu", "")
        ends = (("a", "b"), ("b", "c"))
        nodes = [helper.make_node(op, [x], [y], domain=domain) for x, y in ends]
        return helper.make_function("d", f"F{n}", ["a"], ["c"], nodes, opsets)

    first = helper.make_node("F0", ["x"], ["y"], domain="d")
    proto = model([first], [VECTOR], [("y", FLOAT, [2])], opset_imports=opsets)
    proto.functions.extend(function(n) for n in range(26))
    with pytest.raises(ModelError, match="more than 1,000,000 nodes"):
        hookscope.tree(saved(proto, tmp_path / "net.onnx"))


def test_functions_with_large_constants_are_not_multiplied(tmp_path: Path) -> None:
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("d", 1)]
    value = onnx.numpy_helper.from_array(np.ones(100_000, np.float32))
    body = [
        helper.make_node("Constant", [], ["w"], value=value),
        helper.make_node("ReduceSum", ["w"], ["s"]),
        helper.make_node("Add", ["a", "s"], ["b"]),
    ]
    calls = [helper.make_node("F", [f"v{n}"], [f"v{n + 1}"], domain="d") for n in range(1000)]
    proto = model(calls, [("v0", FLOAT, [2])], [("v1000", FLOAT, [2])], opset_imports=opsets)
    proto.functions.append(helper.make_function("d", "F", ["a"], ["b"], body, opsets))
    with pytest.raises(ModelError, match="more than 268,435,456 bytes"):
        hookscope.tree(saved(proto, tmp_path / "net.onnx"))


@pytest.mark.parametrize(
    ("kind", "stored"), [(FLOAT, "int32_data"), (TensorProto.INT32, "float_data")]
)
def test_values_in_the_field_of_another_type_are_refused(
    kind: int, stored: str, tmp_path: Path
) -> None:
    proto = chain(["a"])
    tensor = proto.graph.initializer.add(name="w", data_type=kind, dims=[2])
    getattr(tensor, stored).extend([1, 1])
    with pytest.raises(ModelError, match=r"2 entries of .* but 0 bytes"):
        hookscope.capture(saved(proto, tmp_path / "net.onnx"), input=X)


def test_lengths_whose_product_overflows_are_refused(tmp_path: Path) -> None:
    proto = chain(["a"])
    proto.graph.initializer.add(name="w", data_type=FLOAT, dims=[0, 2**62, 2**62])
    with pytest.raises(ModelError, match="elements"):
        hookscope.tree(saved(proto, tmp_path / "net.onnx"))


@pytest.mark.parametrize("location", ["a\0b", "a" * 100_000])
def test_a_location_that_is_no_path_is_refused(location: str, tmp_path: Path) -> None:
    proto = chain(["a"])
    tensor = proto.graph.initializer.add(name="w", data_type=FLOAT, dims=[2], data_location=1)
    tensor.external_data.add(key="location", value=location)
    with pytest.raises(ModelError) as caught:
        hookscope.tree(saved(proto, tmp_path / "net.onnx"))
    assert len(str(caught.value)) < 500


def test_the_message_of_a_failed_node_has_no_source_lines(tmp_path: Path) -> None:
    node = helper.make_node("Expand", ["x", "shape"], ["y"])
    shape = {"shape": np.array([-(10**18), 10**18])}
    proto = model([node], [("x", FLOAT, [1])], [("y", FLOAT, None)], shape)
    with pytest.raises(ForwardError) as caught:
        hookscope.capture(saved(proto, tmp_path / "net.onnx"), input=torch.ones(1))
    assert "onnxruntime" not in str(caught.value)


@pytest.mark.slow
def test_ctrl_c_ends_a_graph_that_never_ends(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Neg", ["s"], ["t"])],
        "body",
        [
            value("i", TensorProto.INT64, []),
            value("go", TensorProto.BOOL, []),
            value("s", FLOAT, [2]),
        ],
        [value("on", TensorProto.BOOL, []), value("t", FLOAT, [2])],
    )
    loop = helper.make_node("Loop", ["", "yes", "x"], ["y"], body=body)
    proto = model([loop], [VECTOR], [("y", FLOAT, [2])], {"yes": np.array(True)})
    path = saved(proto, tmp_path / "net.onnx")
    words = [sys.executable, "-m", "hookscope", "capture", path, "--no-output"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            while not process.stderr.readline().startswith("input:"):
                assert process.poll() is None
            time.sleep(0.5)  # it is in the loop soon after this line
            os.kill(process.pid, signal.SIGINT)
            assert process.wait(30) == 130
        finally:
            process.kill()


class Halves(nn.Module):
    """Swaps the halves of its input."""

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1)
        return torch.cat([right, left * 2], dim=1)


def test_a_split_belongs_to_the_module_that_uses_it_and_many_operations_are_one_call(
    tmp_path: Path,
) -> None:
    net = nn.Sequential(nn.ReLU(), Halves(), Halves(), nn.AdaptiveAvgPool2d(3)).eval()
    x = torch.arange(16.0).reshape(1, 4, 2, 2)
    path = export(net, (x,), tmp_path / "net.onnx")
    shot, expected = hookscope.capture(path, input=x), hookscope.capture(net, input=x)
    assert list(shot) == list(expected)
    assert all(torch.allclose(shot[key], expected[key]) for key in expected)
