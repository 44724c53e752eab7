"""Every map against pytorch-grad-cam and captum, number by number, in float64.

Where these are wrong, or have a term of their own, a computation by hand tells which is right.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hookscope
from tests.model_analysis.cams.models import (
    at_layer,
    functions,
    images,
    output_of,
    resnet,
    seeded,
    swin,
    vit,
)
from tests.zoo import InPlace

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*backward hook:UserWarning"),
    pytest.mark.filterwarnings("ignore:Setting forward, backward hooks:UserWarning"),
]
grad_cam = pytest.importorskip("pytorch_grad_cam", exc_type=ImportError)
captum = pytest.importorskip("captum.attr", exc_type=ImportError)

CLASSES = {
    "gradcam": "GradCAM",
    "gradcam++": "GradCAMPlusPlus",
    "hirescam": "HiResCAM",
    "layercam": "LayerCAM",
    "scorecam": "ScoreCAM",
}
TARGETS = [2, 1]


def reference(
    method: str, model: nn.Module, layer: nn.Module, x: Tensor, reshape: Any = None
) -> tuple[Tensor, Tensor]:
    """The map of pytorch-grad-cam at the layer's grid, and its picture: from 0 to 1, upsampled."""
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    targets = [ClassifierOutputTarget(index) for index in TARGETS[: len(x)]]
    made = getattr(grad_cam, CLASSES[method])(model, [layer], reshape)
    scaled = made(x, targets)
    kept = made.activations_and_grads
    activations = kept.activations[0].numpy()
    gradients = kept.gradients[0].numpy() if kept.gradients else None
    raw = made.get_cam_image(x, layer, targets, activations, gradients, False)
    return torch.from_numpy(raw).relu(), torch.from_numpy(scaled)


def ours(model: nn.Module, x: Tensor, **choices: Any) -> hookscope.Capture:
    return hookscope.cam(model, input=x, target=TARGETS[: len(x)], **choices)


def zero_to_one(maps: Tensor) -> Tensor:
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    return (maps - low) / (high - low)


def assert_same(found: Tensor, wanted: Tensor, close: float = 1e-9) -> None:
    assert float(wanted.abs().max()) > 0  # or the comparison is empty
    torch.testing.assert_close(found, wanted.to(found), rtol=close, atol=close)


@pytest.mark.parametrize("method", ["gradcam", "hirescam", "layercam"])
def test_resnet_as_pytorch_grad_cam_has_it(method: str) -> None:
    model, x = resnet(), images(2, 3, 64, 96)
    raw, scaled = reference(method, model, model.layer3, x)
    shot = ours(model, x, by=method, layer="layer3")
    assert_same(at_layer(shot), raw)
    # It rescales before and after upsampling, and computes the picture in float32.
    assert_same(zero_to_one(shot["./cam"]), zero_to_one(scaled.double()), 1e-4)


@pytest.mark.parametrize("method", ["gradcam", "hirescam", "layercam"])
def test_a_vision_transformer_needs_no_reshape(method: str) -> None:
    model, x = vit(), images(2, 3, 32, 32)
    layer = model.encoder.layers.encoder_layer_1.ln_1

    def reshape(tokens: Tensor) -> Tensor:
        return tokens[:, 1:].reshape(len(tokens), 4, 4, -1).permute(0, 3, 1, 2)

    raw, _ = reference(method, model, layer, x, reshape)
    shot = ours(model, x, by=method)
    assert shot.metadata["cam"]["layer"] == "encoder.layers.encoder_layer_1.ln_1"
    assert (shot.metadata["cam"]["prefix"], shot.metadata["cam"]["layout"]) == (1, "NLC")
    assert_same(at_layer(shot), raw)


@pytest.mark.parametrize("layer", ["norm", "features.3", None])
def test_swin_needs_no_reshape(layer: str | None) -> None:
    model, x = swin(), images(2, 3, 32, 48)
    module = model.get_submodule(layer or "permute")
    last = (lambda maps: maps.permute(0, 3, 1, 2)) if layer else None
    raw, _ = reference("layercam", model, module, x, last)
    shot = ours(model, x, by="layercam", layer=layer)
    entry = shot.metadata["cam"]
    assert entry["grid"] == [4, 6]
    assert (entry["layer"], entry["layout"]) == (layer or "permute", "NHWC" if layer else "NCHW")
    assert_same(at_layer(shot), raw)


