"""The texts of a picture lie inside it and do not overlap, measured as matplotlib draws them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

import hookscope
from hookscope.results.layer_similarity import (
    ComparedFolder,
    ComparedLayer,
    LayerSimilarity,
)
from hookscope.views.display import draw_analysis
from hookscope.views.images.figures.drawing import paper_style
from hookscope.views.images.matrices import AttentionHeads, draw_attention
from tests.views.error_results import deep, local_diff
from tests.views.text.samples import captured

MODEL = "sample_models/digits.py:trained"
CAPITALS = "hf:sample_models/capitals"
FRANCE = "text:the capital of France is"


def text_boxes(figure: Figure) -> Iterator[tuple[str, Bbox]]:
    """Each text of a figure that is drawn, with its box in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    beyond = set(_labels_beyond_an_axis(figure))
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and text not in beyond:
            yield text.get_text(), text.get_window_extent(renderer)


def _labels_beyond_an_axis(figure: Figure) -> Iterator[Text]:
    """The labels of ticks that lie outside the limits of their axis, which are not drawn."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            place = axis.get_transform().transform
            low, high = sorted(map(float, place(axis.get_view_interval())))
            slack = (high - low) * 1e-6
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                at = float(place(tick.get_loc()))
                if not axes.axison or not low - slack <= at <= high + slack:
                    yield from (tick.label1, tick.label2)


def faults(figure: Figure) -> list[str]:
    """Texts that leave the figure, and pairs that overlap by more than a pixel."""
    boxes = list(text_boxes(figure))
    page = figure.bbox
    found = [
        f"{name!r} leaves the picture"
        for name, box in boxes
        if box.x0 < page.x0 - 1
        or box.y0 < page.y0 - 1
        or box.x1 > page.x1 + 1
        or box.y1 > page.y1 + 1
    ]
    for (name, box), (other, more) in itertools.combinations(boxes, 2):
        wide = min(box.x1, more.x1) - max(box.x0, more.x0)
        tall = min(box.y1, more.y1) - max(box.y0, more.y0)
        if wide > 1 and tall > 1:
            found.append(f"{name!r} overlaps {other!r}")
    return found


def capture(what: str, tmp_path: Path) -> Path:
    """A file of results to draw."""
    path = tmp_path / f"{what}.safetensors"
    if what == "attention":
        shot = hookscope.capture(CAPITALS, input=FRANCE, attention=True, layers="*self_attn")
    elif what == "values":
        shot = hookscope.capture(
            MODEL, input="sample_models/five.png", layers="*", what=["output", "input"]
        )
    else:
        shot = hookscope.grads(
            MODEL, input="sample_models/five.png", target=3, what=["output", "input", "param"]
        )
    shot.save(path)
    return path


PLOTS = [
    ("values", [], {}),
    ("attention", [], {"kind": "attention"}),
    ("attention", ["model.layers.1.self_attn"], {}),
    ("attention", ["model.layers.1.self_attn"], {"scale": "each"}),
    ("values", ["conv1"], {}),
    ("values", ["conv*"], {"kind": "hist"}),
    ("values", ["fc"], {}),
    ("gradients", [], {}),
    ("gradients", ["conv1"], {}),
    ("gradients", ["./input.0.grad"], {}),
    ("gradients", ["fc/weight.grad"], {}),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("what", "keys", "how"), PLOTS)
def test_texts_of_a_plot_fit(what, keys, how, tmp_path: Path, repo: Path, monkeypatch) -> None:
    monkeypatch.chdir(repo)
    assert faults(hookscope.plot(capture(what, tmp_path), *keys, **how).figure) == []


def square(rows: int) -> np.ndarray:
    return np.tril(np.ones((1, rows, rows))) / rows


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("count", "heads", "word"),
    [
        (2, 1, "a"),
        (9, 3, " WWWWWWWW"),
        (24, 12, " MMMMMMMMMMMMMMMMMMM"),
        (25, 3, "a"),
        (197, 12, "a"),
    ],
)
def test_texts_of_attention_fit(count: int, heads: int, word: str) -> None:
    values = np.repeat(square(count), heads, axis=0)
    tokens = tuple(f"{word}{i}" for i in range(count))
    layer = AttentionHeads("model.layers.0.self_attn", values, tuple(range(heads)), tokens, tokens)
    with paper_style(dark=False):
        figure = draw_attention(
            [layer, layer], "Attention", "a model; input: text", each=heads == 3
        )
    assert faults(figure) == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [1e-9, 1.3e-4, 0.013, 130.0, 1.3e5])
def test_numbers_beside_a_colour_bar_fit(size: float) -> None:
    value = size * torch.linspace(-1, 1, 3 * 8 * 8).reshape(1, 3, 8, 8)
    for kind in ("output", "output.grad"):
        for scale in ("grid", "each"):
            shot = captured({"conv": value}, "Conv2d", kind)
            assert faults(hookscope.plot(shot, "conv", kind="maps", scale=scale).figure) == []


def test_the_exponent_of_a_gradient_at_an_image_fits(repo: Path) -> None:
    image, net = repo / "img.png", torch.nn.Conv2d(3, 4, 7, 4)
    shot = hookscope.grads(net, input=image, size=224, what="input", layers=".", loss="norm")
    drawing = hookscope.plot(shot, "./input.0.grad")
    assert faults(drawing.figure) == []


def test_few_similarities_fill_the_picture() -> None:
    [matrix] = [axes for axes in drawn_similarities(2).axes if axes.texts]
    box = matrix.get_position()
    assert box.width > 0.45


def test_the_legend_of_probes_is_beside_the_panel(repo: Path, monkeypatch) -> None:
    monkeypatch.chdir(repo)
    figure = draw_analysis(ANALYSES["probe"](), 150).figure
    FigureCanvasAgg(figure).draw()
    [axes] = figure.axes
    legend = axes.get_legend()
    assert legend is not None
    assert legend.get_window_extent().x0 >= axes.get_window_extent().x1


ANALYSES: dict[str, Callable[[], object]] = {
    "sweep": lambda: hookscope.sweep(MODEL, edit="zero", input="sample_models/five.png"),
    "attribute": lambda: hookscope.attribute(
        CAPITALS, input=FRANCE, target=" Paris", baseline=" warm"
    ),
    "occlusion": lambda: hookscope.attribute(CAPITALS, input=FRANCE, by="occlusion"),
    "rollout": lambda: hookscope.attribute(CAPITALS, input=FRANCE, by="rollout"),
    "similar": lambda: hookscope.similar("sample_models/features"),
    "positions": lambda: hookscope.sweep(
        CAPITALS,
        edit="zero",
        layers="model.layers.?",
        positions="all",
        input=FRANCE,
        target=" Paris",
    ),
    "lens": lambda: hookscope.lens(CAPITALS, input=FRANCE, layers="model.layers.?"),
    "probe": lambda: hookscope.probe(
        "sample_models/features", labels="sample_models/odd.csv", test=0.4
    ),
    "top": lambda: hookscope.top("sample_models/features", layer="fc", units=[0, 1, 2], count=2),
    "diff": lambda: hookscope.diff(
        "sample_models/five.safetensors", "sample_models/five.safetensors"
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ANALYSES)
def test_texts_of_an_analysis_fit(name: str, repo: Path, monkeypatch) -> None:
    monkeypatch.chdir(repo)
    assert faults(draw_analysis(ANALYSES[name](), 150).figure) == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("count", [1, 2, 3, 12, 24, 25, 130])
def test_texts_of_similarities_fit(count: int) -> None:
    assert faults(drawn_similarities(count)) == []


def drawn_similarities(count: int) -> Figure:
    layers = tuple(ComparedLayer(f"layer{i}.0.conv1/output", (8,)) for i in range(count))
    folder = ComparedFolder("features", "resnet18", layers)
    values = tuple(map(tuple, np.eye(count).tolist()))
    result = LayerSimilarity("cka", folder, None, values, 10, {})
    return draw_analysis(result, 150).figure


@pytest.mark.parametrize("count", [1, 60, 2000])
def test_texts_of_errors_over_depth_fit(count: int) -> None:
    result = deep(count) if count > 1 else local_diff([("layer1.0.conv1" * 9, math.inf, math.inf)])
    assert faults(draw_analysis(result, 150).figure) == []


@pytest.mark.parametrize("layers", [1, 3, 40, 400])
def test_names_of_layers_fit(layers: int) -> None:
    names = [f"encoder.layers.encoder_layer_{i}.mlp" for i in range(layers)]
    figure = hookscope.plot(captured({name: torch.randn(9) for name in names}), kind="flow").figure
    assert faults(figure) == []
    shown = [label.get_text() for label in figure.axes[0].get_yticklabels() if label.get_text()]
    assert len(shown) == layers or 40 <= len(shown) < layers
    assert figure.get_figheight() < 20


@pytest.mark.sampled(4)
@pytest.mark.parametrize("count", [1, 2, 16, 60])
@pytest.mark.parametrize("scale", ["grid", "each"])
def test_panels_and_their_titles_lie_apart(count: int, scale: str) -> None:
    shot = captured({"a_long_name_of_a_module." * 5 + "last": torch.randn(1, 60, 6, 9)})
    figure = hookscope.plot(shot, count=count, scale=scale, kind="maps").figure
    assert faults(figure) == []
    frames = [axes.get_window_extent() for axes in figure.axes if axes.images]
    assert len(frames) == count
    boxes = [box for _, box in text_boxes(figure)]
    for i, frame in enumerate(frames):
        assert not any(frame.overlaps(other) for other in frames[:i])
        assert not any(
            frame.overlaps(box) for box in boxes if scale == "grid" and box.x1 < frame.x1
        )


def plotted(*shape: int, kind: str = "output", **how: object) -> Figure:
    values = torch.rand(shape, generator=torch.Generator().manual_seed(0)).softmax(-1)
    return hookscope.plot(captured({"a": values}, kind=kind), "a", **how).figure


def filtered(inputs: int, outputs: int = 7, **how: object) -> Figure:
    return hookscope.filters(torch.nn.Conv2d(inputs, outputs, 3), **how).figure


LAYOUTS: dict[str, Callable[[], Figure]] = {
    "maps": lambda: plotted(1, 9, 6, 6),
    "one map": lambda: plotted(1, 9, 6, 6, count=1),
    "many maps": lambda: plotted(1, 9, 6, 6, channels=list(range(9)) * 8),
    "attention": lambda: plotted(1, 5, 6, 6, kind="attention"),
    "colour": lambda: filtered(3),
    "one in colour": lambda: filtered(3, count=1),
    "grey": lambda: filtered(1, count=2),
    "pairs": lambda: filtered(4, 2),
    "each": lambda: filtered(1, scale="each"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", LAYOUTS)
def test_text_begins_with_the_tiles_and_nothing_is_left_empty(kind: str) -> None:
    figure = LAYOUTS[kind]()
    assert faults(figure) == []
    frames = [axes.get_window_extent() for axes in figure.axes if axes.images]
    left, bottom = min(f.x0 for f in frames), min(f.y0 for f in frames)
    right, top = max(f.x1 for f in frames), max(f.y1 for f in frames)
    heads = {t.get_text() for t in [*figure.texts, figure._suptitle, figure._supxlabel] if t}
    for text, box in text_boxes(figure):
        assert text not in heads or box.x0 == pytest.approx(left, abs=3)
    bars = [axes.get_window_extent() for axes in figure.axes if not axes.images]
    if kind in ("maps", "many maps", "attention", "colour", "one in colour", "grey", "pairs"):
        [bar] = bars
        assert (bar.y0, bar.y1) == pytest.approx((bottom, top), abs=1)
    else:
        assert not bars or kind in ("each", "one map")
    drawn = figure.get_tightbbox(FigureCanvasAgg(figure).get_renderer())
    assert figure.get_figwidth() - drawn.x1 < (0.4 if bars else 0.12)
    assert bars or (right - left) / figure.dpi > figure.get_figwidth() - 0.2
