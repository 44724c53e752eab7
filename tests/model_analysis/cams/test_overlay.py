"""The picture of a map: its colours, its size, its formats, and the end of its scale."""

from __future__ import annotations

import xml.etree.ElementTree as Tree
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from matplotlib import colormaps
from PIL import Image
from torch import nn

import hookscope
from hookscope.errors import RequestError
from hookscope.files.output_path import check_output, picture_ending
from hookscope.model_analysis.cams.overlay import draw_overlay, save_overlay
from hookscope.views.images.cam_picture import MIDDLE
from hookscope.views.images.cam_sheet import BAR, GAP, LINE, SCALE, TITLE
from hookscope.views.images.colors import INFINITE, NAN
from tests.conftest import REPO
from tests.model_analysis.cams.models import (
    WITHOUT_ATTENTION,
    images,
    seeded,
)
from tests.zoo import InPlace

DIGITS = f"{REPO}/sample_models/digits.py:trained"
FIVE = f"{REPO}/sample_models/five.png"
# Of the first image: below the title, a line, an empty one, its caption and the panels' titles.
TOP = GAP + round(TITLE * LINE) + 4 * LINE
MIDDLES = 25 + 50 * np.arange(8)  # each of the 8 pixels of the five is 50 wide


@pytest.fixture(scope="module")
def shot() -> hookscope.Capture:
    return hookscope.cam(DIGITS, input=FIVE)


def over(picture: Image.Image) -> np.ndarray:
    """The map's pixels over the image."""
    pixels = np.asarray(picture.convert("RGB")).astype(float)
    return pixels[np.ix_(TOP + MIDDLES, 2 * GAP + 400 + MIDDLES)]


def grey_of(shot: hookscope.Capture) -> np.ndarray:
    image = shot["./image"][0].permute(1, 2, 0).numpy()
    return MIDDLE + (image.mean(2, keepdims=True) - MIDDLE) / 2


@pytest.mark.parametrize("alpha", [0, 0.25, 1])
@pytest.mark.parametrize("name", ["viridis", "jet"])
def test_alpha_mixes_the_colours_of_matplotlib_with_the_image(shot, alpha, name) -> None:
    heat = shot["./cam"][0].double().numpy()
    largest = shot["pool/cam"].max().item()  # as in the table
    assert largest > heat.max()
    colors = colormaps[name](heat / largest)[..., :3] * 255
    wanted = alpha * colors + (1 - alpha) * grey_of(shot)
    # A colour of the table is that of the nearest of 256 positions.
    assert abs(over(draw_overlay(shot, alpha=alpha, colormap=name)) - wanted).max() <= 8
    if alpha == 0:
        assert abs(over(draw_overlay(shot, alpha=0)) - wanted).max() <= 1


