"""``hookscope cam`` on the command line: the picture, the maps beside it, the table, refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hookscope.specs.choices import OVERLAY_ALPHA
from hookscope.views.images.cam_picture import MIDDLE
from hookscope.views.images.cam_sheet import BAR, GAP, LINE, TITLE
from hookscope.views.images.colors import SEQUENTIAL
from hookscope.views.text.text_table import TextOptions
from tests.conftest import REPO, Refused, Run

pytestmark = pytest.mark.slow
DIGITS = f"{REPO}/sample_models/digits.py:trained"
FIVE = f"{REPO}/sample_models/five.png"
# Of the first image: below the title, a line, an empty one, its caption and the names.
TOP = GAP + round(LINE * TITLE) + 4 * LINE


def test_the_real_command_on_a_trained_model(run: Run, tmp_path: Path) -> None:
    import hookscope

    done = run("cam", DIGITS, "--input", FIVE)
    assert done.rc == 0, done.stderr
    method, layer, header, row = done.stdout.splitlines()
    assert method == "gradcam: relu(sum_k mean(G_k) A_k)."
    assert layer.startswith("Layer pool (MaxPool2d), call 1: maps (N, C, H, W), a grid of 4x4, 32")
    assert layer.endswith("bilinear upsampling to the image.")
    names = "input class index score probability peak pixel largest note"
    assert header.split() == names.split()
    wanted = hookscope.cam(DIGITS, input=FIVE)
    entry = wanted.metadata["cam"]["images"][0]
    peaks = [",".join(map(str, entry[name])) for name in ("peak", "pixel")]
    assert row.split()[1:3] + row.split()[5:7] == ["5", "5", *peaks]
    assert "layer: pool (the last spatial output that affects the score)" in done.stderr
    work = tmp_path / "work"
    assert sorted(p.name for p in work.iterdir()) == ["trained.cam.png", "trained.cam.safetensors"]
    found = hookscope.load(work / "trained.cam.safetensors")
    assert list(found) == ["pool/cam", "./cam", "./image"] == list(wanted)
    assert all((found[key] == wanted[key]).all() for key in found)
    assert found.metadata["command"] == "cam"


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


def test_the_same_command_writes_the_same_bytes_and_lines(run: Run, tmp_path: Path) -> None:
    words = ("cam", DIGITS, "--input", FIVE, "--by", "layercam", "-o", "a.png")
    first = run(*words)
    files = [tmp_path / "work" / name for name in ("a.png", "a.safetensors")]
    before = [file.read_bytes() for file in files]
    again = run(*words)
    assert [file.read_bytes() for file in files] == before
    assert again.stdout == first.stdout
    assert "replacing earlier files" in again.stderr


def test_guided_backpropagation_tells_how_many_relus_it_went_through(run: Run) -> None:
    lines = run("cam", DIGITS, "--input", FIVE, "--by", "guided").stdout.splitlines()
    assert lines[1] == "Guided backpropagation through 2 ReLUs."


def test_json_is_one_document_with_all_that_is_told(run: Run) -> None:
    words = ("--by", "integrated", "--steps", "5", "--baseline", "black")
    done = run("cam", DIGITS, "--input", FIVE, "--input", FIVE, *words, "--json")
    found = json.loads(done.stdout)
    assert (found["command"], found["picture"]) == ("cam", "trained.cam.png")
    assert found["file"] == "trained.cam.safetensors"
    assert (found["cam"]["method"], found["cam"]["steps"]) == ("integrated", 5)
    assert [entry["label"] for entry in found["cam"]["images"]] == ["5", "5"]
    keys = ["./input.0.attribution", "./cam", "./image"]
    assert [record["key"] for record in found["records"]] == keys


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "a.gif"], "not have the extension of a picture. Use .png, .jpg, .jpeg, .svg or"),
        (["--colormap", "virids"], "Did you mean viridis"),
        (["--alpha", "1.5"], "1.5 is not in the range 0<=x<=1"),
        (["--alpha", "nan"], "alpha is nan, and an opacity is from 0 to 1"),
        (["--alpha", "nan", "--no-output"], "alpha is nan, and an opacity is from 0 to 1"),
        (["-o", "foreign.png"], "was not written by hookscope"),
        (["-o", "five.png", "--force"], "five.png is an input of this command"),
        (["--by", "grandcam"], "'grandcam' is not one of"),
        (["--by", "guided", "--layer", "conv1"], "takes no layer"),
        (["--layer", "fc"], "has no spatial output (1x10)"),
        (["--layer", "conv1", "-l", "conv2"], "--layer is given 2 times: conv1, conv2"),
        (["--layer", "cov1"], "Did you mean conv1 or conv2?"),
        (["--target", "12"], "There is no class 12"),
        (["--steps", "3"], "is only for --by integrated"),
        (["--box", "0"], "The output has no boxes"),
        (["--scores", "aux"], "The model's output has no floating-point tensor 'aux'"),
        (["-o", "a.mgz"], "or .npy, .nii or .nii.gz for the map"),
    ],
)
def test_a_wrong_request_is_one_sentence(
    refused: Refused, tmp_path: Path, words: list[str], message: str
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    shutil.copy(FIVE, work / "five.png")
    shutil.copy(FIVE, work / "foreign.png")
    said = refused("cam", DIGITS, "--input", "five.png", *words)
    assert message in " ".join(said.split())
    assert (work / "five.png").read_bytes() == Path(FIVE).read_bytes()
    assert not list(work.glob("*.safetensors"))


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_the_table_fits_the_terminal(width: int) -> None:
    from rich.cells import cell_len

    import hookscope
    from hookscope.views.cam import cam_lines

    shot = hookscope.cam(DIGITS, input=[FIVE, FIVE])
    lines = cam_lines(shot, TextOptions(width))
    assert all(cell_len(line.plain) <= width for line in lines)
    assert any("0,4" in line.plain for line in lines)
