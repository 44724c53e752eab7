"""``cam`` of a detected object: maps, boxes and scores against autograd by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import detection
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

import hookscope
from hookscope.errors import RequestError
from hookscope.model_analysis.cams.overlay import draw_overlay
from hookscope.views.images.cam_picture import LIGHT
from tests.conftest import REPO
from tests.model_analysis.cams.models import gradcam_by_hand, output_of
from tests.zoo import Module

_FEW = {"detections_per_img": 5, "min_size": 64, "max_size": 96, "score_thresh": 0.0}
# Of each detector of torchvision: how it is made, and the layer to look at.
DETECTORS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "two stages": (
        lambda: detection.fasterrcnn_mobilenet_v3_large_320_fpn(
            **{"weights": None, "weights_backbone": None, "min_size": 96, "max_size": 160},
            **{"box_score_thresh": 0.0, "box_detections_per_img": 5},
        ),
        "backbone.body.13",
    ),
    "one stage": (
        lambda: detection.ssdlite320_mobilenet_v3_large(
            weights=None, weights_backbone=None, score_thresh=0.0, detections_per_img=5
        ),
        "backbone.features.0.12",
    ),
    "retinanet": (lambda: detection.RetinaNet(_pyramid(), 4, **_FEW), "backbone.body.layer4"),
    "fcos": (lambda: detection.FCOS(_pyramid(), 4, **_FEW), "backbone.body.layer2"),
}


def _pyramid() -> nn.Module:
    return resnet_fpn_backbone(backbone_name="resnet18", weights=None, trainable_layers=5)


@cache
def detector(name: str = "two stages") -> Any:
    torch.manual_seed(3)
    return DETECTORS[name][0]().eval()


@pytest.fixture(scope="module")
def image() -> Tensor:
    return torch.rand(3, 72, 100, generator=torch.Generator().manual_seed(1))


def by_hand(model: Any, layer: nn.Module, image: Tensor, number: int) -> tuple[Tensor, dict]:
    """Grad-CAM of the score of a detection, and the detections."""
    a, [found] = output_of(model, layer, [image.clone().requires_grad_()])
    return gradcam_by_hand(found["scores"][number], a), found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", DETECTORS)
def test_the_map_explains_the_score_of_the_box(kind: str, image: Tensor) -> None:
    model, name = detector(kind), DETECTORS[kind][1]
    wanted, found = by_hand(model, model.get_submodule(name), image, 2)
    shot = hookscope.cam(model, input=[image], box=2, layer=name)
    assert float(wanted.max()) > 0
    torch.testing.assert_close(shot[f"{name}/cam"], wanted)
    entry = shot.metadata["cam"]["images"][0]
    assert entry["box"] == pytest.approx(found["boxes"][2].tolist())
    assert entry["score"] == pytest.approx(float(found["scores"][2].detach()))
    assert (entry["index"], entry["detection"]) == (int(found["labels"][2]), 2)
    # Resized and padded to (height, width), of which the image fills a part.
    images = model.transform([image])[0]
    height, width = images.image_sizes[0]
    large = F.interpolate(wanted[None], images.tensors.shape[-2:], mode="bilinear")
    back = F.interpolate(large[:, :, :height, :width], image.shape[1:], mode="bilinear")
    torch.testing.assert_close(shot["./cam"], back[0])


def test_the_default_layer_is_in_the_backbone_and_the_box_is_drawn(image: Tensor) -> None:
    model = detector()
    shot = hookscope.cam(model, input=[image], box=0)
    assert shot.metadata["cam"]["layer"].startswith("backbone")
    page = np.asarray(draw_overlay(shot))
    assert (page == LIGHT).all(2).sum() > 20


def test_class_chooses_among_the_objects_of_that_class(image: Tensor) -> None:
    model = detector()
    labels = model([image])[0]["labels"].tolist()
    last = labels[-1]
    shot = hookscope.cam(model, input=[image], box=0, target=last, by="saliency")
    entry = shot.metadata["cam"]["images"][0]
    assert (entry["index"], entry["detections"]) == (last, labels.count(last))
    other = next(number for number in range(1, 91) if number not in labels)
    with pytest.raises(RequestError, match=f"class {other}"):
        hookscope.cam(model, input=[image], box=0, target=other)
    with pytest.raises(RequestError, match=r"5 objects.* box 9"):
        hookscope.cam(model, input=[image], box=9)


def test_occlusion_follows_the_object_and_counts_0_without_it(image: Tensor) -> None:
    model = detector()
    shot = hookscope.cam(model, input=[image], box=1, by="occlusion", patch=50)
    drops = shot["./input.0.0.attribution"]
    assert drops.shape == (1, 3, 72, 100)
    score = shot.metadata["cam"]["images"][0]["score"]
    assert float(drops.max()) <= score + 1e-6


def queries() -> Module:
    """Returns what DETR returns: logits and boxes for each query."""

    def forward(self: Module, x: Tensor) -> dict[str, Tensor]:
        pooled = self.body(x).relu().mean((2, 3))
        boxes = self.boxes(pooled).sigmoid().unflatten(1, (3, 4))
        return {"logits": self.scores(pooled).unflatten(1, (3, 5)), "pred_boxes": boxes}

    heads = {"scores": nn.Linear(6, 3 * 5), "boxes": nn.Linear(6, 3 * 4)}
    return Module(forward, body=nn.Conv2d(3, 6, 4, stride=4), **heads)


def test_a_model_like_detr_is_explained_by_the_logit_of_its_query() -> None:
    model = queries().eval()
    x = torch.rand(1, 3, 16, 32)
    out = model(x)
    best, classes = out["logits"][0].max(1)
    query = int(best.argsort(descending=True)[1])
    a = model.body(x)
    pooled = a.relu().mean((2, 3))
    score = model.scores(pooled).unflatten(1, (3, 5))[0, query, classes[query]]
    wanted = gradcam_by_hand(score, a)
    shot = hookscope.cam(model, input=x, box=1)
    torch.testing.assert_close(shot["body/cam"], wanted)
    entry = shot.metadata["cam"]["images"][0]
    x0, y0, w, h = out["pred_boxes"][0, query].tolist()
    edges = [(x0 - w / 2) * 32, (y0 - h / 2) * 16, (x0 + w / 2) * 32, (y0 + h / 2) * 16]
    assert entry["box"] == pytest.approx(edges, abs=1e-4)
    named = hookscope.cam(model, input=x, box=1, scores="logits")
    torch.testing.assert_close(named["body/cam"], wanted)


@pytest.fixture(scope="module")
def detr() -> Any:
    """A small DETR of transformers, with as many queries as tokens: 2 by 3."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = transformers.DetrConfig(
        backbone_config=transformers.ResNetConfig(
            **sizes, layer_type="basic", out_features=["stage4"]
        ),
        **{"backbone": None, "use_timm_backbone": False, "use_pretrained_backbone": False},
        **{"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, **heads},
        **{"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "num_queries": 6, "num_labels": 4},
    )
    return transformers.DetrForObjectDetection(config).eval()


def test_a_detr_of_transformers_is_explained_by_the_logit_of_its_query(detr: Any) -> None:
    x = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(1))
    a, out = output_of(detr, detr.get_submodule("model.encoder.layers.0"), x)
    best, classes = out.logits[0].softmax(1)[:, :-1].max(1)
    query = int(best.argsort(descending=True)[1])
    g = torch.autograd.grad(out.logits[0, query, classes[query]], a)[0]
    wanted = (g.mean(1, keepdim=True) * a).sum(2).relu().detach().reshape(1, 2, 3)
    shot = hookscope.cam(detr, input=x, box=1, layer="model.encoder.layers.0")
    torch.testing.assert_close(shot["model.encoder.layers.0/cam"], wanted)
    entry = shot.metadata["cam"]["images"][0]
    assert (entry["index"], entry["detections"]) == (int(classes[query]), 6)
    x0, y0, w, h = out.pred_boxes[0, query].tolist()
    edges = [(x0 - w / 2) * 96, (y0 - h / 2) * 64, (x0 + w / 2) * 96, (y0 + h / 2) * 64]
    assert entry["box"] == pytest.approx(edges, abs=1e-4)


