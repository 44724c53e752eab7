"""The tree of names: sizes of branches, selection, and how it is printed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from blake3 import blake3
from torch import nn

import hookscope
from hookscope.errors import LayerError, RequestError
from hookscope.stores.weights.open_weights import open_weights
from hookscope.stores.weights.weight_tree import DtypeTotal, WeightTree
from hookscope.views import display
from hookscope.views.text.text_table import TextOptions
from tests.refusals import refused
from tests.stores.weights.saved_weights import FORMATS, save_safetensors, save_torch, state, views


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
    assert [(n.name, n.depth, n.tensors, n.parameters, n.nbytes) for n in tree.modules] == [
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


def test_patterns_depth_and_leaves_select(model: Path) -> None:
    def names(**options) -> list[str]:
        return [node.name for node in hookscope.tree(model, **options).modules]

    assert names(depth=1) == [".", "layers", "embed", "head"]
    assert names(layers="layers.2*") == ["layers.2", "layers.2.weight", "layers.2.bias"]
    assert names(layers=["layers.*", "!*.bias"], leaves=True) == [
        *("layers.10.weight", "layers.2.weight"),
    ]
    assert names(layers="(model)") == ["."]
    with refused(LayerError, r"No name in .* matches 'layer'", hint="Did you mean layers"):
        names(layers="layer")
    with pytest.raises(LayerError, match="all"):
        names(layers="(model)", leaves=True)


def test_the_pattern_of_a_branch_selects_and_excludes_all_inside_it(model: Path) -> None:
    def names(*layers: str) -> list[str]:
        return [node.name for node in hookscope.tree(model, layers=layers, leaves=True).modules]

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
    assert [node.name for node in tree.modules] == [
        *(".", "params", "params/Dense_0", "params/Dense_0/kernel", "params/Dense_0/bias"),
    ]


def test_a_tensor_may_have_the_name_of_a_branch(tmp_path: Path) -> None:
    tree = hookscope.tree(save_torch({"a": torch.ones(2), "a.b": torch.ones(3)}, tmp_path / "a.pt"))
    assert [(n.name, n.parameters, n.tensor is not None) for n in tree.modules] == [
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
    with pytest.raises(RequestError, match=f"^{name} is for models"):
        hookscope.tree(model, **options)


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
    assert [one["name"] for one in document["modules"]] == [node.name for node in tree.modules]
    assert document["modules"][9]["tensor"]["tied_to"] == "embed"


def test_a_set_that_is_open_has_a_tree(model: Path) -> None:
    weights = hookscope.load(model)
    assert hookscope.tree(weights) == WeightTree.of(open_weights(model))


def by_hand(tensors: dict[str, torch.Tensor]) -> tuple[str, str]:
    """The hashes as ``docs/weight-files.md`` defines them."""
    architecture, weights = blake3(), blake3()
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        shape = list(tensor.shape)
        dtype = str(tensor.dtype).removeprefix("torch.")
        architecture.update(json.dumps([name, shape], separators=(",", ":")).encode() + b"\n")
        weights.update(json.dumps([name, dtype, shape], separators=(",", ":")).encode() + b"\n")
        weights.update(bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist()))
    return architecture.hexdigest(), weights.hexdigest()


@pytest.mark.parametrize("kind", FORMATS)
def test_they_are_those_of_the_definition_in_every_format(tmp_path: Path, kind: str) -> None:
    hashes = hookscope.tree(FORMATS[kind](state(), tmp_path), hash=True)
    assert (hashes.architecture, hashes.weights) == by_hand(state())


@pytest.fixture(autouse=True)
def same_state(monkeypatch) -> None:
    torch.manual_seed(0)
    fixed = state()
    monkeypatch.setitem(globals(), "state", lambda: fixed)


def test_views_and_dtypes_without_numpy_are_hashed_as_stored(tmp_path: Path) -> None:
    saved = views()
    hashes = hookscope.tree(save_torch(saved, tmp_path / "a.pth"), hash=True)
    assert (hashes.architecture, hashes.weights) == by_hand(saved)


def test_what_changes_each_of_them(tmp_path: Path) -> None:
    def hashes(tensors: dict[str, torch.Tensor], name: str) -> tuple[str, str]:
        made = hookscope.tree(save_safetensors(tensors, tmp_path / name), hash=True)
        return made.architecture, made.weights

    base = {"w": torch.ones(2, 3), "b": torch.zeros(3)}
    architecture, weights = hashes(base, "a.safetensors")
    changed = hashes({**base, "b": torch.full((3,), 1e-45)}, "b.safetensors")
    assert changed[0] == architecture and changed[1] != weights
    narrower = hashes({n: t.half() for n, t in base.items()}, "c.safetensors")
    assert narrower[0] == architecture and narrower[1] != weights
    turned = hashes({**base, "w": torch.ones(3, 2)}, "d.safetensors")
    renamed = hashes({"v": base["w"], "b": base["b"]}, "e.safetensors")
    assert len({architecture, turned[0], renamed[0]}) == 3
    assert len({weights, turned[1], renamed[1]}) == 3


def test_those_of_a_model_are_those_of_its_saved_state(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).bfloat16()
    path = save_torch(model.state_dict(), tmp_path / "a.pth")
    of_model, of_file = (hookscope.tree(one, hash=True) for one in (model, path))
    assert of_model.architecture == of_file.architecture
    assert of_model.weights == of_file.weights
    spec = hookscope.tree("sample_models/digits.py:trained", hash=True)
    file = hookscope.tree("sample_models/digits.safetensors", hash=True)
    assert (spec.architecture, spec.weights) == (file.architecture, file.weights)


def test_progress_counts_the_bytes_of_all_tensors(tmp_path: Path) -> None:
    path = save_safetensors(state(), tmp_path / "a.safetensors")
    seen: list[tuple[int, int]] = []
    hookscope.tree(path, hash=True, progress=lambda done, total: seen.append((done, total)))
    total = sum(t.numel() * t.element_size() for t in state().values())
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_hashes_are_of_all_weights(tmp_path: Path) -> None:
    path = save_safetensors(state(), tmp_path / "a.safetensors")
    for options in ({"layers": "embed"}, {"depth": 1}, {"leaves": True}):
        with pytest.raises(RequestError, match="hash"):
            hookscope.tree(path, hash=True, **options)
    assert "<p" in hookscope.tree(path, hash=True)._repr_html_()
