"""``hookscope diff`` of a model and an ONNX file of it names the module in which a fault is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import hookscope
from hookscope.errors import InputError, RequestError
from tests.conftest import REPO
from tests.sources.onnx.conftest import export
from tests.zoo import Module

KINDS = ("optimized", "unoptimized", "older")
OPTIONS: dict[str, dict[str, bool]] = {
    "optimized": {"external_data": False},
    "unoptimized": {"external_data": False, "optimize": False},
    "older": {"dynamo": False},
}
Fault = Callable[[onnx.ModelProto], None]


def net(seed: int = 5, epsilon: float = 1e-5) -> Any:
    """A module for each fault: a padding, an epsilon, a division, a square weight; in eval mode.

    ``epsilon`` is that of the batch norm after the second convolution. ``last`` is a module whose
    last convolution is followed by a norm that is not in it.
    """

    def forward(self: Module, x: Tensor) -> Tensor:
        x = self.norm(self.act(self.conv(x)))
        x = self.share(self.outside(self.last(self.body(x) * 10)))
        return self.head(x.mean((2, 3)))

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        second = nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4), nn.Dropout()
        made: Any = Module(
            forward,
            conv=nn.Conv2d(1, 4, 3, padding=1),
            act=nn.ReLU(),
            norm=nn.BatchNorm2d(4),
            body=nn.Sequential(*second),
            last=nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 1)),
            outside=nn.BatchNorm2d(4),
            share=Module(lambda self, x: x / 3),
            head=nn.Linear(4, 4),
        ).eval()
        for module in made.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.running_mean, -0.5, 0.5)
                nn.init.uniform_(module.running_var, 0.5, 2)
    made.body[1].eps = epsilon
    return made


def image() -> Tensor:
    return torch.randn(1, 1, 6, 6, generator=torch.Generator().manual_seed(1))


def set_attribute(op: str, attribute: str, value: Any) -> Fault:
    """A fault: the first node of an operator has another attribute."""

    def plant(proto: onnx.ModelProto) -> None:
        node = next(node for node in proto.graph.node if node.op_type == op)
        kept = [entry for entry in node.attribute if entry.name != attribute]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(attribute, value)])

    return plant


def transpose_weight(proto: onnx.ModelProto) -> None:
    """A fault: the weight of the last layer is transposed."""
    [last] = [node for node in proto.graph.node if node.op_type in ("Gemm", "MatMul")]
    tensor = next(tensor for tensor in proto.graph.initializer if tensor.name == last.input[1])
    array = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array.T), tensor.name))


def divide_integers(proto: onnx.ModelProto) -> None:
    """A fault: the quotient has no fraction, as that of integers."""
    at, node = next((n, x) for n, x in enumerate(proto.graph.node) if x.op_type == "Div")
    result, node.output[0] = node.output[0], "quotient"
    scopes = list(node.metadata_props)
    casts = [
        helper.make_node("Cast", ["quotient"], ["whole"], f"{node.name}_1", to=TensorProto.INT64),
        helper.make_node("Cast", ["whole"], [result], f"{node.name}_2", to=TensorProto.FLOAT),
    ]
    for offset, cast in enumerate(casts, 1):
        cast.metadata_props.extend(scopes)
        proto.graph.node.insert(at + offset, cast)


def other_epsilon(proto: onnx.ModelProto) -> None:
    """A fault: the batch norm ``body.1`` has another epsilon."""
    [node] = [node for node in proto.graph.node if "body.1.weight" in node.input]
    [epsilon] = [entry for entry in node.attribute if entry.name == "epsilon"]
    epsilon.f = 1e-2


@dataclass(frozen=True)
class Files:
    """The net, exported in three ways, and with another epsilon of ``body.1``."""

    right: dict[str, Path]
    wrong_epsilon: dict[str, Path]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("exported")

    def exported(model: nn.Module, name: str, *kinds: str) -> dict[str, Path]:
        return {
            kind: export(model, (image(),), folder / f"{name}_{kind}.onnx", **OPTIONS[kind])
            for kind in kinds or KINDS
        }

    right = exported(net(), "right")
    # Without optimization nothing is folded: the fault is one attribute of the file.
    files = {"unoptimized": planted(right["unoptimized"], other_epsilon, folder)}
    files |= exported(net(epsilon=1e-2), "epsilon", "optimized", "older")
    return Files(right, files)


def planted(path: Path, fault: Fault, folder: Path) -> Path:
    proto = onnx.load(path)
    fault(proto)
    onnx.save(proto, folder / "planted.onnx")
    return folder / "planted.onnx"


def test_a_picture_of_another_size_is_read_as_the_file_takes_it(files) -> None:
    assert hookscope.diff(net(), files.right["optimized"], input=str(REPO / "img.png")).same


@pytest.mark.parametrize("kind", KINDS)
def test_a_correct_export_is_equal_and_every_module_is_accounted_for(files, kind) -> None:
    found = hookscope.diff(net(), files.right[kind], input=image(), strict=True)
    assert found.same and found.engines and found.module is None
    assert found.rows[-1].key == "./output"
    keys = {row.key for row in found.rows} | {tensor.key for tensor in found.only_a}
    assert "body.2/output" in keys  # a dropout, which only some exporters leave out
    assert all(tensor.reason for tensor in found.only_b)


@pytest.mark.parametrize(
    ("kind", "words"), [("optimized", "into body.1"), ("older", "norm body.1")]
)
def test_a_folded_module_is_listed_with_the_reason(files, kind, words) -> None:
    found = hookscope.diff(net(), files.right[kind], input=image())
    reasons = {tensor.key: tensor.reason for tensor in found.only_a}
    inside = {key for key in reasons if not key.startswith("last")}
    assert inside == {"body.0/output", "body.2/output"}
    assert words in reasons["body.0/output"] and "left it out" in reasons["body.2/output"]
    assert "last.1/output" in reasons and "last.1" in reasons["last/output"]
    assert [tensor.reason for tensor in found.only_b] == [reasons["last/output"]]
    assert "body.1/output" in {row.key for row in found.rows}


FAULTS: list[tuple[str, Fault]] = [
    ("conv", set_attribute("Conv", "pads", [2, 2, 0, 0])),
    ("norm", set_attribute("BatchNormalization", "epsilon", 1e-2)),
    ("share", divide_integers),
    ("head", transpose_weight),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("module", "fault"), FAULTS, ids=[module for module, _ in FAULTS])
def test_a_planted_fault_is_named_at_its_module(files, tmp_path, kind, module, fault) -> None:
    path = planted(files.right[kind], fault, tmp_path)
    found = hookscope.diff(net(), path, input=image())
    assert found.first is not None
    assert (found.first.key, found.same) == (f"{module}/output", False)
    swapped = hookscope.diff(path, net(), input=image())
    assert swapped.first is not None and swapped.first.key.startswith(f"{module}/")


@pytest.mark.parametrize("kind", KINDS)
def test_an_epsilon_that_was_wrong_before_folding_is_named(files, kind) -> None:
    found = hookscope.diff(net(), files.wrong_epsilon[kind], input=image())
    assert found.first is not None and found.first.key == "body.1/output"


def test_a_folded_norm_is_named_on_whichever_side_the_file_is(files) -> None:
    found = hookscope.diff(files.wrong_epsilon["older"], net(), input=image())
    assert found.first is not None
    assert (found.first.key, found.first.other, found.first.by) == (
        *("body.0/output", "body.1/output"),
        "fold",
    )


@pytest.mark.parametrize("a", KINDS)
@pytest.mark.parametrize("b", KINDS)
def test_two_files_are_compared_whichever_exporter_wrote_them(files, a, b) -> None:
    equal = hookscope.diff(files.right[a], files.right[b], input=image(), strict=True)
    assert equal.same
    assert {"conv/output", "share/output", "head/output"} <= {row.key for row in equal.rows}
    found = hookscope.diff(files.right[a], files.wrong_epsilon[b], input=image())
    assert found.first is not None
    assert "body.1/output" in (found.first.key, found.first.other) or a == b == "older"
    assert found.first.key.startswith("body.")


def test_the_operators_and_parameters_of_the_first_difference_are_told(files, tmp_path) -> None:
    path = planted(files.right["unoptimized"], FAULTS[1][1], tmp_path)
    module = hookscope.diff(net(), path, input=image()).module
    assert module is not None and module.names == ("norm", "norm")
    assert module.descriptions[0].startswith("BatchNorm2d(4, eps=1e-05")
    assert module.descriptions[1].startswith("BatchNormalization(epsilon=0.01")
    assert set(module.equal) >= {"norm.weight", "norm.running_var"} and not module.unequal
    path = planted(files.right["unoptimized"], transpose_weight, tmp_path)
    module = hookscope.diff(net(), path, input=image()).module
    assert module is not None
    assert (module.transposed, module.equal) == (("head.weight",), ("head.bias",))


def test_the_tolerance_is_a_share_of_the_largest_value(files) -> None:
    found = hookscope.diff(net(), files.right["unoptimized"], input=image())
    shot = hookscope.capture(net(), input=image())
    for row in found.rows:
        largest = shot[row.key].abs().max().item()
        assert (row.rtol, row.atol) == (1e-4, pytest.approx(1e-4 * largest, rel=1e-6))
    exact = hookscope.diff(net(), files.right["older"], input=image(), atol=0, rtol=0)
    assert not exact.same and not exact.engines and exact.rows[0].atol == 0


# The command


# The levels of onnxruntime's optimization


@pytest.fixture
def overflowing(tmp_path: Path) -> Path:
    """A graph whose batch norm overflows only if it is folded into the convolution.

    The convolution multiplies by 1e30 and the norm by 1e10; of an input of 1e-30 the result is
    1e10, but the product of both factors is not a float32.
    """
    arrays = {"weight": np.full((1, 1, 1, 1), 1e30), "scale": np.full(1, 1e10), "var": np.ones(1)}
    arrays |= {"bias": np.zeros(1), "mean": np.zeros(1)}
    names = ["conv_out", "scale", "bias", "mean", "var"]
    nodes = [
        helper.make_node("Conv", ["x", "weight"], ["conv_out"], "/block/conv/Conv"),
        helper.make_node("BatchNormalization", names, ["norm_out"], "/block/norm/Norm"),
        helper.make_node("Relu", ["norm_out"], ["y"], "/act/Relu"),
    ]
    x, y = (helper.make_tensor_value_info(name, 1, [1, 1, 2, 2]) for name in "xy")
    initial = [numpy_helper.from_array(a.astype(np.float32), name) for name, a in arrays.items()]
    graph = helper.make_graph(nodes, "overflowing", [x], [y], initial)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(proto, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def test_a_fault_of_the_optimizer_is_told_from_one_of_the_exporter(overflowing) -> None:
    x = torch.full((1, 1, 2, 2), 1e-30)
    levels = ["none", "all"]
    found = hookscope.diff(overflowing, overflowing, onnx_optimize=levels, input=x)
    assert [row.verdict for row in found.rows] == ["equal", *["differs"] * 4]
    assert found.first is not None and found.first.key == "block.norm/output"
    same = hookscope.diff(overflowing, overflowing, onnx_optimize="none", input=x)
    assert same.same
    alone = hookscope.diff(overflowing, overflowing, onnx_optimize=levels, input=x, layers="*.conv")
    assert alone.same


def test_options_that_one_of_both_does_not_have_go_to_the_other(files) -> None:
    path = files.right["unoptimized"]
    found = hookscope.diff(net(), path, input=image(), dtype="float64", onnx_optimize="all")
    assert found.same and found.rows[0].dtypes == ("float64", "float32")
    with pytest.raises(RequestError, match="onnx_optimize"):
        hookscope.diff(net(), net(), input=image(), onnx_optimize="all")
    with pytest.raises(RequestError, match=r"^B: An ONNX file"):
        hookscope.diff(net(), path, input=image(), dtype=["float64", "float16"])


# The input


def test_without_an_input_the_file_says_which_and_outputs_match_by_position(tmp_path) -> None:
    model = Module(lambda self, left, right: (left + right, left - right))
    inputs = torch.zeros(2, 3), torch.zeros(2, 3)
    path = export(model, inputs, tmp_path / "sum.onnx", dynamo=False)
    found = hookscope.diff(model, path)
    assert found.same and [row.shapes[0] for row in found.rows] == [(2, 3)] * 2
    assert [row.by for row in found.rows] == ["order"] * 2
    assert found.a["arguments"] == found.b["arguments"] != []
    with pytest.raises(InputError, match=r"2x3.* 4x3"):
        hookscope.diff(model, path, input=(torch.zeros(4, 3), torch.zeros(4, 3)))
