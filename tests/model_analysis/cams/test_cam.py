"""``hookscope.cam``: which layer it takes, what it returns, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torchvision.models import VisionTransformer

import hookscope
from hookscope.errors import HookscopeError, LossError, RequestError
from hookscope.model_analysis.cams.cam_run import CLASSES
from hookscope.specs.cam_methods import AT_INPUT, FROM_INPUT, METHODS
from tests.conftest import REPO
from tests.hooks.test_values import hooks_left
from tests.model_analysis.cams.models import (
    WITHOUT_ATTENTION,
    about,
    functions,
    images,
    resnet,
    seeded,
    segmenter,
    swin,
    vit,
)
from tests.oracle.by_hand import same_bits
from tests.zoo import InPlace, Module

SAMPLES = REPO / "sample_models"
DIGITS = f"{SAMPLES}/digits.py:trained"
FIVE = str(SAMPLES / "five.png")
X = images(1, 3, 8, 8)


def test_every_method_has_a_class_and_cites_its_paper() -> None:
    assert list(CLASSES) == list(METHODS)
    for method in METHODS.values():
        assert re.search(r"\d{4} \((arXiv|doi):\S+\)$", method.paper)


@pytest.mark.parametrize("method", WITHOUT_ATTENTION)
@pytest.mark.parametrize("file", ["digits_scripted.pt", "digits_traced.pt", "digits_exported.pt2"])
def test_files_of_models_give_the_maps_of_the_model(file: str, method: str) -> None:
    x = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(4))
    choices: dict[str, Any] = {"steps": 4} if method == "integrated" else {}
    if METHODS[method].source not in (AT_INPUT, FROM_INPUT):
        choices["layer"] = "conv2"
    eager = hookscope.cam(DIGITS, by=method, input=x, target=3, **choices)
    other = hookscope.cam(SAMPLES / file, by=method, input=x, target=3, **choices)
    assert list(eager) == list(other)
    assert float(eager["./cam"].max()) > 0
    for key in eager:
        torch.testing.assert_close(eager[key], other[key], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "shape", "layer", "grid"),
    [
        (resnet, (1, 3, 64, 96), "layer4", [2, 3]),
        (vit, (1, 3, 32, 32), "encoder.layers.encoder_layer_1.ln_1", [4, 4]),
        (swin, (1, 3, 32, 48), "permute", [4, 6]),
        (lambda: seeded(segmenter()), (1, 3, 8, 12), "act", [4, 6]),
    ],
)
def test_the_layer_is_the_last_on_a_grid_that_the_score_needs(model, shape, layer, grid) -> None:
    found = about(hookscope.cam(model(), input=images(*shape), target=1))
    assert (found["layer"], found["grid"]) == (layer, grid)


def test_the_last_call_of_a_layer_counts() -> None:
    shot = hookscope.cam(resnet(), input=images(1, 3, 64, 64), layer="layer3.1.relu", target=1)
    assert about(shot)["call"] == 2
    assert next(iter(shot)) == "layer3.1.relu:2/cam"


def test_a_layer_that_returns_a_view_is_not_passed_over_for_what_is_done_to_it() -> None:
    model = Module(
        lambda self, x: self.fc(self.turn(self.conv(x)).relu_().flatten(1)),
        conv=nn.Conv2d(3, 6, 3, stride=2, padding=1),
        turn=Module(lambda self, x: x.transpose(2, 3)),
        fc=nn.Linear(6 * 16, 4),
    )
    assert about(hookscope.cam(seeded(model), input=X, target=1))["layer"] == "turn"


def test_weights_of_attention_are_no_picture() -> None:
    def attending(self: Module, x: Tensor) -> Tensor:
        y = self.norm(self.patches(x).flatten(2).transpose(1, 2))
        q = y.unflatten(2, (2, 4)).transpose(1, 2)
        weights = self.drop((q @ q.transpose(2, 3)).softmax(3))  # N, heads, L, L
        return self.fc((weights @ q).transpose(1, 2).flatten(2).mean(1))

    parts = {"patches": nn.Conv2d(3, 8, 4, stride=4), "norm": nn.LayerNorm(8)}
    model = Module(attending, **parts, drop=nn.Dropout(), fc=nn.Linear(8, 4))
    found = about(hookscope.cam(seeded(model), input=images(1, 3, 16, 16), target=1))
    assert (found["layer"], found["grid"]) == ("norm", [4, 4])


def test_a_segmentation_by_hand() -> None:
    model, x = seeded(segmenter()), images(2, 3, 8, 12)
    a = model.act(model.body(x))
    scores = F.interpolate(model.classifier(a), (8, 12), mode="bilinear")
    classes = scores.argmax(1, keepdim=True)
    g = torch.autograd.grad(scores[:, 2].sum(), a, retain_graph=True)[0]
    wanted = (g * a).sum(1).relu().detach()
    shot = hookscope.cam(model, input=x, target=2, by="hirescam")
    torch.testing.assert_close(shot["act/cam"], wanted)
    assert about(shot)["images"][1]["score"] == pytest.approx(scores[1, 2].sum().item())
    best = scores.gather(1, classes).sum()
    g = torch.autograd.grad(best, a)[0]
    shot = hookscope.cam(model, input=x, by="hirescam")
    torch.testing.assert_close(shot["act/cam"], (g * a).sum(1).relu().detach())
    assert len(classes.unique()) > 1
    assert about(shot)["target"] == "argmax at each position"


def test_integrated_gradients_add_up_to_the_change_of_the_score() -> None:
    model, x = seeded(functions()), images(2, 3, 6, 8)
    shot = hookscope.cam(model, input=x, target=2, by="integrated", steps=200)
    change = (model(x) - model(torch.zeros_like(x)))[:, 2].detach()
    total = shot["./input.0.attribution"].flatten(1).sum(1)
    torch.testing.assert_close(total, change, rtol=2e-3, atol=0)
    gap = torch.tensor(about(shot)["gap"], dtype=torch.float64)
    torch.testing.assert_close(gap, total - change)
    rough = hookscope.cam(model, input=x, target=2, by="integrated", steps=1)
    assert abs(about(rough)["gap"][0]) > abs(about(shot)["gap"][0])


@pytest.mark.parametrize("method", ["integrated", "scorecam"])
def test_the_class_is_that_of_the_image_as_given_in_every_run(method: str) -> None:
    model, x = seeded(InPlace()), X
    best = int(model(x).argmax())
    assert best != int(model(torch.zeros_like(x)).argmax())
    wanted = hookscope.cam(model, input=x, target=best, by=method)["./cam"]
    assert same_bits(hookscope.cam(model, input=x, by=method)["./cam"], wanted)


def test_black_and_white_are_those_of_the_preprocessing() -> None:
    choices: dict[str, Any] = {"input": FIVE, "by": "integrated", "steps": 3, "target": 5}
    image = Image.open(FIVE).convert("L").resize((8, 8), Image.Resampling.BILINEAR)
    x = torch.tensor(list(image.tobytes()), dtype=torch.float32).reshape(1, 1, 8, 8) / 255
    x = (x - 0.25) / 0.5
    for word, value in (("black", -0.5), ("white", 1.5)):
        start = torch.full((1, 1, 1, 1), value)
        file = SAMPLES / "digits_scripted.pt"
        scaled = {"size": 8, "mean": (0.25,), "std": (0.5,)}
        found = hookscope.cam(file, baseline=word, **choices, **scaled)
        wanted = hookscope.cam(file, **choices | {"input": x}, baseline=start)
        key = "./input.0.attribution"
        torch.testing.assert_close(found[key], wanted[key], rtol=1e-4, atol=1e-5)
        assert about(found)["from"] == pytest.approx(about(wanted)["from"])


def test_the_picture_is_what_the_model_saw() -> None:
    shot = hookscope.cam("resnet18", input=str(REPO / "img.png"), by="saliency")
    image = Image.open(REPO / "img.png").convert("RGB")
    scale = 256 / min(image.size)
    image = image.resize(tuple(int(side * scale) for side in image.size), Image.Resampling.BILINEAR)
    left, top = (round((side - 224) / 2) for side in image.size)
    image = image.crop((left, top, left + 224, top + 224))
    wanted = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).reshape(224, 224, 3)
    found = shot["./image"][0].permute(1, 2, 0)
    assert found.dtype == torch.uint8
    assert int((found.int() - wanted.int()).abs().max()) <= 1
    assert about(shot)["image"] == "the preprocessing undone"


def test_upsampling_is_bilinear_or_nearest() -> None:
    model, x = seeded(InPlace()), X
    smooth = hookscope.cam(model, input=x, layer="conv", target=1)
    cells = hookscope.cam(model, input=x, layer="conv", target=1, upsample="nearest")
    assert same_bits(smooth["conv/cam"], cells["conv/cam"])
    grid = cells["conv/cam"]
    assert torch.equal(cells["./cam"], grid.repeat_interleave(2, 1).repeat_interleave(2, 2))
    # Pixel 3 lies a quarter of the way from the middle of cell 1 to that of cell 2.
    row = 0.75 * grid[0, 1] + 0.25 * grid[0, 2]
    torch.testing.assert_close(smooth["./cam"][0, 3, 3], 0.75 * row[1] + 0.25 * row[2])


def test_a_target_may_be_a_label() -> None:
    by_label = hookscope.cam(DIGITS, input=FIVE, target="7")
    assert about(by_label)["images"][0]["label"] == "7"
    assert about(by_label)["target"] == "7 (7)"


def test_a_map_of_zeros_has_no_peak() -> None:
    model, x = seeded(InPlace()), X
    with torch.no_grad():
        model.fc.weight[1] = 0
        model.fc.weight[1, :16] = -1.0
        model.conv.bias[0] = 9.0
    entry = about(hookscope.cam(model, input=x, layer="act", target=1))["images"][0]
    assert (entry["peak"], entry["pixel"], entry["largest"]) == (None, None, 0.0)


def test_a_capture_of_maps_goes_to_a_file_and_back(tmp_path: Path) -> None:
    shot = hookscope.cam(DIGITS, input=FIVE)
    shot.save(tmp_path / "a.safetensors")
    back = hookscope.load(tmp_path / "a.safetensors")
    assert all(same_bits(shot[key], back[key]) for key in shot)
    assert about(back) == about(shot)
    assert [r.kind for r in back.records] == ["cam", "cam", "input"]


def test_a_frozen_model_has_maps_too() -> None:
    model, x = seeded(InPlace()), X
    before = hookscope.cam(model, input=x, target=1, layer="conv")["./cam"]
    after = hookscope.cam(model.requires_grad_(False), input=x, target=1, layer="conv")["./cam"]
    assert same_bits(before, after)


@pytest.mark.parametrize("method", METHODS)
def test_frozen_parameters_stay_frozen_and_the_image_is_left_alone(method: str) -> None:
    rest, side = (vit(), 32) if method == "rollout" else (seeded(InPlace()), 8)
    model = Module(lambda self, x: self.rest(x.mul_(2)), rest=rest).train()
    model.register_buffer("learned", torch.zeros(2, requires_grad=True))
    next(model.parameters()).requires_grad_(False)
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    before = {name: tensor.requires_grad for name, tensor in tensors.items()}
    values = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    x, kept = images(1, 3, side, side), images(1, 3, side, side)
    choices = {"steps": 3} if method == "integrated" else {}
    hookscope.cam(model, by=method, input=x, target=1, **choices)
    assert {name: tensor.requires_grad for name, tensor in tensors.items()} == before
    assert all(same_bits(tensors[name].detach(), value) for name, value in values.items())
    assert all(tensor.grad is None for tensor in tensors.values())
    assert same_bits(x, kept) and not x.requires_grad and x.grad is None
    assert hooks_left(model) == 0 and all(module.training for module in model.modules())


def interrupt(done: int, total: int) -> None:
    raise KeyboardInterrupt


INTEGRATED = {"by": "integrated"}
# Of each request that fails: the options, and the subject of the error.
FAILURES: dict[str, Any] = {
    "a layer on no grid": ({"layer": "fc"}, "1x4"),
    "several layers": ({"layer": "*"}, "4 layers"),
    "no such layer": ({"layer": "cnv"}, "'cnv'"),
    "no such class": ({"target": 9}, "class 9"),
    "a target that is no class": ({"target": "uniform"}, "class"),
    "no such method": ({"by": "grandcam"}, "'grandcam' .* gradcam"),
    "a layer for the image": ({"by": "saliency", "layer": "conv"}, "takes no layer"),
    "upsampling of pixels": ({"by": "guided", "upsample": "nearest"}, "upsample"),
    "steps without an integral": ({"steps": 5}, "steps"),
    "black of noise": (INTEGRATED | {"baseline": "black"}, "black"),
    "a baseline of another shape": (INTEGRATED | {"baseline": torch.zeros(5)}, "1x3x8x8"),
    "no images": ({"input": torch.ones(1, 3)}, "no images"),
    "an interrupt": ({"by": "scorecam", "layer": "conv", "progress": interrupt}, None),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_leaves_nothing_on_the_model(name: str) -> None:
    choices, message = FAILURES[name]
    model = seeded(InPlace()).train()
    model.conv.weight.grad = torch.ones_like(model.conv.weight)
    with torch.no_grad():
        before = model(X)
    error = RequestError if message else KeyboardInterrupt
    with pytest.raises(error, match=message):
        hookscope.cam(model, **{"input": X, **choices})
    with torch.no_grad():
        assert same_bits(model(X), before)
    assert hooks_left(model) == 0
    assert all(module.training for module in model.modules())
    assert bool((model.conv.weight.grad == 1).all())
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("method", WITHOUT_ATTENTION)
def test_a_model_that_raises_leaves_nothing_either(method: str) -> None:
    def failing(self: Module, x: Tensor) -> Tensor:
        if x.requires_grad or method == "occlusion":  # which needs no gradient
            raise ValueError("from the model")
        return x

    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), Module(failing), nn.Flatten())
    with pytest.raises(HookscopeError, match="from the model") as caught:
        hookscope.cam(model, input=X.float(), by=method)
    assert "2 (Module)" in str(caught.value)
    assert hooks_left(model) == 0
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_detector_is_refused_with_its_task() -> None:
    with pytest.raises(RequestError, match="detection"):
        hookscope.cam("ssdlite320_mobilenet_v3_large", shape=(1, 3, 64, 64))


def test_a_model_without_grids_is_told_what_to_do() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    with pytest.raises(RequestError, match="No layer") as caught:
        hookscope.cam(model, input=X.float())
    assert "saliency" in caught.value.hint
    assert float(hookscope.cam(model, input=X.float(), by="saliency")["./cam"].max()) > 0


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda: seeded(InPlace()), "eigencam"),
        (lambda: VisionTransformer(32, 16, 1, 2, 32, 64, num_classes=5), "rollout"),
    ],
)
def test_a_head_of_zeros_is_told(make: Any, other: str) -> None:
    model = make()
    x = X if other == "eigencam" else torch.ones(1, 3, 32, 32)
    if other == "eigencam":
        nn.init.zeros_(model.fc.weight)
    with pytest.raises(RequestError, match="no gradient") as caught:
        hookscope.cam(model, input=x)
    assert ("rollout" in caught.value.hint) is (other == "rollout")
    assert float(hookscope.cam(model, input=x, by=other)["./cam"].max()) > 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("method", ["eigencam", "scorecam"])
def test_values_that_are_not_finite_are_refused_with_the_layer(method: str, value: float) -> None:
    model = seeded(InPlace())
    with torch.no_grad():
        model.conv.bias[2] = value
    with pytest.raises(RequestError, match=r"conv \(Conv2d\) returned 16 of 96"):
        hookscope.cam(model, input=X, by=method, layer="conv", target=1)


def test_a_sequence_of_scores_is_no_class() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(2))
    with pytest.raises(RequestError, match="sequence"):
        hookscope.cam(model, input=X.float())


def test_a_target_for_another_batch_does_not_fit() -> None:
    with pytest.raises(LossError, match="2 targets"):
        hookscope.cam(DIGITS, input=FIVE, target=[1, 2])


@pytest.mark.parametrize("layer", [None, "mix"])
@pytest.mark.parametrize("by", ["gradcam", "scorecam"])
def test_tokens_lie_on_the_grid_of_an_earlier_layer(layer: str | None, by: str) -> None:
    """Rows of tokens made of maps of 2 by 8, which a square image does not suggest."""
    model = Module(
        lambda self, x: self.fc(self.mix(self.conv(x).flatten(2).mT).relu().mean(1)),
        conv=nn.Conv2d(3, 4, (16, 4), stride=(16, 4)),
        mix=nn.Linear(4, 4),
        fc=nn.Linear(4, 3),
    )
    shot = hookscope.cam(seeded(model), by=by, layer=layer, input=images(1, 3, 32, 32), target=0)
    assert about(shot)["layer"] == "mix" and about(shot)["grid"] == [2, 8]
