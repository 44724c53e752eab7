"""Modules of which a file has other calls, or outputs in another order, than the model."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

import hookscope
from hookscope.file_analysis.value_matches import Fingerprint
from hookscope.results.diff_result import Diff
from tests.sources.onnx.conftest import export
from tests.zoo import Module

Make = Callable[[], nn.Module]
EXPORTERS = {"newer": {"dynamo": True, "external_data": False}, "older": {"dynamo": False}}


def loop() -> nn.Module:
    """Calls one residual block three times, by one line of code."""

    def forward(self: Any, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.block(x)
        return self.head(x)

    block = Module(
        lambda self, x: x + self.second(self.first(x).tanh()),
        first=nn.Linear(4, 6),
        second=nn.Linear(6, 4),
    )
    return Module(forward, block=block, head=nn.Linear(4, 2))


def swapped() -> nn.Module:
    """Uses the parts of a tuple: what is computed last, what is computed first, the input."""

    def pair(self: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one = self.one(x).tanh()
        return self.two(one).tanh(), one, x

    def forward(self: Any, x: Tensor) -> Tensor:
        left, right, passed = self.pair(x)
        return self.head(left - right * 2 + passed)

    parts = Module(pair, one=nn.Linear(4, 4), two=nn.Linear(4, 4))
    return Module(forward, pair=parts, head=nn.Linear(4, 4))


def turns() -> nn.Module:
    """Undoes the transpose at the end of a module before the next operation."""
    turned = Module(lambda self, x: self.inner(x).tanh().transpose(1, 2), inner=nn.Linear(4, 4))
    return Module(
        lambda self, x: self.head(self.turned(x).transpose(1, 2)),
        turned=turned,
        head=nn.Linear(4, 4),
    )


def outputs() -> nn.Module:
    """Returns a dict, of which the older exporter writes the values without the names."""

    def forward(self: Any, x: Tensor) -> dict[str, Tensor]:
        score = self.head(x)
        return {"loss": score * 3, "score": score.relu()}

    return Module(forward, head=nn.Linear(4, 4))


def built(make: Make) -> tuple[nn.Module, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return make().eval(), torch.randn(1, 3, 4)


@cache
def exported(kind: Make, exporter: str) -> bytes:
    model, x = built(kind)
    with TemporaryDirectory() as folder:
        return export(model, (x,), Path(folder) / "net.onnx", **EXPORTERS[exporter]).read_bytes()


def compared(
    kind: Make, exporter: str, folder: Path, fault: Callable[[onnx.ModelProto], None] | None = None
) -> Diff:
    model, x = built(kind)
    proto = onnx.load_from_string(exported(kind, exporter))
    if fault is not None:
        fault(proto)
    onnx.save(proto, folder / "net.onnx")
    found = hookscope.diff(model, folder / "net.onnx", input=x)
    assert isinstance(found, Diff)
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("kind", [loop, swapped, turns, outputs])
def test_a_correct_export_is_equal(kind: Make, exporter: str, tmp_path: Path) -> None:
    found = compared(kind, exporter, tmp_path)
    assert found.same, [row for row in found.rows if row.verdict == "differs"]


def test_calls_that_look_like_one_are_compared_with_the_last(tmp_path: Path) -> None:
    found = compared(loop, "newer", tmp_path)
    pairs = {row.key: (row.other, row.by) for row in found.rows}
    inner = [f"block.first{call}/output" for call in ("", ":2", ":3")]
    assert all(pairs[key] == (key, "name") for key in inner)
    assert pairs["block:3/output"] == ("block/output", "value")
    assert [t.key for t in found.only_a] == ["block/output", "block:2/output"]


def test_a_call_with_values_of_its_own_operators_is_compared_with_its_output(
    tmp_path: Path,
) -> None:
    found = compared(loop, "older", tmp_path)
    pairs = {row.key: (row.other, row.by) for row in found.rows if row.key.startswith("block")}
    assert pairs["block/output"] == ("block/output.0", "value")
    assert pairs["block:3/output"] == ("block:3/output", "name")
    assert not found.only_a


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_parts_of_a_tuple_are_found_by_their_values(exporter: str, tmp_path: Path) -> None:
    found = compared(swapped, exporter, tmp_path)
    pairs = {row.key: (row.other, row.by) for row in found.rows if row.key.startswith("pair/")}
    assert pairs == {
        "pair/output.0": ("pair/output.1", "value"),
        "pair/output.1": ("pair/output.0", "value"),
    }
    assert [t.key for t in found.only_a] == ["pair/output.2"]


def double(name: str) -> Callable[[onnx.ModelProto], None]:
    """A fault: a bias is twice as large."""

    def plant(proto: onnx.ModelProto) -> None:
        [tensor] = [tensor for tensor in proto.graph.initializer if tensor.name == name]
        array = numpy_helper.to_array(tensor) * 2
        tensor.CopyFrom(numpy_helper.from_array(array, name))

    return plant


def negate_last_tanh(proto: onnx.ModelProto) -> None:
    """A fault: the result of the last tanh is negated."""
    at, node = [(n, x) for n, x in enumerate(proto.graph.node) if x.op_type == "Tanh"][-1]
    result, node.output[0] = node.output[0], "positive"
    negative = helper.make_node("Neg", ["positive"], [result], f"{node.name}_1")
    negative.metadata_props.extend(node.metadata_props)
    proto.graph.node.insert(at + 1, negative)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(
    ("kind", "fault", "first"),
    [
        (loop, double("block.second.bias"), "block.second/output"),
        (swapped, double("pair.one.bias"), "pair.one/output"),
        (swapped, negate_last_tanh, "head/output"),  # pair/output.2 is in the file nowhere either
        (turns, double("turned.inner.bias"), "turned.inner/output"),
        (turns, negate_last_tanh, "turned/output"),
    ],
)
def test_a_planted_fault_is_found(
    kind: Make,
    fault: Callable[[onnx.ModelProto], None],
    first: str,
    exporter: str,
    tmp_path: Path,
) -> None:
    found = compared(kind, exporter, tmp_path, fault)
    assert not found.same and found.first is not None
    assert found.first.key == first


def test_values_that_have_few_bits_are_no_difference(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with torch.no_grad():
        model[0].weight.fill_(1.3e-43)
        model[0].bias.zero_()
    x = torch.rand(1, 3, 4)
    path = export(model.eval(), (x,), tmp_path / "net.onnx", dynamo=False)
    proto = onnx.load(path)
    for tensor in proto.graph.initializer:
        array = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(np.where(array, array * 2, array), tensor.name))
    onnx.save(proto, path)
    assert hookscope.diff(model, path, input=x).same


def test_a_fingerprint_tells_values_and_their_order() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(1000).astype(np.float32)
    own = Fingerprint.of([x])
    assert own.norm == pytest.approx(np.linalg.norm(x.astype(np.float64)))
    parts = Fingerprint.of([x[:300], x[300:]])
    assert own.deviation(parts) < 1e-14
    near = Fingerprint.of([x * (1 + 1e-6)])
    assert 0 < own.deviation(near) < 1e-5
    mixed = Fingerprint.of([rng.permutation(x)])
    assert own.deviation(mixed) > 1e-3 and own.deviation(mixed, ordered=False) < 1e-6
    assert own.deviation(Fingerprint.of([-x]), ordered=False) > 1e-3
    assert own.deviation(Fingerprint.of([rng.standard_normal(1000)])) > 1e-3
    empty = Fingerprint.of([np.zeros(3)])
    assert empty.deviation(Fingerprint.of([])) == 0
    assert np.isnan(Fingerprint.of([np.array([np.nan])]).deviation(own))