def test_the_ends_of_the_bar_are_those_of_the_colour_map(shot) -> None:
    pixels = np.asarray(draw_overlay(shot, alpha=1, colormap="hot"))
    bar = pixels[TOP : TOP + 400, 3 * GAP + 800 + BAR // 2]
    ends = [colormaps["hot"](end, bytes=True)[:3] for end in (1.0, 0.0)]
    assert bar[[0, -1]].tolist() == [list(end) for end in ends]
    assert not (pixels[[TOP - 1, TOP + 400], 3 * GAP + 800 + BAR // 2] != 255).any()


@pytest.mark.parametrize(
    ("choice", "value", "hint"),
    [
        *(("colormap", "virids", "viridis"), ("colormap", "qqqq", "viridis, magma")),
        *(("alpha", 1.2, "1 "), ("alpha", float("nan"), "0 ")),
        *(("dpi", dpi, "150") for dpi in (0, -150, 1201)),
    ],
)
def test_a_wrong_look_is_refused(shot, choice, value, hint) -> None:
    with pytest.raises(RequestError, match=str(value)) as caught:
        draw_overlay(shot, **{choice: value})
    assert hint in caught.value.hint


def test_a_capture_without_a_map_is_refused(tmp_path: Path) -> None:
    other = hookscope.capture(DIGITS, input=FIVE)
    for draw in (draw_overlay, partial(save_overlay, path=tmp_path / "a.png")):
        with pytest.raises(RequestError, match="of cam"):
            draw(other)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dpi", [75, 150, 300])
def test_dpi_is_pixels_an_inch(shot, tmp_path: Path, dpi: int) -> None:
    sizes = {}
    for ending in ("png", "jpg"):
        save_overlay(shot, tmp_path / f"a.{ending}", dpi=dpi)
        with Image.open(tmp_path / f"a.{ending}") as opened:
            sizes[ending] = opened.size
            assert opened.info["dpi"] == pytest.approx((dpi, dpi), abs=0.1)
    assert sizes["png"] == sizes["jpg"] == draw_overlay(shot, dpi=dpi).size
    inches = (2 * 400 + 4 * GAP + BAR + SCALE) / 150
    assert sizes["png"][0] / dpi == pytest.approx(inches, abs=0.02)


@pytest.mark.parametrize("ending", [".png", ".jpg", ".jpeg", ".svg", ".pdf", ".PNG"])
def test_the_same_picture_gives_the_same_bytes_and_is_known_as_ours(shot, tmp_path, ending) -> None:
    path = tmp_path / f"a{ending}"
    assert save_overlay(shot, path) == path.stat().st_size
    written = path.read_bytes()
    assert check_output(path, suffix=picture_ending(path)) is True
    save_overlay(shot, path)
    assert path.read_bytes() == written
    path.write_bytes(written.replace(b"hookscope", b"somebody!"))
    with pytest.raises(RequestError, match="hookscope"):
        check_output(path, suffix=picture_ending(path))


def test_a_jpeg_shows_what_the_png_shows(shot, tmp_path: Path) -> None:
    save_overlay(shot, tmp_path / "a.jpg")
    with Image.open(tmp_path / "a.jpg") as opened:
        assert abs(over(opened) - over(draw_overlay(shot))).max() <= 4


def texts(shot: hookscope.Capture, folder: Path) -> list[str]:
    """The texts of the vector graphic of a map."""
    save_overlay(shot, folder / "a.svg")
    return [node.text for node in Tree.parse(folder / "a.svg").getroot().iter() if node.text]


def test_text_of_a_vector_graphic_is_text(shot, tmp_path: Path) -> None:
    words = " ".join(texts(shot, tmp_path))
    root = Tree.parse(tmp_path / "a.svg").getroot()
    assert "gradcam at pool, grid 4x4" in words and "five.png: 5, score" in words
    assert len([node for node in root.iter() if node.tag.endswith("image")]) == 3
    width, height = (float(root.get(side).removesuffix("pt")) for side in ("width", "height"))
    wanted = [side / 150 * 72 for side in draw_overlay(shot).size]
    assert [width, height] == pytest.approx(wanted, abs=0.5)


def test_what_is_told_of_the_model_and_of_the_scale(tmp_path: Path) -> None:
    shot = hookscope.cam("resnet18", input=FIVE, size=32, weights="random")
    entry = shot.metadata["cam"]["images"][0]
    entry["largest"], entry["spec"] = 2.47e-4, "a_very_long_name_" * 20
    found = texts(shot, tmp_path)
    assert "resnet18, random weights (untrained)" in found and "0.000247" in found
    [text] = [text for text in found if "a_very" in text]
    assert text.endswith("...") and 60 < len(text) < 200
    assert (np.asarray(draw_overlay(shot))[:, -GAP:] == 255).all()  # within the page


def _saved(shot: hookscope.Capture, folder: Path) -> Path:
    shot.save(folder / "a.safetensors")
    return folder / "a.safetensors"


@pytest.mark.parametrize("name", ["a.gif", "a", "a.webp"])
def test_other_endings_are_refused(shot, tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match="extension") as caught:
        save_overlay(shot, tmp_path / name)
    assert ".png, .jpg, .jpeg, .svg or .pdf" in caught.value.hint


@pytest.mark.parametrize("method", ["saliency", "integrated"])
def test_the_scale_of_a_gradient_ends_at_its_99th_percentile_and_says_so(tmp_path, method) -> None:
    x = images(1, 3, 64, 48)
    model = seeded(
        nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(4608, 4))
    )
    shot = hookscope.cam(model, input=x, target=1, by=method)
    heat = shot["./cam"][0].double().numpy()
    top = np.percentile(heat, 99)
    assert top < 0.9 * heat.max()
    picture = np.asarray(draw_overlay(shot, alpha=1, colormap="gray"))
    times = -(-400 // 64)
    left = 2 * GAP + 48 * times
    drawn = picture[TOP : TOP + 64 * times : times, left : left + 48 * times : times, 0]
    wanted = (heat / top).clip(0, 1) * 255
    assert abs(drawn - wanted).max() <= 2  # of the nearest of 256 colours
    save_overlay(shot, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as opened:
        assert "99th percentile" in opened.text["Description"]


@pytest.mark.exhaustive
def test_the_scale_of_a_rollout_begins_at_its_smallest_value() -> None:
    shot = hookscope.cam("vit_b_16", input=f"{REPO}/img.png", by="rollout")
    heat = shot["./cam"][0].double().numpy()
    picture = np.asarray(draw_overlay(shot, alpha=1, colormap="gray"))
    drawn = picture[TOP : TOP + 448 : 2, 2 * GAP + 448 : 2 * GAP + 896 : 2, 0]
    wanted = (heat - heat.min()) / (heat.max() - heat.min()) * 255
    assert abs(drawn - wanted).max() <= 2


@pytest.mark.parametrize("method", WITHOUT_ATTENTION)
def test_the_map_of_each_method_has_a_picture(tmp_path: Path, method: str) -> None:
    save_overlay(hookscope.cam(DIGITS, input=FIVE, by=method), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as opened:
        assert opened.text["Description"].startswith(f"{method} at ")


def test_a_map_of_zeros_and_one_that_is_not_finite_are_drawn() -> None:
    shot = hookscope.cam(seeded(InPlace()), input=images(1, 3, 8, 8), target=1, by="saliency")
    for value in (0.0, float("nan"), float("inf")):
        shot["./cam"].fill_(value)
        assert draw_overlay(shot).size == (960, TOP + 400 + GAP + LINE * (value != 0))


@pytest.mark.parametrize("method", ["gradcam", "saliency"])
@pytest.mark.parametrize("alpha", [0, 0.65])
def test_nan_and_infinity_have_their_own_colours_and_are_counted(
    tmp_path: Path, method: str, alpha: float
) -> None:
    model, x = seeded(InPlace()), images(1, 3, 8, 8)
    shot = hookscope.cam(model, input=x, target=1, by=method)
    plain = over(draw_overlay(shot, alpha=alpha))
    peak = shot["./cam"][0].argmax().item()
    free = [n for n in range(64) if n != peak]
    shot["./cam"].flatten()[free[:2]] = float("nan")
    shot["./cam"].flatten()[free[2:5]] = float("inf")
    shot.metadata["cam"]["images"][0]["probability"] = float("nan")
    pixels = np.asarray(draw_overlay(shot, alpha=alpha)).astype(float)
    drawn = pixels[np.ix_(TOP + LINE + MIDDLES, 2 * GAP + 400 + MIDDLES)].reshape(64, 3)
    assert drawn[free[:5]].tolist() == [list(NAN)] * 2 + [list(INFINITE)] * 3
    if method == "gradcam":  # its scale ends at the largest value, which is as it was
        assert (drawn[free[5:]] == plain.reshape(64, 3)[free[5:]]).all()
    lines = texts(shot, tmp_path)
    assert "2 NaN (magenta), 3 infinite (cyan)" in lines
    [line] = [line for line in lines if "probability" in line]
    assert line.endswith("probability NaN")


def test_plot_draws_the_result_of_cam_as_the_picture_of_cam(shot, tmp_path: Path) -> None:
    save_overlay(shot, tmp_path / "wanted.svg")
    for source in (shot, _saved(shot, tmp_path)):
        drawing = hookscope.plot(source)
        assert (drawing.kind, drawing.shows) == ("cam", ("gradcam at pool, grid 4x4",))
        drawing.save(tmp_path / "found.svg")
        assert (tmp_path / "found.svg").read_bytes() == (tmp_path / "wanted.svg").read_bytes()
    assert hookscope.plot(shot, kind="flow").kind == "flow"
    assert hookscope.plot(shot, "pool/cam").kind != "cam"