def test_the_default_layer_depends_on_the_image(detr: Any) -> None:
    """The grid of positions that DETR adds does not, but the score has a gradient there."""
    shot = hookscope.cam(detr, shape=(1, 3, 64, 96), box=0)
    assert shot.metadata["cam"]["layer"] == "model.input_projection"


def test_deep_supervision_says_which_output_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    def deep(self: Module, x: Tensor) -> list[Tensor]:
        y = self.conv(x).relu()
        return [head(y) for head in self.heads]

    heads = nn.ModuleList([nn.Conv2d(4, 2, 1), nn.Conv2d(4, 2, 1)])
    model, x = Module(deep, conv=nn.Conv2d(3, 4, 3, padding=1), heads=heads), torch.rand(1, 3, 8, 8)
    with caplog.at_level("INFO", "hookscope"):
        first = hookscope.cam(model, input=x, target=1)
    assert "output 0" in caplog.text
    assert first.metadata["cam"]["scores"] == "0"
    for number in (0, 1):
        a = model.conv(x)
        wanted = gradcam_by_hand(heads[number](a.relu())[:, 1].sum(), a)
        shot = hookscope.cam(model, input=x, target=1, scores=str(number), layer="conv")
        torch.testing.assert_close(shot["conv/cam"], wanted)
    with pytest.raises(RequestError, match="'aux'"):
        hookscope.cam(model, input=x, scores="aux")


