"""ONNX files of other tools: every node is a module, whatever types and shapes its values have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import hookscope
from tests.conftest import Run
from tests.sources.onnx.handmade import FLOAT, INT64, model, saved, session_values, two_layers

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def captured(path: str, value: Any, **options: Any) -> Any:
    return hookscope.capture(path, input=value, **options)


def test_every_node_is_a_module_with_the_name_of_the_node(tmp_path: Path) -> None:
    path = saved(two_layers(), tmp_path / "net.onnx")
    tree = hookscope.tree(path)
    assert [(node.name, node.type, node.own_parameters) for node in tree.modules] == [
        (".", "Graph", 0),
        ("first", "Module", 0),
        ("first.MatMul", "MatMul", 12),
        ("first.Add", "Add", 4),
        ("y", "Relu", 0),
    ]


# Names as jax2tf, tf2onnx and paddle2onnx write them, and the number of scopes in them.
EXPORTED_NAMES = {
    "jax2tf": (("jax2tf_f_/Dense_0/dot/Einsum", "jax2tf_f_/Dense_0/AddV2"), 3),
    "tf2onnx": (("StatefulPartitionedCall/net/fc/MatMul", "StatefulPartitionedCall/net/fc/Add"), 3),
    "paddle2onnx": (("p2o.MatMul.0", "p2o.Add.0"), 3),
}


@pytest.mark.parametrize("tool", EXPORTED_NAMES)
def test_scopes_that_are_parts_of_names_are_containers(tool: str, tmp_path: Path, run: Run) -> None:
    names, number = EXPORTED_NAMES[tool]
    proto = two_layers()
    for node, name in zip(proto.graph.node, (*names, "last"), strict=True):
        node.name = name
    path = saved(proto, tmp_path / "net.onnx")
    done = run("check", path)
    assert (done.rc, "never runs" in done.stdout) == (0, False), done.stdout
    coverage = json.loads(run("trace", path, "--json").stdout)["coverage"]
    reasons = {layer["module"]: layer["reason"] for layer in coverage["not_executed"]}
    assert len(reasons) == number and not set(reasons) & {name.replace("/", ".") for name in names}
    assert all(reason.startswith("a container") for reason in reasons.values())


def test_scales_of_resize_are_settings_and_no_parameters(tmp_path: Path, run: Run) -> None:
    scales = np.array([1, 1, 2, 2], np.float32)
    node = helper.make_node
    proto = model(
        [
            node("Resize", ["x", "", "scales_0"], ["a"], "p2o.Resize.0"),
            node("Conv", ["a", "w"], ["b"], "p2o.Conv.0"),
            node("Resize", ["b", "", "scales_1"], ["y"], "p2o.Resize.1"),
        ],
        [("x", FLOAT, [1, 2, 3, 3])],
        [("y", FLOAT, [1, 2, 12, 12])],
        {"scales_0": scales, "scales_1": scales, "w": np.ones((2, 2, 1, 1), np.float32)},
    )
    path = saved(proto, tmp_path / "net.onnx")
    own = {node.name: node.own_parameters for node in hookscope.tree(path).modules}
    assert {name: count for name, count in own.items() if count} == {"p2o.Conv.0": 4}
    done = run("check", path)
    assert (done.rc, "duplicated" in done.stdout) == (0, False), done.stdout


def test_weights_that_a_file_stores_twice_are_a_note(tmp_path: Path, run: Run) -> None:
    proto = two_layers()
    square = np.random.default_rng(1).standard_normal((4, 4), np.float32)
    for number in range(2):
        proto.graph.node[-1].output[0] = f"v{number}"
        proto.graph.node.append(
            helper.make_node("MatMul", [f"v{number}", f"w{number}"], ["y"], f"fc{number}")
        )
        proto.graph.initializer.append(numpy_helper.from_array(square, f"w{number}"))
    done = run("check", saved(proto, tmp_path / "net.onnx"))
    assert (done.rc, "[note duplicated" in done.stdout) == (0, True), done.stdout
    assert "deepcopy" not in done.stdout


def test_an_argument_that_is_left_out_keeps_its_place(tmp_path: Path) -> None:
    """The initial state of an LSTM without a bias is no bias."""
    draw = np.random.default_rng(0).standard_normal
    proto = model(
        [helper.make_node("LSTM", ["x", "W", "R", "", "", "h"], ["y"], "lstm", hidden_size=2)],
        [("x", FLOAT, [1, 1, 3])],
        [("y", FLOAT, [1, 1, 1, 2])],
        {
            "W": draw((1, 8, 3), np.float32),
            "R": draw((1, 8, 2), np.float32),
            "h": draw((1, 1, 2), np.float32),
        },
    )
    module = hookscope.load_model(saved(proto, tmp_path / "net.onnx")).module
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    assert shapes == {
        "lstm.weight_ih": (1, 8, 3),
        "lstm.weight_hh": (1, 8, 2),
        "lstm.h": (1, 1, 2),
    }


def test_a_scalar_input_has_a_name_where_shapes_are_listed(tmp_path: Path, run: Run) -> None:
    proto = model(
        [
            helper.make_node("Gather", ["x", "row"], ["y"], "pick", axis=0),
            helper.make_node("Identity", ["row"], ["same"], "same"),
        ],
        [("x", FLOAT, [2, 3]), ("row", INT64, [])],
        [("y", FLOAT, [3]), ("same", INT64, [])],
    )
    path = saved(proto, tmp_path / "net.onnx")
    np.save(tmp_path / "x.npy", X)
    for row, name in ((1, "good.npy"), (5, "bad.npy")):
        np.save(tmp_path / name, np.array(row))
    given = ("--input", f"x={tmp_path}/x.npy", "--input", f"row={tmp_path}/good.npy")
    bad = run("capture", path, *given[:3], f"row={tmp_path}/bad.npy", "--no-output")
    assert bad.rc == 1 and "2x3, scalar." in bad.stderr
    assert "scalar" in run("tree", path, "--shapes").stdout
    document = json.loads(run("capture", path, *given, "--json", "-o", "a.safetensors").stdout)
    assert [entry["shape"] for entry in document["inputs"]] == ["2x3", "scalar"]
    assert "scalar" in run("show", "a.safetensors").stdout
    chrome = tmp_path / "trace.json"
    run("trace", path, *given, "--chrome", chrome)
    events = json.loads(chrome.read_text())["traceEvents"]
    [same] = [event["args"] for event in events if event["name"] == "same" and "args" in event]
    assert same["inputs"] == same["outputs"] == ["scalar"]


def quantized(*, by_operators: bool) -> onnx.ModelProto:
    """``x w`` with ``x`` and ``w`` of 8 bits: with integer operators, or dequantized before."""
    tensors = {
        "w": np.arange(12, dtype=np.int8).reshape(3, 4),
        "scale": np.array(0.5, np.float32),
        "zero": np.array(0, np.int8),
    }
    by = ["scale", "zero"]
    node = helper.make_node
    nodes = [node("QuantizeLinear", ["x", *by], ["xq"], name="quantize")]
    if by_operators:
        inputs = ["xq", *by, "w", *by, *by]
        nodes.append(node("QLinearMatMul", inputs, ["yq"], name="fc"))
        nodes.append(node("DequantizeLinear", ["yq", *by], ["y"], name="dequantize"))
    else:
        nodes.append(node("DequantizeLinear", ["xq", *by], ["xd"], name="dequantize"))
        nodes.append(node("DequantizeLinear", ["w", *by], ["wd"], name="weight"))
        nodes.append(node("MatMul", ["xd", "wd"], ["y"], name="fc"))
    return model(nodes, [("x", FLOAT, [2, 3])], [("y", FLOAT, [2, 4])], tensors)


@pytest.mark.parametrize(("by_operators", "owner"), [(True, "fc"), (False, "weight")])
def test_quantized_weights_are_parameters_and_their_values_those_of_a_bare_session(
    tmp_path: Path, by_operators: bool, owner: str
) -> None:
    path = saved(quantized(by_operators=by_operators), tmp_path / "net.onnx")
    counts = {node.name: node.own_parameters for node in hookscope.tree(path).modules}
    assert {name: count for name, count in counts.items() if count} == {owner: 12}
    shot = captured(path, torch.from_numpy(X))
    expected = session_values(path, {"x": X}, ["xq", "y"])
    assert np.array_equal(shot["quantize/output"].numpy(), expected["xq"])
    assert np.array_equal(shot["./output"].numpy(), expected["y"])


def test_the_values_are_those_of_a_bare_session(tmp_path: Path) -> None:
    path = saved(two_layers(), tmp_path / "net.onnx")
    shot = captured(path, torch.from_numpy(X), what=["output", "input"])
    expected = session_values(path, {"x": X}, ["xw", "sum", "y"])
    keys = {"first.MatMul/output": "xw", "first.Add/output": "sum", "y/output": "y"}
    for key, name in keys.items():
        assert np.array_equal(shot[key].numpy(), expected[name]), key
    assert np.array_equal(shot["first.MatMul/input.0"].numpy(), X)
    assert np.array_equal(shot["./output"].numpy(), expected["y"])
    assert "first/output" not in shot  # a part of names, which is never called


def test_a_file_is_known_by_its_content(tmp_path: Path) -> None:
    path = saved(two_layers(), tmp_path / "weights.bin")
    assert hookscope.tree(path).modules[0].type == "Graph"


def test_several_outputs_are_a_dict(tmp_path: Path) -> None:
    proto = two_layers()
    proto.graph.output.append(helper.make_tensor_value_info("sum", FLOAT, [2, 4]))
    shot = captured(saved(proto, tmp_path / "a.onnx"), torch.from_numpy(X))
    assert list(shot.output) == ["y", "sum"]
    assert torch.equal(shot["./output.y"], shot["./output.sum"].relu())


def test_an_open_length_is_that_of_the_input(tmp_path: Path) -> None:
    path = saved(two_layers("rows"), tmp_path / "a.onnx")
    assert captured(path, None)["y/output"].shape == (1, 4)
    assert captured(path, None, shape=(5, 3))["y/output"].shape == (5, 4)


NUMBERS = {
    "float16": TensorProto.FLOAT16,
    "float64": TensorProto.DOUBLE,
    "bfloat16": TensorProto.BFLOAT16,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int16": TensorProto.INT16,
    "uint16": TensorProto.UINT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "uint32": TensorProto.UINT32,
    "uint64": TensorProto.UINT64,
    "bool": TensorProto.BOOL,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_values_have_the_dtype_of_the_graph(name: str, tmp_path: Path) -> None:
    proto = model(
        [helper.make_node("Cast", ["x"], ["y"], to=NUMBERS[name])],
        [("x", FLOAT, [2, 3])],
        [("y", NUMBERS[name], [2, 3])],
    )
    x = torch.from_numpy(np.abs(X))
    value = captured(saved(proto, tmp_path / "a.onnx"), x)["y/output"]
    assert torch.equal(value, x.to(getattr(torch, name)))


@pytest.mark.parametrize("name", [name for name in NUMBERS if name != "float64"])
def test_inputs_may_have_any_dtype(name: str, tmp_path: Path) -> None:
    proto = model(
        [helper.make_node("Cast", ["x"], ["y"], to=FLOAT)],
        [("x", NUMBERS[name], [2, 3])],
        [("y", FLOAT, [2, 3])],
    )
    x = torch.from_numpy(np.abs(X)).to(getattr(torch, name))
    shot = captured(saved(proto, tmp_path / "a.onnx"), x)
    assert torch.equal(shot["y/output"], x.float())
    assert shot.metadata["arguments"][0]["dtype"] == name


def test_texts_and_lists_are_absent_with_a_reason(tmp_path: Path) -> None:
    proto = model(
        [
            helper.make_node("Cast", ["x"], ["texts"], to=TensorProto.STRING),
            helper.make_node("SplitToSequence", ["x"], ["list"], axis=0),
            helper.make_node("Neg", ["x"], ["y"]),
        ],
        [("x", FLOAT, [2, 3])],
        [("y", FLOAT, [2, 3]), ("texts", TensorProto.STRING, [2, 3])],
    )
    shot = captured(saved(proto, tmp_path / "a.onnx"), torch.from_numpy(X))
    reasons = {f"{absent.module}/{absent.what}": absent.reason for absent in shot.absent}
    assert "tensor(string)" in reasons["texts/output"]
    assert "seq(tensor(float))" in reasons["list/output"]
    assert "y/output" in shot


def test_parts_of_a_branch_are_listed_and_never_run(tmp_path: Path) -> None:
    def scoped(op: str, inputs: list[str], output: str, scope: str) -> onnx.NodeProto:
        node = helper.make_node(op, inputs, [output], name=f"node_{output}")
        for key, names in (
            ("name_scopes", ["", scope, "op"]),
            ("class_hierarchy", ["N", "C", "a"]),
        ):
            node.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=repr(names))
        return node

    def branch(op: str, name: str) -> onnx.GraphProto:
        inner = scoped(op, ["h"], f"{name}_y", name)
        value = helper.make_tensor_value_info(f"{name}_y", FLOAT, [2, 3])
        return helper.make_graph([inner], name, [], [value])

    chosen = scoped("If", ["flag"], "y", "choice")
    chosen.attribute.extend(
        helper.make_attribute(f"{side}_branch", branch(op, name))
        for side, op, name in (("then", "Relu", "left"), ("else", "Neg", "right"))
    )
    proto = model(
        [scoped("Abs", ["x"], "h", "body"), chosen],
        [("x", FLOAT, [2, 3]), ("flag", TensorProto.BOOL, [])],
        [("y", FLOAT, [2, 3])],
    )
    path = saved(proto, tmp_path / "a.onnx")
    shot = captured(path, (torch.from_numpy(X), torch.tensor(False)))
    assert torch.equal(shot["choice/output"], -torch.from_numpy(X).abs())
    assert torch.equal(shot["body/output"], torch.from_numpy(X).abs())
    unused = {layer.module: layer.reason for layer in shot.coverage.not_executed}
    assert set(unused) == {"left", "right"}
    assert all("subgraph of If" in reason for reason in unused.values())
    notes = {node.name: node.note for node in hookscope.tree(path).modules}
    assert notes["left"] == unused["left"] and not notes["body"]


def test_a_loop_is_one_module(tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["carried", "one"], ["next"]),
            helper.make_node("Identity", ["go"], ["go_on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried", FLOAT, [2, 3]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", FLOAT, [2, 3]),
        ],
    )
    proto = model(
        [helper.make_node("Loop", ["times", "yes", "x"], ["y"], name="loop", body=body)],
        [("x", FLOAT, [2, 3])],
        [("y", FLOAT, [2, 3])],
        {"times": np.array(3), "yes": np.array(True), "one": np.ones((), np.float32)},
    )
    shot = captured(saved(proto, tmp_path / "a.onnx"), torch.from_numpy(X))
    assert torch.equal(shot["loop/output"], torch.from_numpy(X) + 3)


def test_functions_of_the_file_are_inlined(tmp_path: Path) -> None:
    function = helper.make_function(
        "local",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"], name="double")],
        [helper.make_opsetid("", 20)],
    )
    proto = model(
        [
            helper.make_node("Twice", ["x"], ["h"], domain="local", name="t"),
            helper.make_node("Neg", ["h"], ["y"], name="neg"),
        ],
        [("x", FLOAT, [2, 3])],
        [("y", FLOAT, [2, 3])],
        opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("local", 1)],
        functions=[function],
    )
    shot = captured(saved(proto, tmp_path / "a.onnx"), torch.from_numpy(X))
    doubled = [shot[record.key] for record in shot.records if record.type == "Add"]
    assert len(doubled) == 1 and torch.equal(doubled[0], 2 * torch.from_numpy(X))


def test_an_input_that_the_file_has_a_value_for_need_not_be_given(tmp_path: Path) -> None:
    proto = two_layers()
    proto.graph.input.append(helper.make_tensor_value_info("b", FLOAT, [4]))
    shot = captured(saved(proto, tmp_path / "a.onnx"), torch.from_numpy(X))
    assert shot["./output"].shape == (2, 4)


def test_nodes_may_come_in_any_order(tmp_path: Path) -> None:
    proto = two_layers()
    nodes = list(proto.graph.node)
    proto.graph.ClearField("node")
    proto.graph.node.extend(reversed(nodes))
    path = saved(proto, tmp_path / "a.onnx")
    names = [node.name for node in hookscope.tree(path).modules]
    assert names == [".", "first", "first.MatMul", "first.Add", "y"]
    expected = session_values(path, {"x": X}, ["sum"])["sum"]
    assert np.array_equal(captured(path, torch.from_numpy(X))["first.Add/output"], expected)


def test_a_name_that_a_module_has_itself_is_no_obstacle(tmp_path: Path) -> None:
    proto = model(
        [
            helper.make_node("Relu", ["x"], ["h"], name="forward"),
            helper.make_node("Neg", ["h"], ["k"], name="training"),
            helper.make_node("Abs", ["k"], ["y"], name="a b[0]*"),
        ],
        [("x", FLOAT, [2, 3])],
        [("y", FLOAT, [2, 3])],
    )
    shot = captured(saved(proto, tmp_path / "a.onnx"), torch.from_numpy(X))
    x = torch.from_numpy(X)
    assert torch.equal(shot["forward/output"], x.relu())
    assert torch.equal(shot["training_/output"], -x.relu())
    assert [record.module for record in shot.records][2] == "a b[0]*"
