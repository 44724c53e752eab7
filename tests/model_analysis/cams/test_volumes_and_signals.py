"""``cam`` of volumes and signals: every method against its formula, written out for this shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hookscope
from hookscope.errors import RequestError
from hookscope.model_analysis.cams.overlay import draw_overlay, save_overlay
from hookscope.views.images.cam_picture import sheet_of
from hookscope.views.images.cam_sheet import OverlayStyle
from tests.model_analysis.cams.models import (
    about,
    gradcam_by_hand,
    images,
    seeded,
)
from tests.zoo import Module

TARGETS = [2, 1]


CASES: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...], str, str]] = {
    "volume": (nn.Conv3d, (4, 6, 8), (2, 3, 4), "NCDHW", "trilinear"),
    "signal": (nn.Conv1d, (16,), (8,), "NCL", "linear"),
}
kinds = pytest.mark.parametrize("kind", CASES)


def model_and_input(kind: str) -> tuple[Any, Tensor]:
    convolution, size, grid, _, _ = CASES[kind]
    net = Module(
        lambda self, x: self.fc(self.act(self.conv(x)).flatten(1)),
        conv=convolution(2, 5, 3, stride=2, padding=1),
        act=nn.ReLU(),
        fc=nn.Linear(5 * int(np.prod(grid)), 4),
    )
    return seeded(net), images(2, 2, *size)


def value_and_gradient(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    a = model.act(model.conv(x))
    score = model.fc(a.flatten(1))[[0, 1], TARGETS].sum()
    return a.detach(), torch.autograd.grad(score, a)[0]


def by_formula(method: str, a: Tensor, g: Tensor) -> Tensor:
    """The map of one input, channel by channel; a and g are (K, *grid)."""
    total = torch.zeros_like(a[0])
    for one, grad in zip(a, g, strict=True):
        if method == "gradcam":
            total += grad.mean() * one
        elif method == "gradcam++":
            below = 2 * grad**2 + one.sum() * grad**3
            share = torch.where(below == 0, 0.0, grad**2 / torch.where(below == 0, 1.0, below))
            total += (share * grad.relu()).sum() * one
        elif method == "hirescam":
            total += grad * one
        else:
            total += grad.relu() * one
    return total.relu()


@kinds
@pytest.mark.parametrize("method", ["gradcam", "gradcam++", "hirescam", "layercam"])
def test_a_map_from_gradients_is_that_of_its_formula(kind: str, method: str) -> None:
    _, size, grid, layout, how = CASES[kind]
    model, x = model_and_input(kind)
    a, g = value_and_gradient(model, x)
    wanted = torch.stack([by_formula(method, *pair) for pair in zip(a, g, strict=True)])
    shot = hookscope.cam(model, input=x, target=TARGETS, by=method)
    assert list(shot) == ["act/cam", "./cam", f"./{kind}"]
    assert float(wanted.max()) > 0
    torch.testing.assert_close(shot["act/cam"], wanted)
    large = F.interpolate(wanted[:, None], size, mode=how, align_corners=False)[:, 0]
    torch.testing.assert_close(shot["./cam"], large)
    found = shot.metadata["cam"]
    assert (found["input"], found["layout"], found["upsampling"]) == (kind, layout, how)
    assert (found["grid"], found["channels"]) == (list(grid), 5)
    for n, entry in enumerate(found["images"]):
        peak = entry["pixel"]
        assert (large[n][tuple(peak)] if peak else 0) == large[n].max()


@kinds
def test_eigencam_is_the_first_eigenvector_of_the_positions(kind: str) -> None:
    model, x = model_and_input(kind)
    a, _ = value_and_gradient(model, x)
    shot = hookscope.cam(model, input=x, by="eigencam", layer="act")
    for one, found in zip(a, shot["act/cam"], strict=True):
        rows = one.flatten(1).T
        wanted = (rows @ torch.linalg.eigh(rows.T @ rows).eigenvectors[:, -1]).reshape(found.shape)
        torch.testing.assert_close(found, (wanted * wanted.sum().sign()).relu())


@kinds
def test_scorecam_masks_the_input_with_each_channel(kind: str) -> None:
    _, size, _, _, how = CASES[kind]
    model, x = model_and_input(kind)
    a, _ = value_and_gradient(model, x)
    large = F.interpolate(a, size, mode=how, align_corners=False)
    scores = torch.empty(2, 5, dtype=torch.float64)
    for n, k in np.ndindex(2, 5):
        low, high = large[n, k].min(), large[n, k].max()
        mask = (large[n, k] - low) / (high - low if high > low else 1)
        scores[n, k] = model(x[n : n + 1] * mask)[0, TARGETS[n]].detach()
    weights = scores.softmax(1).reshape(2, 5, *[1] * len(size))
    shot = hookscope.cam(model, input=x, target=TARGETS, by="scorecam", layer="act")
    torch.testing.assert_close(shot["act/cam"], (weights * a).sum(1).relu())


@kinds
def test_gradients_at_the_input(kind: str) -> None:
    model, x = model_and_input(kind)
    leaf = x.clone().requires_grad_()
    g = torch.autograd.grad(model(leaf)[[0, 1], TARGETS].sum(), leaf)[0]
    choices: dict[str, Any] = {"input": x, "target": TARGETS}
    saliency = hookscope.cam(model, by="saliency", **choices)
    torch.testing.assert_close(saliency["./input.0.attribution"], g)
    torch.testing.assert_close(saliency["./cam"], g.abs().amax(1))
    product = hookscope.cam(model, by="gradxinput", **choices)
    torch.testing.assert_close(product["./cam"], (g * x).sum(1).abs())
    guided = hookscope.cam(model, by="guided", **choices)
    a, at_layer = value_and_gradient(model, x)
    back = torch.autograd.grad(model.conv(leaf), leaf, at_layer.relu() * (a > 0))[0]
    torch.testing.assert_close(guided["./input.0.attribution"], back)
    path = hookscope.cam(model, by="integrated", steps=64, **choices)
    change = (model(x) - model(torch.zeros_like(x)))[[0, 1], TARGETS].detach()
    total = path["./input.0.attribution"].flatten(1).sum(1)
    torch.testing.assert_close(total, change, rtol=2e-2, atol=1e-2)


@kinds
@pytest.mark.parametrize("patch", [None, 3])
def test_occlusion_covers_a_block_at_a_time(kind: str, patch: int | None) -> None:
    size = CASES[kind][1]
    model, x = model_and_input(kind)
    sides = [patch or max(1, side // 8) for side in size]
    wanted = torch.zeros(2, *size, dtype=torch.float64)
    scores = model(x)[[0, 1], TARGETS].detach()
    for corner in np.ndindex(*(-(-s // p) for s, p in zip(size, sides, strict=True))):
        block = tuple(slice(c * p, (c + 1) * p) for c, p in zip(corner, sides, strict=True))
        covered = x.clone()
        covered[(slice(None), slice(None), *block)] = 0
        drop = scores - model(covered)[[0, 1], TARGETS].detach()
        wanted[(slice(None), *block)] = drop.reshape(-1, *[1] * len(size))
    shot = hookscope.cam(model, input=x, target=TARGETS, by="occlusion", patch=patch)
    torch.testing.assert_close(shot["./cam"], wanted.relu())


@kinds
def test_tokens_have_the_grid_of_the_patches(kind: str) -> None:
    convolution, _, grid, _, _ = CASES[kind]
    model = Module(
        lambda self, x: self.fc(self.block(self.patches(x).flatten(2).mT).mean(1)),
        patches=convolution(2, 8, 2, stride=2),
        block=nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        fc=nn.Linear(8, 4),
    )
    x = model_and_input(kind)[1]
    found = about(hookscope.cam(seeded(model), input=x, target=1, by="rollout"))
    assert (found["layout"], found["grid"], found["prefix"]) == ("NLC", list(grid), 0)
    found = about(hookscope.cam(model, input=x, target=1))
    assert found["layer"] in ("block.norm2", "block") and found["grid"] == list(grid)


def test_a_class_at_each_position_of_a_signal() -> None:
    model = seeded(nn.Sequential(nn.Conv1d(2, 5, 3, padding=1), nn.ReLU(), nn.Conv1d(5, 4, 1)))
    x = images(1, 2, 12)
    a = model[1](model[0](x))
    shot = hookscope.cam(model, input=x, target=3)
    wanted = gradcam_by_hand(model[2](a)[:, 3].sum(), a)
    torch.testing.assert_close(shot["1/cam"], wanted)


def test_a_video_model_of_torchvision() -> None:
    shot = hookscope.cam("r3d_18", shape=(1, 3, 4, 32, 32), target=7, layer="layer3")
    found = shot.metadata["cam"]
    assert (found["input"], found["grid"]) == ("volume", [1, 4, 4])
    assert tuple(shot["./cam"].shape) == (1, 4, 32, 32)
    assert shot["./volume"].dtype == torch.uint8 and tuple(shot["./volume"].shape)[:2] == (1, 3)


def test_the_picture_of_a_volume_has_the_slices_through_its_middle_and_its_peak() -> None:
    model, x = model_and_input("volume")
    shot = hookscope.cam(model, input=x[:2], target=1, by="saliency")
    sheet = sheet_of(shot.reader(), OverlayStyle())
    *panels, bar = sheet.tiles[:13]
    assert len(sheet.tiles) == 2 * 13 and bar.image.shape[1] < 100
    assert {tile.image.shape for tile in panels} == {(260, 260, 3)}
    volume = shot["./volume"][0].movedim(0, -1).numpy()
    peak = shot.metadata["cam"]["images"][0]["pixel"]
    wanted = [
        np.take(volume, at, axis) for place in ([2, 3, 4], peak) for axis, at in enumerate(place)
    ]
    for tile, pixels in zip(panels, wanted, strict=False):
        rows, columns = (voxel_middles(pixels.shape[:2], axis) for axis in (0, 1))
        assert np.array_equal(tile.image[np.ix_(rows, columns)], pixels)
    right = max(tile.x + 260 for tile in panels)
    assert right <= bar.x and {tile.y for tile in panels[:6]} < {tile.y for tile in panels}
    page = np.asarray(draw_overlay(shot))
    assert page.shape[:2] == sheet.size[::-1]
    for tile in panels:
        assert np.array_equal(page[tile.y : tile.y + 260, tile.x : tile.x + 260], tile.image)


def voxel_middles(shape: tuple[int, ...], axis: int) -> np.ndarray:
    """Where the middles of the voxels of a slice are in its square of 260 pixels."""
    voxel = 260 / max(shape)
    start = (260 - voxel * shape[axis]) / 2
    return (start + voxel * (np.arange(shape[axis]) + 0.5)).astype(int)


def test_the_picture_of_a_signal_has_the_colours_of_the_map_and_its_curve() -> None:
    model, x = model_and_input("signal")
    shot = hookscope.cam(model, input=x[:1], target=1)
    page = np.asarray(draw_overlay(shot)).astype(int)
    assert page.shape[1] > 800
    again = hookscope.cam(model, input=x[:1] + 0.3, target=1)
    assert not np.array_equal(page, np.asarray(draw_overlay(again)))


def test_an_input_of_two_or_six_dimensions_is_refused_with_its_shape() -> None:
    model = model_and_input("volume")[0]
    for shape in ((1, 3), (1, 1, 2, 3, 4, 5)):
        with pytest.raises(RequestError, match=r"N, C, D, H, W"):
            hookscope.cam(model, input=torch.ones(shape))


def test_a_patch_larger_than_the_volume_is_refused() -> None:
    model, x = model_and_input("volume")
    with pytest.raises(RequestError, match="4x6x8"):
        hookscope.cam(model, input=x, by="occlusion", patch=5)


def test_the_map_alone_is_written_as_an_array_and_a_volume_as_nifti(tmp_path: Path) -> None:
    model, x = model_and_input("volume")
    shot = hookscope.cam(model, input=x, target=1, by="saliency")
    save_overlay(shot, tmp_path / "a.npy")
    assert np.array_equal(np.load(tmp_path / "a.npy"), shot["./cam"].numpy())
    signal = hookscope.cam(*model_and_input("signal")[:1], input=images(1, 2, 16), by="saliency")
    with pytest.raises(RequestError, match="signal"):
        save_overlay(signal, tmp_path / "a.nii")
    nibabel = pytest.importorskip("nibabel")
    for n, name in ((slice(None), "two.nii.gz"), (slice(1), "one.nii")):
        one = hookscope.cam(model, input=x[n], target=1, by="saliency")
        save_overlay(one, tmp_path / name)
        back = nibabel.load(tmp_path / name)
        maps = one["./cam"].numpy()
        wanted = np.moveaxis(maps, 0, -1) if len(maps) > 1 else maps[0]
        assert np.array_equal(np.asarray(back.dataobj), wanted)
        assert np.array_equal(back.affine, np.eye(4))
