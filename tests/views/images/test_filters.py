"""Pictures of weights hold the weights, of every kind of model and layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import nn

import hookscope
from hookscope.errors import LayerError, RequestError


def images(figure: Figure) -> list[np.ndarray]:
    return [np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images]


def titles(figure: Figure) -> list[str]:
    return [axes.get_title() for axes in figure.axes if axes.images]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "word", ["digits_scripted.pt", "digits.py:trained", "digits_traced.pt", "digits_exported.pt2"]
)
def test_kernels_are_those_of_every_kind_of_model(repo: Path, word: str) -> None:
    whole = hookscope.load_model(repo / "sample_models" / "digits.py:trained").module
    drawing = hookscope.filters(repo / "sample_models" / word, "conv1")
    drawn = images(drawing.figure)
    expected = whole.conv1.weight.detach().numpy()[:, 0]
    assert all(np.array_equal(x, y) for x, y in zip(drawn, expected, strict=True))
    assert titles(drawing.figure) == [f"filter {i}" for i in range(16)]
    most = float(np.abs(expected).max())
    assert {axes.images[0].get_clim() for axes in drawing.figure.axes[:16]} == {(-most, most)}


def test_several_input_channels_stand_side_by_side() -> None:
    layer = nn.Conv2d(20, 5, 3)
    drawing = hookscope.filters(layer, channels=[4, 1])
    weight = layer.weight.detach().numpy()
    expected = [weight[i, j] for i in (4, 1) for j in range(16)]
    assert all(np.array_equal(x, y) for x, y in zip(images(drawing.figure), expected, strict=True))
    assert titles(drawing.figure)[:16] == [f"in {j}" for j in range(16)]
    sides = [axes.get_ylabel() for axes in drawing.figure.axes if axes.images]
    assert [side for side in sides if side] == ["filter 4", "filter 1"]
    assert "4 of the columns" in drawing.shows[0]


def test_three_input_channels_are_red_green_and_blue() -> None:
    layer = nn.Conv2d(3, 2, 2, bias=False)
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[0, 0, 0, 0], layer.weight[1, 2, 1, 1] = 2.0, -1.0
    first, second = images(hookscope.filters(layer).figure)
    assert first[0, 0].tolist() == [1.0, 0.5, 0.5]
    assert second[1, 1].tolist() == [0.5, 0.5, 0.25]
    assert first[1, 1].tolist() == [0.5] * 3
    _, second = images(hookscope.filters(layer, scale="each").figure)
    assert second[1, 1].tolist() == [0.5, 0.5, 0.0]


@pytest.mark.parametrize("inputs", [1, 3, 5])
@pytest.mark.parametrize("scale", ["grid", "each"])
def test_filters_have_a_scale_from_the_least_weight_to_the_largest(inputs: int, scale: str) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(inputs, 4, 3)
    figure = hookscope.filters(layer, scale=scale).figure
    FigureCanvasAgg(figure).draw()
    bars = [axes for axes in figure.axes if not axes.images and axes.get_visible()]
    largest = layer.weight.detach().abs().amax((1, 2, 3)).tolist()
    if scale == "grid":
        [bar] = bars
        ends = [float(text.get_text().replace("\u2212", "-")) for text in bar.get_yticklabels()]
        assert [ends[0], ends[-1]] == pytest.approx([-max(largest), max(largest)], rel=0.01)
        assert 0 in ends and "weight" in bar.get_ylabel()
    elif inputs == 3:
        assert len(bars) == 1
        ends = [float(title.partition("±")[2]) for title in titles(figure)]
        assert ends == pytest.approx(largest, rel=0.01)
    else:
        assert len(bars) == 4 * inputs


def test_the_scale_of_coloured_filters_has_their_colours() -> None:
    layer = nn.Conv2d(3, 1, 2, bias=False)
    nn.init.constant_(layer.weight, 1.0)
    bar = hookscope.filters(layer).figure.axes[-1]
    colors = bar.collections[0]
    colors.update_scalarmappable()
    drawn = colors.get_facecolor().reshape(-1, 3, 4)[..., :3]
    assert drawn[-1].tolist() == [[1, 0.5, 0.5], [0.5, 1, 0.5], [0.5, 0.5, 1]]
    assert drawn[0].tolist() == [[0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]]


@pytest.mark.parametrize("groups", [1, 2])
def test_filters_of_a_transposed_convolution_are_its_outputs(groups: int) -> None:
    layer = nn.ConvTranspose2d(4, 6, 3, groups=groups, bias=False)
    drawn = images(hookscope.filters(layer).figure)
    per_group = 4 // groups
    expected = []
    for output in range(6):  # what one input alone adds to this output, by the layer itself
        group = output // (6 // groups)
        for channel in range(group * per_group, (group + 1) * per_group):
            point = torch.zeros(1, 4, 1, 1)
            point[0, channel] = 1
            expected.append(layer(point)[0, output].detach().numpy())
    assert all(np.array_equal(x, y) for x, y in zip(drawn, expected, strict=True))


def test_convolutions_in_one_and_three_dimensions_are_drawn() -> None:
    flat, deep = nn.Conv1d(4, 2, 5), nn.Conv3d(3, 2, (2, 4, 4))
    drawn = images(hookscope.filters(flat).figure)
    weight = flat.weight.detach().numpy()
    assert all(np.array_equal(x, y) for x, y in zip(drawn, weight, strict=True))
    drawing = hookscope.filters(deep)
    weight = deep.weight.detach().numpy().reshape(-1, 4, 4)
    assert all(np.array_equal(x, y) for x, y in zip(images(drawing.figure), weight, strict=True))
    assert titles(drawing.figure)[:3] == ["in 0, step 0", "in 0, step 1", "in 1, step 0"]


@pytest.mark.parametrize(
    ("layer", "labels"),
    [
        (nn.Linear(6, 3), ("input feature", "output feature")),
        (nn.Embedding(5, 7), ("dimension", "entry")),
        (nn.Linear(6, 3, dtype=torch.bfloat16), ("input feature", "output feature")),
    ],
)
def test_a_matrix_is_drawn_whole(layer: Any, labels: tuple[str, str]) -> None:
    figure = hookscope.filters(layer).figure
    [matrix] = images(figure)
    assert np.array_equal(matrix, layer.weight.detach().float().numpy())
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == labels


def test_a_parameter_can_be_named() -> None:
    model = nn.Sequential(nn.MultiheadAttention(8, 2))
    [matrix] = images(hookscope.filters(model, "0.in_proj_weight").figure)
    assert np.array_equal(matrix, model[0].in_proj_weight.detach().numpy())


def test_the_strongest_filters_are_those_of_the_largest_mean() -> None:
    layer = nn.Conv2d(1, 12, 3)
    order = layer.weight.detach().double().abs().mean((1, 2, 3)).argsort(descending=True)
    drawn = titles(hookscope.filters(layer, by="strength", count=4).figure)
    assert drawn == [f"filter {i}" for i in order[:4].tolist()]


@pytest.mark.parametrize(
    ("layer", "options", "named"),
    [
        ("bn", {}, "bn"),
        ("bn.bias", {}, r"bn\.bias"),
        ("attention", {}, "attention"),
        ("c*", {}, "2 layers"),
        (".", {}, "dimensions"),
        ("c3", {}, "c3"),
        ("c1", {"channels": [4]}, "channel 4"),
    ],
)
def test_what_has_no_picture_is_told_with_a_repair(layer: str, options, named: str) -> None:
    model = nn.ModuleDict({"bn": nn.BatchNorm2d(3), "c1": nn.Conv2d(1, 1, 1)})
    model["c2"], model["attention"] = nn.Conv2d(1, 1, 1), nn.MultiheadAttention(4, 1, kdim=3)
    with pytest.raises((LayerError, RequestError), match=named) as caught:
        hookscope.filters(model, layer, **options)
    assert caught.value.hint
