"""Pictures of a file hold its numbers: panels, points and bars are held against torch and numpy."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from torch import Tensor, nn

import hookscope
from hookscope.errors import RequestError
from hookscope.hooks.capture import Capture
from hookscope.views.images import plot_choice
from hookscope.views.images.colors import SEQUENTIAL
from hookscope.views.images.figures import canvas
from tests.views.text.samples import captured
from tests.zoo import Module

Save = Callable[..., Path]


@pytest.fixture
def saved(tmp_path: Path) -> Save:
    """Record a model on noise, with gradients if asked for, and save it."""

    def make(model: nn.Module, *shape: int, grads: bool = False, **more: Any) -> Path:
        torch.manual_seed(0)
        with hookscope.record(model, grads=grads, **more) as capture:
            output = model(torch.randn(*shape, requires_grad=grads))
            if grads:
                output.square().sum().backward()
        capture.save(tmp_path / "a.safetensors")
        return tmp_path / "a.safetensors"

    return make


@pytest.fixture
def holding(tmp_path: Path) -> Save:
    """Save tensors as the outputs of layers of these names."""

    def make(type: str = "Conv2d", kind: str = "output", **tensors: Tensor) -> Path:
        captured(tensors, type, kind).save(tmp_path / "b.safetensors")
        return tmp_path / "b.safetensors"

    return make


def panels(figure: Figure) -> list[Axes]:
    """The panels that hold an image; not the bars of colours."""
    return [axes for axes in figure.axes if axes.images]


def values(axes: Axes) -> np.ndarray:
    return np.asarray(axes.images[0].get_array())


def conv(channels: int = 20) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, channels, 3), nn.ReLU())


# Feature maps


def test_maps_are_the_channels_of_the_first_sample(saved: Save) -> None:
    file = saved(conv(), 2, 3, 8, 10)
    drawn = panels(hookscope.plot(file, "0/output").figure)
    expected = hookscope.load(file)["0/output"][0].numpy()
    assert [axes.get_title() for axes in drawn] == [f"channel {i}" for i in range(16)]
    for axes, one in zip(drawn, expected, strict=False):
        assert np.array_equal(values(axes), one)


def test_one_scale_has_its_middle_at_zero_and_holds_every_panel(saved: Save) -> None:
    file = saved(conv(), 1, 3, 8, 8)
    figure = hookscope.plot(file, "0/output").figure
    most = float(hookscope.load(file)["0/output"][0, :16].abs().max())
    assert {axes.images[0].get_clim() for axes in panels(figure)} == {(-most, most)}
    assert len(figure.axes) == 16 + 1
    assert figure.axes[-1].get_ylabel() == "value"


def test_equal_values_have_one_colour_in_every_panel(holding: Save) -> None:
    figure = hookscope.plot(holding(dead=torch.zeros(1, 3, 4, 4)), "dead").figure
    FigureCanvasAgg(figure).draw()
    drawn = [axes.images[0] for axes in panels(figure)]
    colors = {tuple(image.to_rgba(np.zeros((1, 1)))[0, 0]) for image in drawn}
    assert len(drawn) == 3 and colors == {(*(SEQUENTIAL[0] / 255), 1.0)}
    assert {image.get_clim() for image in drawn} == {(0.0, 1.0)}


def test_maps_far_longer_than_high_fill_their_panels(holding: Save) -> None:
    figure = hookscope.plot(holding(a=torch.randn(1, 2, 1, 400)), "a").figure
    FigureCanvasAgg(figure).draw()
    for axes in panels(figure):
        frame = axes.get_window_extent()
        assert frame.width < 5 * frame.height


def test_a_scale_each_is_that_of_the_panel(saved: Save) -> None:
    file = saved(conv(), 1, 3, 8, 8)
    figure = hookscope.plot(file, "1/output", scale="each", count=4).figure
    expected = hookscope.load(file)["1/output"][0, :4].numpy()
    limits = [axes.images[0].get_clim() for axes in panels(figure)]
    assert limits == [(float(one.min()), float(one.max())) for one in expected]
    assert len(figure.axes) == 4 + 4


def test_channels_are_chosen_by_number_strength_or_seed(saved: Save) -> None:
    file = saved(conv(), 1, 3, 8, 8)
    tensor = hookscope.load(file)["0/output"][0].double()
    strongest = tensor.abs().mean((1, 2)).argsort(descending=True)[:3].tolist()
    for how, expected in (({"channels": [7, 2]}, [7, 2]), ({"by": "strength"}, strongest)):
        figure = hookscope.plot(file, "0/output", count=3, **how).figure
        assert [axes.get_title() for axes in panels(figure)] == [f"channel {i}" for i in expected]
    with pytest.raises(RequestError, match="channel 20"):
        hookscope.plot(file, "0/output", channels=[20])


def test_the_input_stands_beside_the_output(saved: Save) -> None:
    file = saved(conv(), 1, 3, 8, 8, what=["input", "output"])
    drawing = hookscope.plot(file, "0", channels=[1, 9])
    capture = hookscope.load(file)
    before, *after = [values(axes) for axes in panels(drawing.figure)]
    assert np.array_equal(before, capture["0/input.0"][0, 1].numpy())
    assert np.array_equal(after[1], capture["0/output"][0, 9].numpy())
    assert len(drawing.shows) == 2
    left, right = (t for t in drawing.figure.texts if "channels" in t.get_text())
    assert left.get_text().startswith("input.0, 1x3x8x8")
    assert left.get_position()[0] < right.get_position()[0]


def test_a_slice_and_channels_at_the_end_are_drawn(holding: Save) -> None:
    tokens = torch.randn(1, 5, 6, 3)
    file = holding("Permute", a=tokens)
    [axes] = panels(hookscope.plot(file, "a/output[0,:,:,2]").figure)
    assert np.array_equal(values(axes), tokens[0, :, :, 2].numpy())
    drawn = panels(hookscope.plot(file, "a", kind="maps", dim=-1).figure)
    assert np.array_equal(values(drawn[1]), tokens[0, :, :, 1].numpy())


def test_nan_and_infinities_have_colours_of_their_own_and_are_counted(holding: Save) -> None:
    tensor = torch.randn(1, 1, 4, 4)
    tensor[0, 0, 0, :2], tensor[0, 0, 1, 0] = torch.nan, torch.inf
    figure = hookscope.plot(holding(a=tensor), "a").figure
    [axes] = panels(figure)
    image = axes.images[0]
    colors = (image.to_rgba(image.get_array(), bytes=True)[..., :3]).reshape(16, 3)
    assert colors[[0, 1, 4]].tolist() == [[255, 0, 255]] * 2 + [[0, 255, 255]]
    finite = tensor[tensor.isfinite()]
    assert max(map(abs, image.get_clim())) == float(finite.abs().max())
    assert any("2 NaN (magenta), 1 infinite (cyan)" in t.get_text() for t in figure.texts)


@pytest.mark.parametrize("size", [1e-40, 1e38])
def test_the_smallest_and_the_largest_numbers_are_drawn(holding: Save, size, tmp_path) -> None:
    drawing = hookscope.plot(holding(a=torch.tensor([[[[-1.0, 1.0]]]]) * size), "a")
    assert drawing.save(tmp_path / "a.png")


# Distributions


def test_bars_are_numpys_histogram(saved: Save) -> None:
    file = saved(conv(), 2, 3, 9, 9)
    [axes] = hookscope.plot(file, "0/output", kind="hist").figure.axes
    array = hookscope.load(file)["0/output"].double().numpy()
    counts, edges = np.histogram(array, 64)
    assert [bar.get_height() for bar in axes.patches] == counts.tolist()
    assert [bar.get_x() for bar in axes.patches] == pytest.approx(edges[:-1].tolist())
    assert axes.get_yscale() == "log"
    assert f"mean {array.mean():.3g}, std {array.std():.3g}" in axes.get_title()
    both = hookscope.plot(file, ["0", "1"], kind="hist").figure
    texts = "\n".join(text.get_text() for text in both.findobj(Text))
    assert [texts.count(f"{name}/output") for name in "01"] == [1, 1]  # named once


def test_the_gradient_at_a_layer_is_drawn_without_those_of_its_parameters(
    tmp_path: Path,
) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())
    path = tmp_path / "grads.safetensors"
    hookscope.grads(net, input=torch.randn(1, 1, 9, 9), loss="sum").save(path)
    drawing = hookscope.plot(path, "0")
    alone = hookscope.plot(path, "0/output.grad")
    assert drawing.kind == alone.kind == "maps"
    assert len(drawing.figure.axes) == len(alone.figure.axes)


def test_several_tensors_have_a_panel_each_and_nothing_finite_is_told(holding: Save) -> None:
    file = holding(a=torch.randn(9), b=torch.ones(4), c=torch.full((3,), torch.nan))
    drawing = hookscope.plot(file, "*")
    assert drawing.kind == "hist"
    first, constant, empty = drawing.figure.axes[:3]
    assert len(first.patches) == 64
    assert [bar.get_height() for bar in constant.patches] == [4]
    assert empty.texts[0].get_text() == "no finite entry"
    assert "3 NaN" in empty.get_title()


# From layer to layer


def lines(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """The points of each series, by its name."""
    found = {}
    for container in axes.containers:
        line = container[0]
        found[str(container.get_label())] = (list(line.get_xdata()), list(line.get_ydata()))
    return found


def test_flow_of_values_is_mean_and_standard_deviation_in_execution_order(saved: Save) -> None:
    file = saved(conv(), 1, 3, 8, 8)
    [axes] = hookscope.plot(file).figure.axes
    capture = hookscope.load(file)
    means, rows = lines(axes)["outputs"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1", "(model)"]
    assert rows == [0, 1, 2]
    assert means == pytest.approx([capture[f"{n}/output"].mean().item() for n in "01."])
    [bars] = axes.collections
    spreads = [segment[1][0] - segment[0][0] for segment in bars.get_segments()]
    stds = [capture[f"{n}/output"].std(correction=0).item() for n in "01."]
    assert spreads == pytest.approx([2 * std for std in stds], rel=1e-5)
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first layer at the top


def test_flow_of_gradients_is_norms_from_the_first_layer_to_the_last(saved: Save) -> None:
    file = saved(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), 3, 4, grads=True)
    values_panel, axes = hookscope.plot(file).figure.axes
    capture = hookscope.load(file)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1", "2", "(model)"]
    found = lines(axes)
    norms = [capture[f"{n}/output.grad"].norm().item() for n in "012."]
    assert found["outputs"][0] == pytest.approx(norms)
    weights = [capture[f"{n}/weight.grad"].norm().item() for n in "02"]
    assert found["weights"] == (pytest.approx(weights), [0, 2])
    assert axes.get_xscale() == "log"
    assert values_panel.get_xlabel().startswith("value")


def test_the_order_of_grads_is_that_of_the_forward_pass(repo: Path) -> None:
    shot = hookscope.grads(repo / "sample_models/digits.py:trained", target=3)
    [axes] = hookscope.plot(shot).figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert (names[1:3], names[-2:]) == (["conv1", "relu1"], ["fc", "(model)"])


def test_zeros_and_nan_are_marked_and_not_lost(holding: Save) -> None:
    file = holding(
        kind="output.grad", a=torch.ones(4), b=torch.zeros(4), c=torch.tensor([torch.nan, 2.0])
    )
    [axes] = hookscope.plot(file).figure.axes
    assert lines(axes)["outputs"] == ([2.0, 2.0], [0, 2])  # gradients come last layer first
    marks = {c.get_label(): c.get_offsets().tolist() for c in axes.collections if c.get_label()}
    assert marks["zero"] == [[0.0, 1.0]]
    assert marks["NaN or infinite"] == [[1.0, 0.0]]
    assert {"zero", "NaN or infinite"} < {t.get_text() for t in axes.get_legend().get_texts()}


def test_one_huge_layer_leaves_room_for_the_others(holding: Save) -> None:
    some = {f"l{i}": torch.randn(50) for i in range(6)}
    [axes] = hookscope.plot(holding(**some)).figure.axes
    assert axes.get_xscale() == "linear"
    [axes] = hookscope.plot(holding(**some, huge=1e6 * torch.randn(50))).figure.axes
    assert axes.get_xscale() == "symlog"


# Tokens and attention


@pytest.mark.parametrize(
    ("type", "kind", "channels", "part"),
    [
        ("LayerNorm", None, None, lambda tensor: tensor[0]),
        ("LayerNorm", None, [9, 3], lambda tensor: tensor[0][:, [9, 3]]),
        ("Conv1d", "heat", None, lambda tensor: tensor[0].T),
    ],
)
def test_heat_is_position_by_channel(holding: Save, type: str, kind, channels, part) -> None:
    tensor = torch.randn(2, 7, 40)
    drawing = hookscope.plot(holding(type, a=tensor), "a", kind=kind, channels=channels)
    [axes] = panels(drawing.figure)
    assert drawing.kind == "heat"
    assert np.array_equal(values(axes), part(tensor).numpy())
    if type == "LayerNorm":
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("channel", "position")
    if channels:
        FigureCanvasAgg(drawing.figure).draw()
        assert [label.get_text() for label in axes.get_xticklabels()] == ["9", "3"]


@pytest.mark.parametrize("key", ["self_attn/attention", "self_attn"])
def test_attention_is_drawn_head_by_head_before_the_output_of_its_layer(key: str) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 3, 16, batch_first=True)
    shot = hookscope.capture(layer, attention=True, input=torch.randn(2, 5, 12))
    assert {r.kind for r in shot.records if r.module == "self_attn"} == {"attention", "output"}
    drawing = hookscope.plot(shot, key)
    assert drawing.kind == "attention"
    drawn = panels(drawing.figure)
    assert [axes.get_title() for axes in drawn] == ["head 0", "head 1", "head 2"]
    for axes, head in zip(drawn, shot["self_attn/attention"][0], strict=True):
        assert np.array_equal(values(axes), head.numpy())
        assert values(axes).sum(1) == pytest.approx(np.ones(5))
    assert hookscope.plot(shot, [key, "linear1"]).kind == "hist"


def test_attention_of_several_calls_stands_in_rows(holding: Save) -> None:
    a, b = torch.rand(1, 4, 6, 6), torch.rand(1, 4, 6, 6)
    figure = hookscope.plot(holding(kind="attention", a=a, b=b), count=2, kind="attention").figure
    drawn = [values(axes) for axes in panels(figure)]
    expected = [*a[0, :2], *b[0, :2]]
    assert all(np.array_equal(x, y.numpy()) for x, y in zip(drawn, expected, strict=True))
    assert {"a/attention", "b/attention"} < {t.get_text() for t in figure.texts}


# What is drawn as what


@pytest.mark.parametrize(
    ("type", "kind", "shape", "expected"),
    [
        ("Conv2d", "output", (1, 4, 5, 5), "maps"),
        ("Conv2d", "output.grad", (1, 4, 5, 5), "maps"),
        ("Conv2d", "param.grad", (4, 3, 5, 5), "hist"),
        ("Linear", "output", (1, 10), "hist"),
        ("AdaptiveAvgPool2d", "output", (1, 4, 1, 1), "hist"),
        ("LayerNorm", "output", (1, 6, 8), "heat"),
        ("MultiheadAttention", "attention", (1, 2, 6, 6), "attention"),
        ("Conv3d", "output", (1, 4, 2, 5, 5), "maps"),
        ("Conv2d", "output", (4, 5, 5), "maps"),  # without a batch
        ("Conv1d", "output", (1, 4, 6), "heat"),
        ("Linear", "output", (1, 5, 6, 1), "maps"),
        ("Linear", "output", (1, 1, 1, 8), "hist"),
        ("Loss", "output", (), "hist"),
        ("Conv2d", "output", (0, 4, 5, 5), "hist"),
    ],
)
def test_the_kind_is_what_fits_and_is_told(
    holding: Save, caplog: pytest.LogCaptureFixture, type: str, kind: str, shape, expected: str
) -> None:
    file = holding(type, kind, a=torch.rand(shape))
    with caplog.at_level("INFO", "hookscope"):
        assert hookscope.plot(file, "a").kind == expected
    assert f"kind: {expected} (a/{kind} " in caplog.text
    # The file has nothing else, so it is drawn in the same way without a key.
    assert hookscope.plot(file).kind == expected


def test_a_kind_that_is_asked_for_is_not_told(holding: Save, caplog) -> None:
    with caplog.at_level("INFO", "hookscope"):
        drawing = hookscope.plot(holding(a=torch.rand(1, 4, 5, 5)), layer="a", kind="histogram")
    assert drawing.kind == "hist" and "kind" not in caplog.text


def test_a_file_with_attention_weights_is_drawn_by_those_that_a_figure_has_room_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (plot_choice, canvas):
        monkeypatch.setattr(module, "MAX_PANELS", 12)
    shot = Capture()
    for layer in range(5):
        for what, shape in (("attention", (1, 4, 2, 2)), ("output", (1, 2, 8))):
            shot.put(torch.rand(shape), module=f"h.{layer}", type="A", call=1, what=what, kind=what)
    shot.save(tmp_path / "a.safetensors")
    with caplog.at_level("INFO", "hookscope"):
        drawing = hookscope.plot(tmp_path / "a.safetensors")
    assert (drawing.kind, len(panels(drawing.figure))) == ("attention", 3 * 4)
    assert "2 layers from h.3" in caplog.text
    drawing = hookscope.plot(tmp_path / "a.safetensors", channels=[3])
    assert len(panels(drawing.figure)) == 5


@pytest.mark.parametrize(
    ("keys", "more", "named"),
    [
        (["b"], {}, "'b'"),
        (["*"], {"kind": "maps"}, "3 tensors"),
        (["a"], {"kind": "attention"}, "attention"),
        (["a"], {"kind": "heat", "dim": 4}, "dimension 4"),
        (["a/output[0,0,0,0]"], {"kind": "heat"}, "a/output"),
        (["wide"], {"count": 500}, "401 panels"),
    ],
)
def test_what_cannot_be_drawn_is_told_with_a_repair(
    holding: Save, keys: Sequence[str], more: dict[str, Any], named: str
) -> None:
    one = torch.rand(1, 2, 3, 4)
    with pytest.raises(RequestError, match=named) as caught:
        hookscope.plot(holding(a=one, c=one + 1, wide=torch.rand(1, 401, 2, 2)), keys, **more)
    assert caught.value.hint


# Legible


def luminance(color: tuple[float, ...]) -> float:
    """Relative luminance as WCAG 2 defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_on_its_paper(saved: Save, dark: bool) -> None:
    from matplotlib.colors import to_rgb

    figure = hookscope.plot(saved(conv(), 1, 3, 8, 8), dark=dark).figure
    FigureCanvasAgg(figure).draw()
    paper = luminance(figure.get_facecolor())
    assert (paper < 0.05) == dark
    for text in figure.findobj(Text):
        light, deep = sorted([luminance(to_rgb(text.get_color())), paper], reverse=True)
        assert (light + 0.05) / (deep + 0.05) >= 7, text.get_text()


