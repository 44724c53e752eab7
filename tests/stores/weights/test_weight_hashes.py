"""The two hashes: equal for equal architectures and weights, in whatever format they are saved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from blake3 import blake3
from torch import nn

import hookscope
from hookscope.errors import RequestError
from tests.stores.weights.saved_weights import FORMATS, save_safetensors, save_torch, state, views


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
        with pytest.raises(RequestError, match="--hash is of all weights"):
            hookscope.tree(path, hash=True, **options)
    assert "<p" in hookscope.tree(path, hash=True)._repr_html_()
