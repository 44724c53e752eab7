"""The figures of a page against numbers computed here from the tensors, with numpy alone."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import hookscope
from hookscope.stores.capture_file import open_capture
from hookscope.views.html.capture_page import CapturePage, PageLimits, build_page
from hookscope.views.html.page import PageFigure
from hookscope.views.html.page_images import input_figure
from hookscope.views.images.colors import ColorScale
from tests.views.text.samples import captured

SMALL = PageLimits(4, 16)
SVG_HEIGHT = 60


def page_of(*files: Path) -> CapturePage:
    return build_page([open_capture(file) for file in files], SMALL)


def figures(page: CapturePage, key: str) -> tuple[PageFigure, ...]:
    [entry] = [entry for node in page.tree for entry in node.entries if entry.key == key]
    return entry.panels[0].figures


def values(file: Path, key: str) -> np.ndarray:
    return hookscope.load(file)[key].double().numpy()


# Histograms


def heights(figure: PageFigure) -> list[tuple[float, float]]:
    """Left edge and height of each bar, as the path draws them, of a figure 200 wide."""
    path = ElementTree.fromstring(str(figure.svg)).find("path")
    assert path is not None
    bars = re.findall(r"M(\S+) 60v-(\S+?)h(\S+?)V60z", path.attrib["d"])
    assert "".join(f"M{x} 60v-{h}h{w}V60z" for x, h, w in bars) == path.attrib["d"]
    return [(float(x), float(h)) for x, h, _ in bars]


@pytest.mark.parametrize("key", ["stage1.0/output", "stage1.1/output", "./input.0"])
def test_the_bars_of_a_histogram_are_the_counts_that_numpy_makes(folder, key) -> None:
    file = folder / "values.safetensors"
    bars = heights(figures(page_of(file), key)[0])
    counts, _ = np.histogram(values(file, key), bins=40)
    full = np.flatnonzero(counts)
    assert [round(x / 5) for x, _ in bars] == full.tolist()  # 40 bars of 5
    most = counts.max()
    highest = max(height for _, height in bars)
    assert highest < SVG_HEIGHT
    measured = np.expm1([height / highest * np.log1p(most) for _, height in bars])
    # An entry on the edge of two bars may be in either; a height has four digits.
    assert np.all(np.abs(measured - counts[full]) <= 1.01 + 0.005 * counts[full])


def test_a_histogram_tells_its_ends_its_highest_bar_and_what_is_not_drawn(folder) -> None:
    file = folder / "odd.safetensors"
    there = values(file, "stage2.0/output")
    finite = there[np.isfinite(there)]
    caption = figures(page_of(file), "stage2.0/output")[0].caption
    low, high = map(float, re.findall(r"^(\S+) to (\S+);", caption)[0])
    assert (low, high) == pytest.approx((finite.min(), finite.max()), rel=1e-3)
    most = np.histogram(finite, bins=40)[0].max()
    highest_bar = int(re.findall(r"highest bar ([\d,]+)", caption)[0].replace(",", ""))
    assert abs(highest_bar - most) <= 1
    assert f"{np.isnan(there).sum()} NaN not drawn" in caption
    assert f"{np.isinf(there).sum()} Inf not drawn" in caption


# Flow


def points(figure: PageFigure) -> dict[str, tuple[float, float]]:
    """The horizontal position and the value of each key, read from the scale of the drawing."""
    root = ElementTree.fromstring(str(figure.svg))
    scale = {
        float(text.attrib["y"]) - 4: np.log10(float(text.text or ""))
        for text in root.iter("text")
        if text.get("class") == "end"
    }
    (y0, p0), (y1, p1) = next(iter(scale.items())), list(scale.items())[-1]
    values = {}
    for circle in root.iter("circle"):
        key = (circle.findtext("title") or "").partition(":")[0]
        power = p0 + (float(circle.attrib["cy"]) - y0) * (p1 - p0) / (y1 - y0)
        values[key] = (float(circle.attrib["cx"]), 10**power)
    line = root.find("path[@class='line line0']")
    assert line is not None
    corners = [tuple(map(float, p.split())) for p in line.attrib["d"][1:].split("L")]
    circles = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.iter("circle")]
    assert corners == circles
    return values


def test_the_flow_of_activations_is_their_standard_deviations(folder) -> None:
    file = folder / "values.safetensors"
    [figure] = page_of(file).flow
    drawn = points(figure)
    assert list(drawn) == [
        *("stage1.0/output", "stage1.1/output", "stage2.0/output", "stage2.1/output"),
        *("<script>alert(1)</script>/output", "fc/output"),
    ]
    for key, (_, value) in drawn.items():
        assert value == pytest.approx(values(file, key).std(), rel=0.02), key
    places = [x for x, _ in drawn.values()]
    assert np.diff(places) == pytest.approx([np.diff(places).mean()] * 5, abs=0.11)


def test_the_flow_of_gradients_is_their_norms_first_layer_first(folder) -> None:
    file = folder / "grads.safetensors"
    outputs, parameters = page_of(file).flow
    for figure, suffix in ((outputs, "/output.grad"), (parameters, ".grad")):
        drawn = points(figure)
        assert all(key.endswith(suffix) for key in drawn)
        assert next(iter(drawn)).startswith("stage1.0/")
        assert list(drawn)[-1].startswith("fc/")
        for key, (_, value) in drawn.items():
            assert value == pytest.approx(np.linalg.norm(values(file, key).ravel()), rel=0.02), key


def labels(figure: PageFigure) -> list[str]:
    root = ElementTree.fromstring(str(figure.svg))
    return [text.text or "" for text in root.iter("text") if text.get("class") != "end"]


def test_the_labels_below_tell_the_parts_that_take_most_of_the_width(tmp_path) -> None:
    stem = nn.Sequential()
    stem.add_module("a_long_stem", nn.Linear(2, 2))
    blocks = nn.Sequential(*(nn.Sequential(*(nn.ReLU() for _ in range(20))) for _ in range(3)))
    stem.add_module("body", blocks)
    hookscope.capture(stem, input=torch.ones(1, 2)).save(tmp_path / "a.safetensors")
    [figure] = page_of(tmp_path / "a.safetensors").flow
    # The body is nearly all there is, so its own parts are named; the stem has no room.
    assert labels(figure) == ["body.0", "body.1", "body.2"]
    other = nn.Sequential(*(nn.Linear(2, 2) for _ in range(8)))
    wrapped = nn.Sequential()
    wrapped.add_module("net", other)
    hookscope.capture(wrapped, input=torch.ones(1, 2)).save(tmp_path / "b.safetensors")
    [figure] = page_of(tmp_path / "b.safetensors", tmp_path / "a.safetensors").flow
    # Beside another model only what is wide is taken apart.
    assert labels(figure) == ["net", "body.0", "body.1", "body.2"]


def test_the_last_label_without_room_to_the_right_ends_at_its_tick(tmp_path) -> None:
    net = nn.Sequential()
    for name in ("stem", "body", "head"):
        net.add_module(name, nn.Linear(2, 2))
    hookscope.capture(net, input=torch.ones(1, 2)).save(tmp_path / "a.safetensors")
    [figure] = page_of(tmp_path / "a.safetensors").flow
    assert labels(figure) == ["stem", "body", "head"]
    texts = ElementTree.fromstring(str(figure.svg)).iter("text")
    classes = {text.text: text.get("class") for text in texts}
    assert (classes["body"], classes["head"]) == ("", "last")


# What went in


def test_the_input_looks_as_the_file_did_where_its_preprocessing_is_known(repo, tmp_path) -> None:
    path = str(repo / "img.png")
    shot = hookscope.capture("squeezenet1_1", input=path, layers=["."], what=["input"])
    shot.save(tmp_path / "a.safetensors")
    figure = input_figure(open_capture(tmp_path / "a.safetensors"))
    assert figure is not None
    assert "scaled" not in figure.caption
    image = Image.open(path).convert("RGB")
    scale = 256 / min(image.size)
    image = image.resize(tuple(int(side * scale) for side in image.size), Image.Resampling.BILINEAR)
    left, top = (round((side - 224) / 2) for side in image.size)
    wanted = np.asarray(image.crop((left, top, left + 224, top + 224)), int)
    assert np.abs(pixels(figure)[:224, :224].astype(int) - wanted).max() <= 1


def pixels(figure: PageFigure) -> np.ndarray:
    data = base64.b64decode(figure.image.partition(",")[2])
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))[..., :3]


def test_an_input_of_unknown_making_is_said_to_be_scaled(tmp_path) -> None:
    x = torch.linspace(-2, 6, 2 * 3 * 4 * 4).reshape(2, 3, 4, 4)
    net = nn.Sequential(nn.Conv2d(3, 2, 1))
    hookscope.capture(net, input=x, what=["input"]).save(tmp_path / "a.safetensors")
    figure = input_figure(open_capture(tmp_path / "a.safetensors"))
    assert figure is not None
    assert figure.caption.endswith("black is -2.000, white is 6.000")
    scaled = np.rint((x.numpy() + 2) / 8 * 255)
    assert (pixels(figure)[:4, 5:9] == np.moveaxis(scaled[1], 0, -1)).all()


def test_only_the_models_own_input_has_its_preprocessing_undone(repo, tmp_path) -> None:
    """What a layer inside gets may have been made anything of on the way."""
    path = str(repo / "img.png")
    shot = hookscope.capture("squeezenet1_1", input=path, layers="features.0", what="input")
    shot.save(tmp_path / "a.safetensors")
    figure = input_figure(open_capture(tmp_path / "a.safetensors"))
    assert figure is not None
    assert "scaled" in figure.caption


# What colours mean


def test_colours_of_what_is_not_finite_are_told_and_no_scale_is_where_nothing_is(tmp_path) -> None:
    entries = [[torch.nan] * 4, [torch.inf] * 4, [0.0, 1.0, torch.nan, torch.inf]]
    tensors = {f"{n}": torch.tensor(x).reshape(1, 1, 2, 2) for n, x in enumerate(entries)}
    captured(tensors).save(tmp_path / "a.safetensors")
    page = page_of(tmp_path / "a.safetensors")
    captions = [figures(page, f"{n}/output")[-1].caption for n in range(3)]
    assert [text.split("; ")[1:] for text in captions] == [
        ["magenta NaN"],
        ["cyan infinite"],
        ["dark 0 to light 1.000", "magenta NaN", "cyan infinite"],
    ]


def test_colours_of_a_gradient_end_where_those_of_plot_do(tmp_path) -> None:
    gradient = torch.randn(1, 1, 20, 20, generator=torch.Generator().manual_seed(0)) ** 5
    capture = hookscope.Capture()
    for what in ("output.grad", "output"):
        capture.put(gradient.clone(), module="a", type="X", call=1, what=what, kind=what)
    capture.save(tmp_path / "a.safetensors")
    page = page_of(tmp_path / "a.safetensors")
    ends = {"output.grad": np.percentile(gradient.abs(), 99), "output": gradient.abs().max()}
    for what, end in ends.items():
        figure = figures(page, f"a/{what}")[-1]
        wanted = ColorScale(-float(end), float(end), diverging=True).paint(gradient[0, 0].numpy())
        assert (pixels(figure)[..., :3] == wanted).all()
        assert ("99th percentile" in figure.caption) == (what == "output.grad")
    drawn = hookscope.plot(capture, "a/output.grad", kind="maps").figure.axes[0].images[0]
    assert drawn.get_clim()[1] == pytest.approx(ends["output.grad"])
