"""What is inside ``If``, ``Loop`` and ``Scan`` is listed with its tensors, and never called."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
from tests.sources.onnx.handmade import FLOAT, INT64, Value, model, saved, session_values

BOOL = TensorProto.BOOL
X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
A, B = (np.random.default_rng(seed).standard_normal((3, 3), np.float32) for seed in (1, 2))
node = helper.make_node


def subgraph(
    nodes: Sequence[onnx.NodeProto],
    output: str,
    tensors: Mapping[str, np.ndarray[Any, Any]] | None = None,
    inputs: Sequence[Value] = (),
    first_output: str = "",
) -> onnx.GraphProto:
    outputs = [(first_output, BOOL, [])] * bool(first_output) + [(output, FLOAT, [2, 3])]
    return helper.make_graph(
        list(nodes),
        "subgraph",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        [numpy_helper.from_array(array, name) for name, array in (tensors or {}).items()],
    )


def constant(name: str, array: np.ndarray[Any, Any]) -> onnx.NodeProto:
    return node("Constant", [], [name], value=numpy_helper.from_array(array))


def chosen(then: onnx.GraphProto, other: onnx.GraphProto, output: str = "y") -> onnx.NodeProto:
    return node("If", ["flag"], [output], "If_0", then_branch=then, else_branch=other)


def with_flag(*nodes: onnx.NodeProto, **options: Any) -> onnx.ModelProto:
    inputs = [("x", FLOAT, [2, 3]), ("flag", BOOL, [])]
    return model(nodes, inputs, [("y", FLOAT, [2, 3])], **options)


def product(name: str = "fc", weight: str = "w", output: str = "out") -> onnx.NodeProto:
    return node("MatMul", ["x", weight], [output], name)


def by_a_branch() -> onnx.ModelProto:
    """A tensor in the list of one branch, and one of the same name in a node of the other."""
    return with_flag(
        chosen(
            subgraph([product()], "out", {"w": A}),
            subgraph([constant("w", B), product()], "out"),
        )
    )


def by_an_inlined_function() -> onnx.ModelProto:
    """Each branch calls a function of the file, which has the weights, as a scripted model does."""
    functions = [
        helper.make_function(
            "local",
            name,
            ["a"],
            ["b"],
            [constant("w", array), node("MatMul", ["a", "w"], ["b"], "fc")],
            [helper.make_opsetid("", 20)],
        )
        for name, array in (("First", A), ("Second", B))
    ]
    branches = (
        subgraph([node(name, ["x"], ["out"], domain="local")], "out")
        for name in ("First", "Second")
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    return with_flag(chosen(*branches), opset_imports=imports, functions=functions)


def by_the_main_graph() -> onnx.ModelProto:
    """Both weights are in the main graph, as tools write it that remove what is there twice."""
    return with_flag(
        chosen(subgraph([product(weight="a")], "out"), subgraph([product(weight="b")], "out")),
        tensors={"a": A, "b": B},
    )


def by_a_sparse_tensor() -> onnx.ModelProto:
    indices = numpy_helper.from_array(np.arange(9, dtype=np.int64), "places")
    flat = numpy_helper.from_array(B.reshape(-1), "w")
    sparse = helper.make_sparse_tensor(flat, indices, [3, 3])
    other = subgraph([product()], "out")
    other.sparse_initializer.append(sparse)
    first = subgraph([constant("w", A), product()], "out")
    return with_flag(chosen(first, other))


def nested() -> onnx.ModelProto:
    """A branch in a branch."""
    inner = chosen(
        subgraph([product()], "out", {"w": B}), subgraph([node("Neg", ["x"], ["n"])], "n"), "deep"
    )
    first = subgraph([product()], "out", {"w": A})
    return with_flag(chosen(first, subgraph([inner], "deep")))


@pytest.mark.parametrize(
    ("made", "names"),
    [
        (by_a_branch, ("If_0.then_branch.fc", "If_0.else_branch.fc")),
        # The package onnx numbers what it inlines; the helper of the test sorts the branches.
        (by_an_inlined_function, ("If_0.then_branch.fc__2", "If_0.else_branch.fc__1")),
        (by_the_main_graph, ("If_0.then_branch.fc", "If_0.else_branch.fc")),
        (by_a_sparse_tensor, ("If_0.then_branch.fc", "If_0.else_branch.fc")),
        (nested, ("If_0.then_branch.fc", "If_0.else_branch.If_0.then_branch.fc")),
    ],
)
def test_the_tensors_of_branches_are_those_of_the_modules_that_use_them(
    made: Any, names: tuple[str, str], tmp_path: Path, run: Run
) -> None:
    path = saved(made(), tmp_path / "net.onnx")
    module = hookscope.load_model(path).module
    for name, array in zip(names, (A, B), strict=True):
        assert np.array_equal(module.get_submodule(name).weight.numpy(), array), name
    assert sum(p.numel() for p in module.parameters()) == A.size + B.size
    shot = hookscope.capture(path, input=(torch.from_numpy(X), torch.tensor(True)))
    expected = session_values(path, {"x": X, "flag": np.array(True)}, ["y"])["y"]
    assert np.array_equal(shot["If_0/output"].numpy(), expected)
    reasons = {layer.module: layer.reason for layer in shot.coverage.not_executed}
    assert all("subgraph of If" in reasons[name] for name in names)
    done = run("check", path)
    assert (done.rc, done.stdout.splitlines()[0][:9]) == (0, "11 checks")


def test_a_file_whose_nodes_are_all_in_branches_has_its_size_and_its_layers(
    tmp_path: Path, run: Run
) -> None:
    """As a voice detector with a model for each of two sampling rates."""

    def rate(tag: str) -> onnx.GraphProto:
        prefix = f"If_0_{tag}__Inline_0__"
        weight = np.random.default_rng(len(tag)).standard_normal((128, 256), np.float32)
        nodes = [
            constant(f"{prefix}stft.basis", weight),
            node("MatMul", ["state", f"{prefix}stft.basis"], [f"{prefix}m"], f"{prefix}/stft/Mul"),
            node("Relu", [f"{prefix}m"], [f"{prefix}out"], f"{prefix}/encoder/0/Relu"),
        ]
        value = helper.make_tensor_value_info(f"{prefix}out", FLOAT, [2, 1, 256])
        return helper.make_graph(nodes, tag, [], [value])

    proto = model(
        [
            constant("rate", np.array(16000)),
            node("Equal", ["sr", "rate"], ["is16"]),
            node(
                "If", ["is16"], ["y"], "If_0", then_branch=rate("then"), else_branch=rate("else_")
            ),
        ],
        [("state", FLOAT, [2, 1, 128]), ("sr", INT64, [])],
        [("y", FLOAT, [2, 1, 256])],
    )
    path = saved(proto, tmp_path / "vad.onnx")
    document = json.loads(run("tree", path, "--json").stdout)
    assert document["total"]["parameters"] == 2 * 128 * 256
    assert document["total"]["bytes"] == 4 * 2 * 128 * 256
    layers = {layer["name"] for layer in document["modules"]}
    assert "If_0.then_branch.If_0_then__Inline_0__.stft.Mul" in layers
    shapes = run("tree", path, "--shapes").stdout
    assert sum("subgraph of If" in line for line in shapes.splitlines()) == len(layers) - 3


def test_the_bodies_of_loops_are_listed_with_their_tensors(tmp_path: Path, run: Run) -> None:
    loop = subgraph(
        [
            node("MatMul", ["carried", "w"], ["m"], "fc"),
            node("Add", ["m", "b"], ["next"], "add"),
            node("Identity", ["go"], ["go_on"]),
        ],
        "next",
        {"w": A, "b": B[0]},
        [("i", INT64, []), ("go", BOOL, []), ("carried", FLOAT, [2, 3])],
        "go_on",
    )
    row = [("state", FLOAT, [3]), ("row", FLOAT, [3])]
    scan = helper.make_graph(
        [node("Mul", ["row", "v"], ["scaled"], "gain"), node("Identity", ["state"], ["same"])],
        "scan",
        [helper.make_tensor_value_info(*value) for value in row],
        [helper.make_tensor_value_info(name, FLOAT, [3]) for name in ("same", "scaled")],
        [numpy_helper.from_array(B[1], "v")],
    )
    proto = model(
        [
            node("Loop", ["times", "yes", "x"], ["h"], "loop", body=loop),
            node("Scan", ["start", "h"], ["last", "y"], "scan", body=scan, num_scan_inputs=1),
        ],
        [("x", FLOAT, [2, 3])],
        [("y", FLOAT, [2, 3])],
        {"times": np.array(3), "yes": np.array(True), "start": np.zeros(3, np.float32)},
    )
    path = saved(proto, tmp_path / "net.onnx")
    module = hookscope.load_model(path).module
    expected = {"loop.body.fc.weight": A, "loop.body.add.bias": B[0], "scan.body.gain.weight": B[1]}
    own = {name: p.numpy() for name, p in module.named_parameters() if ".body." in name}
    assert own.keys() == expected.keys()
    assert all(np.array_equal(own[name], expected[name]) for name in own)
    value = hookscope.capture(path, input=torch.from_numpy(X)).output
    assert np.array_equal(value.numpy(), session_values(path, {"x": X}, ["y"])["y"])
    assert run("check", path, "--skip", "dead").rc == 0


def test_modules_named_by_the_nodes_of_branches_alone_are_modules(tmp_path: Path) -> None:
    """The older exporter writes names of modules, and here every module is in a branch."""
    branches = (
        subgraph(
            [product(f"/{name}/MatMul"), node("Cast", ["out"], ["cast"], to=1)], "cast", {"w": w}
        )
        for name, w in (("left", A), ("right", B))
    )
    path = saved(with_flag(chosen(*branches)), tmp_path / "net.onnx")
    counts = {part.name: part.own_parameters for part in hookscope.tree(path).modules}
    assert counts == {".": 0, "If_0": 0, "left": 9, "right": 9}


def test_nan_in_a_branch_is_a_finding(tmp_path: Path) -> None:
    broken = A.copy()
    broken[0, 0] = np.nan
    proto = with_flag(
        chosen(subgraph([product()], "out"), subgraph([node("Neg", ["x"], ["n"])], "n")),
        tensors={"w": broken},
    )
    path = saved(proto, tmp_path / "net.onnx")
    value = (torch.from_numpy(X), torch.tensor(False))
    [finding] = hookscope.check(path, input=value, only="nan").findings
    assert finding.layer == "If_0.then_branch.fc"


def test_a_tensor_of_a_branch_may_be_in_another_file(tmp_path: Path) -> None:
    proto = by_a_branch()
    tensor = proto.graph.node[0].attribute[1].g.initializer[0]
    assert tensor.name == "w"
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("length", str(A.nbytes))):
        tensor.external_data.add(key=key, value=value)
    (tmp_path / "w.bin").write_bytes(A.tobytes())
    module = hookscope.load_model(saved(proto, tmp_path / "net.onnx")).module
    assert np.array_equal(module.get_submodule("If_0.then_branch.fc").weight.numpy(), A)


def test_a_tensor_of_a_branch_with_too_few_bytes_is_an_error(tmp_path: Path) -> None:
    proto = by_a_branch()
    proto.graph.node[0].attribute[1].g.initializer[0].raw_data = b"1234"
    with pytest.raises(ModelError, match=r"'w'.*3x3"):
        hookscope.tree(saved(proto, tmp_path / "net.onnx"))