def test_gradcam_plus_plus_but_for_the_term_that_keeps_it_from_dividing_by_zero() -> None:
    model, x = resnet(), images(2, 3, 64, 64)
    with torch.no_grad():
        model.fc.weight *= 1e4  # gradients far from the root of its 1e-6
    raw, _ = reference("gradcam++", model, model.layer3, x)
    assert_same(at_layer(ours(model, x, by="gradcam++", layer="layer3")), raw, 1e-5)


def test_gradcam_plus_plus_is_the_papers_where_gradients_are_small() -> None:
    model, x = resnet(), images(1, 3, 64, 64)
    with torch.no_grad():
        model.fc.weight *= 1e-3
    value, scores = output_of(model, model.layer3, x)
    g = torch.autograd.grad(scores[0, TARGETS[0]], value)[0][0].numpy()
    a = value.detach()[0].numpy()
    wanted = np.zeros(a.shape[1:])
    for k in range(len(a)):  # equations 5, 6 and 19, entry by entry
        weight = 0.0
        for i, j in np.ndindex(*wanted.shape):
            below = 2 * g[k, i, j] ** 2 + a[k].sum() * g[k, i, j] ** 3
            weight += (g[k, i, j] ** 2 / below if below else 0) * max(g[k, i, j], 0)
        wanted += weight * a[k]
    found = at_layer(ours(model, x, by="gradcam++", layer="layer3"))
    assert_same(found[0], torch.from_numpy(wanted.clip(0)))
    raw, _ = reference("gradcam++", model, model.layer3, x)
    assert float(raw.max()) < 0.1 * float(found.max())


def test_eigencam_is_the_papers_and_the_reference_takes_the_mean_off_first() -> None:
    from pytorch_grad_cam.utils.svd_on_activations import get_2d_projection

    from hookscope.model_analysis.cams.layer_methods import EigenCam

    model, x = resnet(), images(2, 3, 64, 96)
    values = output_of(model, model.layer3, x)[0].detach()
    found = at_layer(ours(model, x, by="eigencam", layer="layer3"))
    for one, a in zip(found, values, strict=True):
        rows = a.flatten(1).T
        # The first singular vector is the eigenvector of A^T A with the largest eigenvalue.
        vector = torch.linalg.eigh(rows.T @ rows).eigenvectors[:, -1]
        wanted = (rows @ vector).reshape(one.shape)
        assert_same(one, wanted * wanted.sum().sign(), 1e-6)
        assert bool((one > 0).all())  # as Perron and Frobenius have it, behind a ReLU
    centred = values - values.mean((2, 3), keepdim=True)
    theirs = torch.from_numpy(get_2d_projection(values.numpy()))
    for one, other in zip(EigenCam.heat_map(centred), theirs, strict=True):
        sign = 1 if float((one * other).sum()) > 0 else -1
        assert_same(one, (sign * other).relu().double(), 1e-4)


def test_scorecam_where_the_layer_has_the_images_size() -> None:
    model, x = seeded(functions()), images(2, 3, 6, 8)
    raw, _ = reference("scorecam", model, model.b, x)
    assert_same(at_layer(ours(model, x, by="scorecam", layer="b")), raw, 1e-5)


def test_scorecam_by_hand_where_it_has_not() -> None:
    model, x = seeded(InPlace()), images(2, 3, 8, 8)
    with torch.no_grad():
        a = model.conv(x)
        large = F.interpolate(a, (8, 8), mode="bilinear", align_corners=False)
        scores = torch.empty(2, 6, dtype=torch.float64)
        for n in range(2):
            for k in range(6):
                low, high = large[n, k].min(), large[n, k].max()
                masked = x[n : n + 1] * (large[n, k] - low) / (high - low)
                scores[n, k] = model(masked)[0, TARGETS[n]]
        wanted = (scores.softmax(1)[:, :, None, None] * a).sum(1).relu()
    assert_same(at_layer(ours(model, x, by="scorecam", layer="conv")), wanted)


def test_a_value_that_is_overwritten_later_counts_as_it_was_returned() -> None:
    model, x = seeded(InPlace()), images(2, 3, 8, 8)
    a = model.conv(x)  # by hand, without the module that works in place
    scores = model.fc(F.relu(a).flatten(1))
    picked = scores[[0, 1], TARGETS].sum()
    g = torch.autograd.grad(picked, a)[0]
    wanted = (g.mean((2, 3), keepdim=True) * a.detach()).sum(1).relu()
    assert_same(at_layer(ours(model, x, layer="conv")), wanted)
    # The reference keeps the tensor itself: by the time it looks, the ReLU has been there.
    raw, _ = reference("gradcam", model, model.conv, x)
    assert_same(raw, (g.mean((2, 3), keepdim=True) * F.relu(a.detach())).sum(1).relu())
    assert not torch.allclose(raw, wanted)


