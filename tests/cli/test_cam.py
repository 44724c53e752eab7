"""``hookscope cam`` on the command line: the picture, the maps beside it, the table, refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hookscope.specs.choices import OVERLAY_ALPHA
from hookscope.views.images.cam_picture import MIDDLE
from hookscope.views.images.cam_sheet import BAR, GAP, LINE, TITLE
from hookscope.views.images.colors import SEQUENTIAL
from hookscope.views.text.text_table import TextOptions
from tests.conftest import REPO, Run

pytestmark = pytest.mark.slow
DIGITS = f"{REPO}/sample_models/digits.py:trained"
FIVE = f"{REPO}/sample_models/five.png"
# Of the first image: below the title, a line, an empty one, its caption and the names.
TOP = GAP + round(LINE * TITLE) + 4 * LINE


def test_the_picture_holds_the_image_the_map_and_its_scale(run: Run, tmp_path: Path) -> None:
    import hookscope

    run("cam", DIGITS, "--input", FIVE, "-o", "a.png")
    with Image.open(tmp_path / "work" / "a.png") as opened:
        assert opened.text["Description"] == "gradcam at pool, grid 4x4"
        pixels = np.asarray(opened.convert("RGB")).astype(int)
    shot = hookscope.cam(DIGITS, input=FIVE)
    image, heat = shot["./image"][0].permute(1, 2, 0).numpy(), shot["./cam"][0].numpy()
    middles = TOP + 25 + 50 * np.arange(8)  # each of the 8x8 pixels is 50 wide
    left = pixels[np.ix_(middles, GAP + 25 + 50 * np.arange(8))]
    assert (left == image).all()
    right = pixels[np.ix_(middles, GAP + 400 + GAP + 25 + 50 * np.arange(8))]
    grey = MIDDLE + (image.mean(2, keepdims=True) - MIDDLE) / 2
    largest = shot.metadata["cam"]["images"][0]["largest"]  # of the map in its own grid
    colors = SEQUENTIAL[(heat / largest * 255).round().astype(int)]
    assert abs(right - (OVERLAY_ALPHA * colors + (1 - OVERLAY_ALPHA) * grey)).max() <= 1
    bar = pixels[TOP : TOP + 400, GAP + 800 + 2 * GAP + BAR // 2]
    ends = OVERLAY_ALPHA * SEQUENTIAL[[255, 0]].astype(float) + (1 - OVERLAY_ALPHA) * MIDDLE
    assert abs(bar[[0, -1]] - ends).max() <= 1


@pytest.mark.exhaustive
def test_every_format_has_the_same_maps_and_may_be_replaced(run: Run, tmp_path: Path) -> None:
    work, maps = tmp_path / "work", set()
    starts = {"png": b"\x89PNG", "jpg": b"\xff\xd8\xff", "svg": b"<?xml", "pdf": b"%PDF"}
    for ending, start in starts.items():
        look = ("--alpha", "0.3", "--colormap", "turbo") if ending == "jpg" else ()
        words = ("cam", DIGITS, "--input", FIVE, "-o", f"a.{ending}", *look)
        assert run(*words).rc == 0
        picture = (work / f"a.{ending}").read_bytes()
        assert picture.startswith(start)
        maps.add((work / "a.safetensors").read_bytes())
        assert "replacing earlier files" in run(*words).stderr
        assert (work / f"a.{ending}").read_bytes() == picture
    assert len(maps) == 1


@pytest.mark.exhaustive
def test_without_matplotlib_only_what_needs_it_is_refused(run: Run, tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "matplotlib"
    missing.mkdir(parents=True)
    (missing / "__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'matplotlib'\", name='matplotlib')"
    )
    env = {"PYTHONPATH": f"{missing.parent}:{REPO}"}
    assert run("cam", DIGITS, "--input", FIVE, "-o", "a.jpg", env=env).rc == 0
    for words in (("-o", "a.svg"), ("-o", "b.png", "--colormap", "viridis")):
        done = run("cam", DIGITS, "--input", FIVE, *words, env=env)
        assert (done.rc, done.stdout) == (1, "")
        assert 'pip install "hookscope[plot]"' in done.stderr
    assert sorted(p.name for p in (tmp_path / "work").iterdir()) == ["a.jpg", "a.safetensors"]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_the_table_fits_the_terminal(width: int) -> None:
    from rich.cells import cell_len

    import hookscope
    from hookscope.views.cam import cam_lines

    shot = hookscope.cam(DIGITS, input=[FIVE, FIVE])
    lines = cam_lines(shot, TextOptions(width))
    assert all(cell_len(line.plain) <= width for line in lines)
    assert any("0,4" in line.plain for line in lines)