def test_a_classifier_has_no_boxes() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 3))
    with pytest.raises(RequestError, match="no boxes"):
        hookscope.cam(model, input=torch.rand(1, 3, 8, 8), box=0)
    with pytest.raises(RequestError, match="one image"):
        hookscope.cam(model, input=torch.rand(2, 3, 8, 8), box=0)


# The box of what the strongest unit of a layer depends on.


def sequence() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(5, 3)).eval()


def test_the_box_is_the_field_of_the_strongest_unit() -> None:
    model, images = sequence(), torch.randn(2, 3, 20, 24)
    shot = hookscope.cam(model, input=images, receptive="2")
    for n, entry in enumerate(shot.metadata["cam"]["images"]):
        output = model[:3](images)[n]
        channel, row, column = (int(i) for i in torch.unravel_index(output.argmax(), output.shape))
        assert entry["strongest"]["unit"] == [channel, row, column]
        # 3 then 3 positions, 2 apart: 7, from twice the place on.
        assert entry["box"] == [2 * column, 2 * row, 2 * column + 7, 2 * row + 7]


def test_what_draws_no_single_box_is_refused() -> None:
    image = torch.randn(1, 3, 20, 24)
    with pytest.raises(RequestError, match="7 layers"):
        hookscope.cam(sequence(), input=image, receptive="?")
    with pytest.raises(RequestError, match="box"):
        hookscope.cam(sequence(), input=image, receptive="2", box=0)


def test_the_strongest_unit_is_one_that_depends_on_the_image() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.ConstantPad2d(1, 50.0), nn.Conv2d(4, 5, 3)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3)).eval()
    images = torch.randn(2, 3, 8, 9)
    shot = hookscope.cam(model, input=images, receptive="1")
    for n, entry in enumerate(shot.metadata["cam"]["images"]):
        output = model[0](images)[n]
        channel, row, column = (int(i) for i in torch.unravel_index(output.argmax(), output.shape))
        assert entry["strongest"]["unit"] == [channel, row + 1, column + 1]
        assert entry["box"] == [column, row, column + 3, row + 3]


def test_an_output_without_a_row_for_each_image_is_refused() -> None:
    """A layer returns (L, N, C), as models of sequences do."""
    model = Module(
        lambda self, x: self.tokens(self.conv(x).flatten(2).permute(2, 0, 1)).mean(0),
        conv=nn.Conv2d(3, 4, 3),
        tokens=nn.Identity(),
    )
    with pytest.raises(RequestError, match="63x1x4"):
        hookscope.cam(model, input=torch.randn(1, 3, 9, 11), receptive="tokens")


def test_an_onnx_file_shows_no_dependencies() -> None:
    model = str(REPO / "sample_models" / "digits.onnx")
    with pytest.raises(RequestError, match="dependencies"):
        hookscope.cam(model, shape=(1, 1, 8, 8), by="eigencam", receptive="conv2")