def test_names_are_no_formulas_and_no_markup(saved: Save, tmp_path: Path) -> None:
    names = ["$x$", "_a_^2", "<script>", r"\alpha$", "\u4e2d"]
    model = nn.Sequential(OrderedDict((name, nn.Linear(2, 2)) for name in names))
    hookscope.plot(saved(model, 1, 2)).save(tmp_path / "a.svg")
    import xml.etree.ElementTree as Tree

    words = {node.text for node in Tree.parse(tmp_path / "a.svg").iter() if node.text}
    assert {"$x$", "_a_^2", "<script>", r"\alpha$", r"\u4e2d"} <= words


# Gradients, and the place of everything on the page


def gradient_at_images(channels: int = 3) -> tuple[hookscope.Capture, np.ndarray]:
    """The gradient at each pixel is the weight there, whatever the image."""
    weight = nn.Parameter(odd(channels, 24, 32))
    model = Module(lambda self, x: (x * weight).flatten(1).sum(1, keepdim=True))
    shape = (2, channels, 24, 32)
    shot = hookscope.grads(model, layers=["."], what="input", shape=shape, loss="sum")
    return shot, weight.detach().double().numpy()


def head_of(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.texts)


def test_the_gradient_at_an_image_is_one_picture_to_its_99th_percentile() -> None:
    shot, weight = gradient_at_images()
    drawing = hookscope.plot(shot, "./input.0.grad")
    [axes] = panels(drawing.figure)
    wanted = np.abs(weight).max(0)
    bound = np.percentile(wanted, 99)
    assert bound < 0.5 * wanted.max()
    assert np.array_equal(values(axes), wanted.clip(None, bound))
    assert axes.images[0].get_clim() == (wanted.min(), bound)
    head = head_of(drawing.figure)
    assert f"99th percentile, {bound:.3g} (largest {wanted.max():.3g})" in head
    assert "sample 0 of 2" in head and "3 channels" in drawing.shows[0]
    assert "the model (Module)" in drawing.figure.get_suptitle()


