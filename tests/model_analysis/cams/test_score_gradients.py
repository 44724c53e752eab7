"""The two ways to the values and gradients of a layer: only observing, and handing on clones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hookscope
from hookscope.execution.prepare import prepare
from hookscope.extraction.axes import ImageGrid, find_image_grid
from hookscope.model_analysis.cams.cam_input import find_image
from hookscope.model_analysis.cams.score_gradients import (
    LayerPass,
    clone_at_layer,
    observe_layer,
)
from hookscope.model_analysis.cams.scores import ClassScore
from hookscope.specs.request import InputRequest, LayerSelection, ModelRequest, Request
from tests.model_analysis.cams.models import (
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


def counting(model: nn.Module) -> Module:
    """A model that counts its runs."""

    def forward(self: Module, x: Tensor) -> Tensor:
        self.runs += 1
        return self.model(x)

    counted = Module(forward, model=model).eval()
    counted.runs = 0
    return counted


def begun(between: Callable[[Module, Tensor], Tensor]) -> Callable[[], Module]:
    """A model whose body and its neighbour work together in a way of their own."""
    return lambda: Module(
        lambda self, x: self.fc(between(self, x).mean((2, 3))),
        stem=nn.Conv2d(3, 6, 3, padding=1),
        body=nn.Conv2d(6, 6, 3, padding=1),
        fc=nn.Linear(6, 4),
    )


# No gradient reaches the image: the graph begins in the middle. And reentrant checkpointing, which
# refuses ``torch.autograd.grad``.
detached = begun(lambda self, x: self.body(self.stem(x).detach()))
reentrant = begun(lambda self, x: checkpoint(self.body, self.stem(x), use_reentrant=True))


def both(model: nn.Module, x: Tensor, layer: str | None) -> tuple[LayerPass | None, LayerPass]:
    prepared = prepare(
        Request("cam", ModelRequest(model), LayerSelection(layer or ()), InputRequest(x))
    )
    path, image = find_image(prepared)
    chosen = prepared.layers[0] if layer else None
    observed = observe_layer(prepared, ClassScore(1), path, image, chosen, gradient=True)
    return observed, clone_at_layer(prepared, ClassScore(1), image, chosen, gradient=True)


MODELS: list[tuple[Callable[[], nn.Module], tuple[int, ...]]] = [
    (lambda: seeded(InPlace()), (2, 3, 8, 8)),
    (lambda: seeded(functions()), (2, 3, 6, 8)),
    (lambda: seeded(segmenter()), (1, 3, 8, 12)),
    (resnet, (1, 3, 64, 64)),
    (vit, (1, 3, 32, 32)),
    (swin, (1, 3, 32, 48)),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(("make", "shape"), MODELS)
def test_observing_finds_what_clones_find(make, shape, frozen) -> None:
    model = make().requires_grad_(not frozen)
    layers = [None, *(n for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.ReLU))]
    for layer in layers:
        observed, cloned = both(model, images(*shape), layer)
        assert observed is not None
        assert (observed.candidate.key, observed.calls) == (cloned.candidate.key, cloned.calls)
        for one, other in [
            (observed.candidate.value, cloned.candidate.value),
            (observed.candidate.gradient, cloned.candidate.gradient),
        ]:
            assert same_bits(one, other)
    assert all(p.requires_grad != frozen and p.grad is None for p in model.parameters())


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("make", "layer"),
    [(detached, None), (detached, "body"), (reentrant, None), (reentrant, "stem")],
)
def test_where_autograd_cannot_be_asked_clones_tell(make, layer) -> None:
    model, x = seeded(make()), images(2, 3, 6, 8)
    observed, cloned = both(model, x, layer)
    assert observed is None
    shot = hookscope.cam(model, input=x, target=1, layer=layer, by="hirescam")
    wanted = (cloned.candidate.value * cloned.candidate.gradient).sum(1).relu()
    assert same_bits(shot[f"{cloned.candidate.layer.name}/cam"], wanted)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("layer", [None, "model.layer4"])
@pytest.mark.parametrize("by", ["gradcam", "gradcam++", "hirescam", "layercam"])
def test_a_map_from_gradients_takes_one_run_of_the_model(layer, by) -> None:
    model = counting(resnet())
    hookscope.cam(model, input=images(1, 3, 64, 64), target=1, layer=layer, by=by)
    assert model.runs == 1


def test_what_is_changed_in_place_is_run_again_for_its_value() -> None:
    model = counting(seeded(InPlace()))
    x = images(1, 3, 8, 8)
    shot = hookscope.cam(model, input=x, target=1, layer="model.conv", by="hirescam")
    assert model.runs == 1  # a layer that is known is copied at once
    values = model.model.conv(x).requires_grad_()
    score = model.model.fc(values.relu().flatten(1))[:, 1].sum()
    (gradient,) = torch.autograd.grad(score, values)
    assert same_bits(shot["model.conv/cam"], (values * gradient).sum(1).relu().detach())


# Where the grid lies in a tensor, found from its shape and the image's


SQUARE, WIDE = (224, 224), (224, 320)


@pytest.mark.parametrize(
    ("shape", "image", "grid"),
    [
        ((1, 512, 7, 7), SQUARE, ImageGrid((7, 7), "NCHW")),
        ((1, 512, 7, 10), WIDE, ImageGrid((7, 10), "NCHW")),
        ((1, 7, 7, 768), SQUARE, ImageGrid((7, 7), "NHWC")),
        ((1, 7, 10, 768), WIDE, ImageGrid((7, 10), "NHWC")),
        ((1, 8, 8, 8), SQUARE, ImageGrid((8, 8), "NCHW")),  # both would do: the usual one
        ((1, 512, 7, 7), WIDE, ImageGrid((7, 7), "NCHW")),  # pooled to a square
        ((1, 512, 1, 1), SQUARE, None),
        ((1, 3, 448, 448), SQUARE, None),
        ((2, 512, 7, 7), SQUARE, None),  # not as many as there are images
        ((1, 196, 768), SQUARE, ImageGrid((14, 14), "NLC")),
        ((1, 197, 768), SQUARE, ImageGrid((14, 14), "NLC", 1)),  # a class token
        ((1, 198, 768), SQUARE, ImageGrid((14, 14), "NLC", 2)),  # and a distillation token
        ((1, 201, 768), SQUARE, ImageGrid((14, 14), "NLC", 5)),  # and registers
        ((1, 281, 768), WIDE, ImageGrid((14, 20), "NLC", 1)),
        ((1, 1, 768), SQUARE, None),
        ((1, 1000), SQUARE, None),
        ((1, 3, 4, 7, 7), SQUARE, None),
    ],
)
def test_grids_are_told_by_shape(shape, image, grid) -> None:
    assert find_image_grid(shape, 1, image) == grid


def test_tokens_lie_on_the_grid_of_the_patches_that_they_were() -> None:
    assert find_image_grid((1, 13, 8), 1, SQUARE) == ImageGrid((3, 3), "NLC", 4)
    assert find_image_grid((1, 13, 8), 1, SQUARE, [(4, 3)]) == ImageGrid((4, 3), "NLC", 1)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "NLC"])
def test_values_keep_their_places(layout) -> None:
    maps = torch.arange(2 * 5 * 3 * 4).reshape(2, 5, 3, 4)
    laid = {
        "NCHW": maps,
        "NHWC": maps.permute(0, 2, 3, 1),
        "NLC": torch.cat([torch.full((2, 2, 5), -1), maps.flatten(2).transpose(1, 2)], 1),
    }
    grid = ImageGrid((3, 4), layout, 2 if layout == "NLC" else 0)
    assert torch.equal(grid.maps(laid[layout]), maps)
