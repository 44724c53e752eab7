"""Files exported by torch: the names, calls and values of the model's own modules."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import LayerError
from tests.oracle.by_hand import outputs
from tests.sources.onnx.conftest import Exported

CONVOLUTIONS = ["stem.0", "blocks.0.conv", "blocks.1.conv"]
NORMS = ["stem.1", "blocks.0.bn", "blocks.1.bn"]
DROPPED = ["blocks.0.drop", "blocks.1.drop"]
# Modules whose call the graph does not have: the list, and the weights that attention uses itself.
UNCALLED = ["blocks", "attention.out_proj"]


def hooked_values(model: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """What plain hooks of torch see, by the keys of a capture; of tuples the first tensor."""
    found = outputs(model, *inputs)
    return {key.removesuffix(".0"): found[key] for key in found if not key.startswith("./")}


def difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


@pytest.fixture(scope="module")
def expected(exported: Exported) -> dict[str, Tensor]:
    return hooked_values(exported.model, exported.inputs)


def values_of(path: Path, exported: Exported) -> dict[str, Tensor]:
    shot = hookscope.capture(path, input=exported.inputs)
    return {key: shot[key] for key in shot if not key.startswith("./")}


def without(values: dict[str, Tensor], names: list[str]) -> set[str]:
    return {key for key in values if key.partition("/")[0].partition(":")[0] not in names}


def left_out(path: Path) -> list[str]:
    """The dropouts that a file does not name; exporters since torch 2.11 leave out all."""
    return [name for name in DROPPED if name.encode() not in path.read_bytes()]


def test_every_call_of_an_unoptimized_file_has_the_values_of_torch(
    exported: Exported, expected: dict[str, Tensor]
) -> None:
    found = values_of(exported.unoptimized, exported)
    assert set(found) == without(expected, [*left_out(exported.unoptimized), *UNCALLED])
    assert all(difference(found[key], expected[key]) < 1e-5 for key in found)
    assert "blocks.0.relu:4/output" in found and "stem:2/output" in found


def test_a_folded_convolution_is_gone_and_its_norm_has_the_value(
    exported: Exported, expected: dict[str, Tensor]
) -> None:
    found = values_of(exported.optimized, exported)
    shared = ["blocks.0.conv", "stem.0"]  # convolutions that are called twice are not folded
    gone = [name for name in CONVOLUTIONS if name not in shared]
    kept = set(found) & set(expected)
    assert set(found) == kept
    assert not kept & {f"{name}/output" for name in gone}
    assert {f"{name}/output" for name in NORMS} <= kept
    assert all(difference(found[key], expected[key]) < 1e-5 for key in kept)


def test_the_older_exporter_folds_the_norm_into_the_convolution(
    exported: Exported, expected: dict[str, Tensor]
) -> None:
    found = values_of(exported.older, exported)
    for convolution, norm in zip(CONVOLUTIONS, NORMS, strict=True):
        assert difference(found[f"{convolution}/output"], expected[f"{norm}/output"]) < 1e-5
        assert f"{norm}/output" not in found
    # Names do not tell where the second of two calls begins that follow each other directly.
    stem = {"stem/output.0": "stem/output", "stem/output.1": "stem:2/output"}
    expected = expected | {key: expected[own] for key, own in stem.items()}
    others = without(found, CONVOLUTIONS)
    plain = without(expected, [*CONVOLUTIONS, *NORMS, *DROPPED, *UNCALLED])
    assert others == plain - set(stem.values())
    assert all(difference(found[key], expected[key]) < 1e-5 for key in others)
    notes = {node.name: node.note for node in hookscope.tree(exported.older).modules if node.note}
    assert set(notes) == set(CONVOLUTIONS)
    assert all("exporter" in note for note in notes.values())


def test_modules_have_the_names_and_classes_of_the_model(exported: Exported) -> None:
    nodes = {node.name: node for node in hookscope.tree(exported.unoptimized).modules}
    own = {name or ".": module for name, module in exported.model.named_modules()}
    assert set(nodes) == set(own) - {*left_out(exported.unoptimized), "attention.out_proj"}
    kinds = {name: type(module).__name__ for name, module in own.items()}
    assert {n: node.type for n, node in nodes.items() if n != "blocks"} == {
        name: kinds[name] for name in nodes if name != "blocks"
    }


def test_an_unoptimized_file_has_the_parameters_and_buffers_of_the_model(
    exported: Exported,
) -> None:
    found = hookscope.load_model(exported.unoptimized).module
    own = dict(exported.model.named_parameters())
    moved = {"attention.out_proj.weight": "attention.weight", "attention.out_proj.bias": None}
    for name, parameter in found.named_parameters():
        if name in own:
            assert torch.equal(parameter, own[name]), name
    names = {moved.get(name, name) for name in own} - {None}
    assert {name for name in names if name.split(".")[0] != "attention"} <= {
        name for name, _ in found.named_parameters()
    }
    statistics = {n for n, _ in exported.model.named_buffers() if "num_batches" not in n}
    assert {name for name, _ in found.named_buffers()} == statistics


def test_the_tree_says_what_became_of_each_absent_module(exported: Exported) -> None:
    tree = hookscope.tree(exported.optimized)
    absent = {module.name: module.reason for module in tree.absent}
    assert set(absent) == {"blocks.1.conv", "attention.out_proj"}
    assert "blocks.1.bn" in absent["blocks.1.conv"]
    assert absent["attention.out_proj"].endswith(" attention")
    with pytest.raises(LayerError, match=r"blocks.1.conv is not in .*: folded into blocks.1.bn"):
        hookscope.capture(exported.optimized, layers=["blocks.1.conv"])


def test_the_tree_of_shapes_comes_from_the_graph_without_a_run(exported: Exported) -> None:
    proto = onnx.load(exported.optimized)
    assert not proto.graph.initializer[0].data_location
    nodes = {node.name: node for node in hookscope.tree(exported.optimized, shapes=True).modules}
    assert nodes["blocks.0"].run is not None
    assert nodes["blocks.0"].run.calls == 2
    assert nodes["blocks.0"].run.outputs == ("1x4x6x6",)


def test_the_order_of_calls_is_that_of_the_model(exported: Exported) -> None:
    order: list[str] = []
    absent = (*left_out(exported.unoptimized), *UNCALLED)
    handles = [
        module.register_forward_hook(lambda m, i, o, name=name: order.append(name))
        for name, module in exported.model.named_modules()
        if name and name not in absent
    ]
    with torch.no_grad():
        exported.model(*exported.inputs)
    for handle in handles:
        handle.remove()
    shot = hookscope.capture(exported.unoptimized, input=exported.inputs)
    assert [r.module for r in shot.records if r.module != "."] == order


@pytest.mark.parametrize("name", ["optimized", "older"])
def test_a_list_of_modules_is_a_container_and_no_layer_that_never_runs(
    name: str, exported: Exported
) -> None:
    path = getattr(exported, name)
    assert not hookscope.check(path, input=exported.inputs, only="uncalled").findings
    shot = hookscope.capture(path, input=exported.inputs)
    reasons = {layer.module: layer.reason for layer in shot.coverage.not_executed}
    assert reasons["blocks"].startswith("a container")