def test_gradcam_as_captum_has_it() -> None:
    model, x = resnet(), images(2, 3, 64, 96)
    theirs = captum.LayerGradCam(model, model.layer3).attribute(x, TARGETS, relu_attributions=True)
    assert_same(at_layer(ours(model, x, layer="layer3")), theirs.squeeze(1).detach())


def test_saliency_as_captum_has_it() -> None:
    model, x = vit(), images(2, 3, 32, 32)
    theirs = captum.Saliency(model).attribute(x.requires_grad_(), TARGETS)
    shot = ours(model, x.detach(), by="saliency")
    assert_same(shot["./input.0.attribution"].abs(), theirs)
    assert_same(shot["./cam"], theirs.amax(1))


@pytest.mark.parametrize("steps", [7, 50])
def test_integrated_gradients_as_captum_has_it(steps: int) -> None:
    model, x = vit(), images(2, 3, 32, 32)
    start = images(1, 3, 32, 32, seed=9)
    theirs = captum.IntegratedGradients(model).attribute(x, start, TARGETS, n_steps=steps)
    shot = ours(model, x, by="integrated", steps=steps, baseline=start)
    assert_same(shot["./input.0.attribution"], theirs.detach(), 1e-5)  # it steps in float32
    assert_same(shot["./cam"], theirs.detach().sum(1).abs(), 1e-5)


def test_gradient_times_input_as_captum_has_it() -> None:
    model, x = vit(), images(2, 3, 32, 32)
    theirs = captum.InputXGradient(model).attribute(x.clone().requires_grad_(), TARGETS).detach()
    shot = ours(model, x, by="gradxinput")
    assert_same(shot["./input.0.attribution"], theirs)
    assert_same(shot["./cam"], theirs.sum(1).abs())


@pytest.mark.parametrize("patch", [4, 5])
def test_occlusion_as_captum_has_it(patch: int) -> None:
    model, x = vit(), images(2, 3, 32, 32)
    start = images(1, 3, 32, 32, seed=9)
    rows = torch.arange(32) // patch
    mask = (rows[:, None] * 32 + rows).expand(1, 3, 32, 32)
    mask = mask.unique(return_inverse=True)[1]
    theirs = captum.FeatureAblation(model).attribute(x, start, TARGETS, feature_mask=mask)
    shot = ours(model, x, by="occlusion", patch=patch, baseline=start)
    torch.testing.assert_close(shot["./input.0.attribution"], theirs, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(shot["./cam"], theirs[:, 0].relu(), rtol=1e-4, atol=1e-6)


def modules() -> nn.Module:
    """ReLUs as modules alone, each run once, none in place: what the references can do."""
    layers = [nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 5, 3), nn.ReLU()]
    return seeded(nn.Sequential(*layers, nn.Flatten(), nn.Linear(5 * 4 * 6, 4)))


def test_guided_backpropagation_as_captum_has_it() -> None:
    model, x = modules(), images(2, 3, 8, 10)
    theirs = captum.GuidedBackprop(model).attribute(x.clone().requires_grad_(), TARGETS)
    assert_same(ours(model, x, by="guided")["./input.0.attribution"], theirs)


def test_guided_backpropagation_as_pytorch_grad_cam_has_it() -> None:
    model, x = modules(), images(1, 3, 8, 10)
    shot = ours(model, x, by="guided")
    theirs = grad_cam.GuidedBackpropReLUModel(model, "cpu")(x.clone(), TARGETS[0])
    assert_same(shot["./input.0.attribution"][0].permute(1, 2, 0), torch.from_numpy(theirs))


class Guided(torch.autograd.Function):
    """A ReLU by hand: only what is positive goes back, and only where the input was."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * (grad > 0) * (x > 0)


def test_guided_backpropagation_finds_relus_that_are_no_modules() -> None:
    model, x = seeded(functions()), images(2, 3, 6, 8).requires_grad_()
    relu = Guided.apply
    y = relu(model.b(relu(model.a(x))))
    y = relu(relu(model.c(y)) - 0.2)
    scores = model.fc(y.mean((2, 3)))
    wanted = torch.autograd.grad(scores[[0, 1], TARGETS].sum(), x)[0]
    found = ours(model, x.detach(), by="guided")["./input.0.attribution"]
    assert_same(found, wanted)
    plain = ours(model, x.detach(), by="saliency")["./input.0.attribution"]
    assert not torch.allclose(found, plain)