def test_channels_of_a_gradient_that_are_named_are_drawn_as_they_are() -> None:
    shot, weight = gradient_at_images()
    drawn = panels(hookscope.plot(shot, "./input.0.grad", channels=[2, 0]).figure)
    bound = np.percentile(np.abs(weight[[2, 0]]), 99)
    for axes, channel in zip(drawn, (2, 0), strict=True):
        assert np.array_equal(values(axes), weight[channel].clip(-bound, bound))
        assert axes.images[0].get_clim() == (-bound, bound)
    shot, _ = gradient_at_images(4)
    assert len(panels(hookscope.plot(shot, "./input.0.grad", kind="maps").figure)) == 4


def odd(*shape: int) -> Tensor:
    """Values of which one in a hundred is much larger than the others."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) ** 5


def one_entry() -> Tensor:
    gradient = torch.zeros(1, 1, 20, 20)
    gradient[0, 0, 3, 4] = -2.0
    return gradient


@pytest.mark.parametrize(
    ("kind", "scale", "make", "ends"),
    [
        ("output.grad", "each", partial(odd, 1, 3, 20, 20), lambda x: np.percentile(x, 99, (1, 2))),
        ("output.grad", "grid", one_entry, None),
        ("output", "grid", partial(odd, 1, 1, 20, 20), lambda x: [x.max()]),
    ],
    ids=["a percentile of each panel", "one entry that is not zero", "values to their ends"],
)
def test_colours_of_gradients_end_at_a_percentile_and_those_of_values_do_not(
    holding: Save, kind: str, scale: str, make, ends
) -> None:
    tensor = make()
    figure = hookscope.plot(holding(kind=kind, a=tensor), "a", kind="maps", scale=scale).figure
    limits = [axes.images[0].get_clim() for axes in panels(figure)]
    wanted = [(-2.0, 0.0)] if ends is None else [(-x, x) for x in ends(tensor[0].abs().numpy())]
    assert np.allclose(limits, wanted)
    assert ("percentile" in head_of(figure)) is (kind == "output.grad")
