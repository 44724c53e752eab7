"""The tree of names: sizes of branches, selection, and how it is printed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import hookscope
from hookscope.errors import LayerError, RequestError
from hookscope.stores.weights.open_weights import open_weights
from hookscope.stores.weights.weight_tree import DtypeTotal, WeightTree
from hookscope.views import display
from hookscope.views.text.text_table import TextOptions
from tests.stores.weights.saved_weights import save_safetensors, save_torch


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weight = torch.randn(10, 4)
    saved = {
        "layers.10.weight": torch.randn(2, 3),
        "layers.2.weight": torch.randn(2, 3).half(),
        "layers.2.bias": torch.randn(3),
        "embed": weight,
        "head.weight": weight,
    }
    return save_torch(saved, tmp_path / "a.pth")


def test_branches_have_the_sums_of_their_tensors(model: Path) -> None:
    tree = hookscope.tree(model)
    assert [(n.name, n.depth, n.tensors, n.parameters, n.nbytes) for n in tree.nodes] == [
        (".", 0, 5, 55, 208),
        ("layers", 1, 3, 15, 48),
        ("layers.10", 2, 1, 6, 24),
        ("layers.10.weight", 3, 1, 6, 24),
        ("layers.2", 2, 2, 9, 24),
        ("layers.2.weight", 3, 1, 6, 12),
        ("layers.2.bias", 3, 1, 3, 12),
        ("embed", 1, 1, 40, 160),
        ("head", 1, 1, 0, 0),
        ("head.weight", 2, 1, 0, 0),
    ]
    assert tree.dtypes == (DtypeTotal("float32", 4, 49, 196), DtypeTotal("float16", 1, 6, 12))


def test_names_of_safetensors_are_in_natural_order(tmp_path: Path) -> None:
    saved = {f"h.{n}.w": torch.ones(1) for n in (10, 2, 1)}
    tree = hookscope.tree(save_safetensors(saved, tmp_path / "a.safetensors"), leaves=True)
    assert [node.name for node in tree.nodes] == ["h.1.w", "h.2.w", "h.10.w"]


def test_patterns_depth_and_leaves_select(model: Path) -> None:
    def names(**options) -> list[str]:
        return [node.name for node in hookscope.tree(model, **options).nodes]

    assert names(depth=1) == [".", "layers", "embed", "head"]
    assert names(layers="layers.2*") == ["layers.2", "layers.2.weight", "layers.2.bias"]
    assert names(layers=["layers.*", "!*.bias"], leaves=True) == [
        *("layers.10.weight", "layers.2.weight"),
    ]
    assert names(layers="(model)") == ["."]
    with pytest.raises(LayerError, match=r"No name in .* matches 'layer'") as caught:
        names(layers="layer")
    assert "Did you mean layers" in caught.value.hint
    with pytest.raises(LayerError, match="matches all of the filters"):
        names(layers="(model)", leaves=True)


def test_the_pattern_of_a_branch_selects_and_excludes_all_inside_it(model: Path) -> None:
    def names(*layers: str) -> list[str]:
        return [node.name for node in hookscope.tree(model, layers=layers, leaves=True).nodes]

    assert names("layers") == ["layers.10.weight", "layers.2.weight", "layers.2.bias"]
    assert names("layers.2") == ["layers.2.weight", "layers.2.bias"]
    assert names("!layers") == ["embed", "head.weight"]
    assert names("layers", "!layers.2") == ["layers.10.weight"]


def test_running_statistics_are_buffers_as_in_the_model(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    path = save_torch(model.state_dict(), tmp_path / "a.pth")
    tree = hookscope.tree(path)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    buffers = sum(buffer.numel() for buffer in model.buffers())
    assert (tree.total.parameters, tree.total.buffers) == (parameters, buffers)
    weights = tree.weights
    assert (weights.parameters, weights.buffers) == (parameters, buffers)
    assert weights.entries == parameters + buffers
    text = " ".join(str(line).strip() for line in display.text(tree, TextOptions(width=120)))
    assert f"{parameters} parameters, {buffers} buffer values" in text


def test_names_with_slashes_are_a_tree_too(tmp_path: Path) -> None:
    arrays = {"params/Dense_0/kernel": np.ones((2, 3)), "params/Dense_0/bias": np.ones(3)}
    np.savez(tmp_path / "a.npz", **arrays)
    tree = hookscope.tree(tmp_path / "a.npz")
    assert [node.name for node in tree.nodes] == [
        *(".", "params", "params/Dense_0", "params/Dense_0/kernel", "params/Dense_0/bias"),
    ]


def test_a_tensor_may_have_the_name_of_a_branch(tmp_path: Path) -> None:
    tree = hookscope.tree(save_torch({"a": torch.ones(2), "a.b": torch.ones(3)}, tmp_path / "a.pt"))
    assert [(n.name, n.parameters, n.tensor is not None) for n in tree.nodes] == [
        *((".", 5, False), ("a", 5, True), ("a.b", 3, True)),
    ]


@pytest.mark.parametrize(
    "options",
    [
        *({"types": "Conv2d"}, {"shapes": True}, {"shape": (1, 3)}, {"method": "encode"}),
        *({"model_args": {"width": 8}}, {"attn": "eager"}),
    ],
)
def test_options_of_models_are_refused(model: Path, options) -> None:
    [name] = options
    spelled = {"types": "type", "model_args": "model-arg"}.get(name, name)
    with pytest.raises(RequestError, match=f"--{spelled} is for models"):
        hookscope.tree(model, **options)


def test_the_text_has_totals_by_dtype_ties_and_metadata(tmp_path: Path) -> None:
    weight = torch.randn(4, 3)
    state = {"a.weight": weight, "b.weight": weight, "steps": torch.tensor(5)}
    checkpoint = {"state_dict": state, "optimizer": {"m": weight}, "note": "x" * 100}
    torch.save(checkpoint, tmp_path / "a.pth")
    tree = hookscope.tree(tmp_path / "a.pth")
    path = tmp_path / "a.pth"
    lines = [line.plain for line in display.text(tree, TextOptions())]
    assert lines[0].split() == ["tensor", "dtype", "shape", "parameters", "bytes", "note"]
    rows = [line.split() for line in lines[1:7]]
    assert rows[0] == ["(model)", "float32,int64", "-", "13", "56", "-"]
    assert rows[4] == ["b.weight", "float32", "4x3", "0", "0", "tied", "to", "a.weight"]
    assert rows[5] == ["steps", "int64", "scalar", "1", "8", "-"]
    assert lines[7:] == [
        f"{path}#state_dict (torch.save): 3 tensors, 13 parameters, 56 bytes, 1 tied, counted"
        " once.",
        "By dtype: float32 12 entries in 2 tensors (48 bytes), int64 1 entry in 1 tensor"
        " (8 bytes).",
        f"This is the part 'state_dict'. There is also {path}#optimizer (1 tensor).",
        f"note: {'x' * 60}...",
    ]
    verbose = [line.plain for line in display.text(tree, TextOptions(verbose=True))]
    assert verbose[-1] == f"note: {'x' * 100}"


def test_a_terminal_has_guides_and_every_width_fits(model: Path) -> None:
    tree = hookscope.tree(model)
    lines = [line.plain for line in display.text(tree, TextOptions(width=72))]
    assert lines[2].startswith("├─ layers ")
    assert lines[3].startswith("│  ├─ layers.10 ")
    for width in (20, 40, 60):
        wide = [line.plain for line in display.text(tree, TextOptions(width=width))]
        assert max(map(len, wide)) <= width


def test_a_notebook_shows_a_tree_and_a_document_has_all(model: Path) -> None:
    tree = hookscope.tree(model)
    assert "<td" in tree._repr_html_()
    assert repr(tree) == f"<WeightTree of {model}: 10 names, 55 parameters>"
    document = display.document(tree)
    assert document["command"] == "tree"
    assert document["total"]["parameters"] == 55
    assert [one["name"] for one in document["names"]] == [node.name for node in tree.nodes]
    assert document["names"][9]["tensor"]["tied_to"] == "embed"


def test_a_set_that_is_open_has_a_tree(model: Path) -> None:
    weights = hookscope.load(model)
    assert hookscope.tree(weights) == WeightTree.of(open_weights(model))
