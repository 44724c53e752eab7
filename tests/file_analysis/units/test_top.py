"""The inputs that excite units, compared with sorting whole arrays; and the sheet of pictures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import hookscope
from hookscope.errors import RequestError
from hookscope.file_analysis import unit_activations
from hookscope.file_analysis.unit_activations import QUANTILES
from hookscope.views.top_inputs import top_sheet
from tests.extraction.handwritten_features import write_features


@pytest.fixture
def maps(tmp_path: Path) -> tuple[Path, np.ndarray]:
    """A folder with maps of 5 channels, whose values often repeat; and the maps."""
    random = np.random.default_rng(0)
    array = random.integers(-20, 20, size=(60, 5, 4, 3)).astype(np.float32)
    tensors = {
        "conv/output": torch.from_numpy(array),
        "fc/output": torch.from_numpy(array[:, :, 0, 0]),
    }
    folder = write_features(tmp_path / "f", tensors, 7)
    manifest = (folder / "manifest.json").read_text()
    # The class decides which dimension has the channels.
    (folder / "manifest.json").write_text(manifest.replace("Linear", "Conv2d", 1))
    return folder, array.astype(np.float64)


@pytest.mark.parametrize("block", [None, 3000])
@pytest.mark.parametrize("by", ["max", "mean"])
def test_the_ranking_is_that_of_a_stable_sort(maps, monkeypatch, by: str, block) -> None:
    if block:
        monkeypatch.setattr(unit_activations, "_BLOCK", block)
    folder, array = maps
    found = hookscope.top(folder, layer="conv", by=by, count=6)
    values = array.max((2, 3)) if by == "max" else array.mean((2, 3))
    assert (found.what, len(found.units), found.rows) == ("channel", 5, 60)
    for unit in found.units:
        column = values[:, unit.unit]
        for inputs, order in ((unit.most, -column), (unit.least, column)):
            rows = np.argsort(order, kind="stable")[:6]
            assert [one.row for one in inputs] == rows.tolist()
            assert [one.value for one in inputs] == pytest.approx(column[rows].tolist())
        assert unit.quantiles == pytest.approx(np.quantile(column, QUANTILES))
        assert unit.mean == pytest.approx(column.mean())
        if by == "max":
            one = unit.most[0]
            assert array[one.row, unit.unit][one.position] == one.value
    assert found.units[0].most[0].name == f"photos/{found.units[0].most[0].row}é.jpg"


def test_quantiles_of_many_activations_are_close(maps, monkeypatch) -> None:
    monkeypatch.setattr(unit_activations, "_EXACT", 0)
    folder, array = maps
    found = hookscope.top(folder, layer="conv", by="mean")
    values = array.mean((2, 3))
    for unit in found.units:
        column = values[:, unit.unit]
        wanted = np.quantile(column, QUANTILES, method="lower")
        assert unit.quantiles == pytest.approx(wanted, abs=np.ptp(column) / 65536)
    assert "Quantiles are approximate" in found.notes[0]


def test_directions_replace_units(maps, tmp_path: Path) -> None:
    folder, array = maps
    vectors = np.random.default_rng(1).normal(size=(2, 5))
    np.save(tmp_path / "d.npy", vectors)
    found = hookscope.top(folder, layer="fc", direction=tmp_path / "d.npy", count=60)
    assert found.what == "direction"
    for unit in found.units:
        wanted = array[:, :, 0, 0] @ vectors[unit.unit]
        assert [one.row for one in unit.most] == np.argsort(-wanted, kind="stable").tolist()
    one = hookscope.top(folder, layer="fc", direction=vectors[1], count=60)
    assert one.units[0].most == found.units[1].most


def test_the_dimension_of_channels_can_be_given(maps) -> None:
    folder, array = maps
    found = hookscope.top(folder, layer="conv", dim=-1, count=1)
    assert [unit.most[0].value for unit in found.units] == array.max((0, 1, 2)).tolist()


def test_rows_with_nan_are_left_out_of_their_units(tmp_path: Path) -> None:
    values = torch.arange(12.0).reshape(6, 2)
    values[5, 0] = float("nan")
    folder = write_features(tmp_path / "f", {"a/output": values}, 4, skipped={0: "bad"})
    found = hookscope.top(folder, count=9)
    assert [[one.row for one in unit.most] for unit in found.units] == [
        [4, 3, 2, 1],
        [5, 4, 3, 2, 1],
    ]
    assert [unit.left_out for unit in found.units] == [1, 0]
    assert [note.count("1 row") for note in found.notes[:2]] == [1, 1] and "NaN" in found.notes[1]


def test_infinite_activations_are_left_out_of_the_mean(tmp_path: Path) -> None:
    values = torch.tensor([[1.0, 1.0], [3.0, 3.0], [float("inf"), 5.0]])
    folder = write_features(tmp_path / "f", {"a/output": values}, 4)
    found = hookscope.top(folder, count=1)
    assert [unit.mean for unit in found.units] == [2.0, 3.0]
    assert [unit.most[0].row for unit in found.units] == [2, 2]
    assert len(found.notes) == 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "2 tensors"),
        ({"layer": "fc", "units": [0, 5]}, "unit 5: .* 0 to 4"),
        ({"layer": "fc", "units": []}, "unit"),
        ({"layer": "fc", "direction": np.ones(4)}, "shape 4"),
        ({"layer": "fc", "direction": "none.npy"}, "none.npy"),
        ({"layer": "fc", "units": [0], "direction": np.ones(5)}, "both"),
        ({"layer": "conv", "dim": 3}, "dim is 3"),
        ({"layer": "fc", "count": 0}, "count: 0"),
    ],
)
def test_what_cannot_be_ranked_is_refused(maps, options, named: str) -> None:
    with pytest.raises(RequestError, match=named):
        hookscope.top(maps[0], **options)


@pytest.fixture
def digits(tmp_path: Path, repo: Path) -> Path:
    """Features of copies of the digits, whose files a test may move."""
    shutil.copytree(repo / "sample_models/digits", tmp_path / "digits")
    out = tmp_path / "f"
    hookscope.extract(
        f"{repo}/sample_models/digits.py:trained",
        out,
        layers="fc",
        input=str(tmp_path / "digits"),
        workers=0,
    )
    return out


def test_the_sheet_shows_the_files_of_the_ranked_inputs(digits: Path, tmp_path: Path) -> None:
    found = hookscope.top(digits, units=range(10), count=2)
    # The model is trained: the score of class N is the largest for the digit N.
    assert [Path(unit.most[0].name).name for unit in found.units] == [f"{n}.png" for n in range(10)]
    sheet = top_sheet(found, 150)
    assert len(sheet.tiles) == 40
    image = Image.open(tmp_path / "digits/3.png").convert("RGB")
    tile = next(
        tile
        for tile, one in zip(sheet.tiles, ranked(found), strict=True)
        if one.name.endswith("3.png")
    )
    wanted = image.resize((96, 96), Image.Resampling.LANCZOS)
    assert np.array_equal(tile.image, np.asarray(wanted))


LONG_CLASS = "black-and-tan coonhound, a hunting dog"


def test_a_sheet_of_many_units_is_a_page_with_whole_names_of_classes(
    digits: Path, tmp_path: Path, repo: Path, run
) -> None:
    for number in range(10):
        folder = tmp_path / "classes" / (LONG_CLASS if number % 2 else f"class_{number}")
        folder.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"digits/{number}.png").rename(folder / f"{number}.png")
    model, images = f"{repo}/sample_models/digits.py:trained", tmp_path / "classes"
    hookscope.extract(model, tmp_path / "g", layers="conv2", input=str(images), workers=0)
    found = hookscope.top(tmp_path / "g", units=range(16))
    sheet = top_sheet(found, 150)
    width, height = sheet.size
    assert 0.6 < height / width < 1.5
    words = " ".join(label.text for label in sheet.labels)
    labels = [one.label for one in ranked(found)]
    assert words.count("[black-and-tan coonhound, a hunting dog]") == labels.count(LONG_CLASS) > 0
    assert words.count("[class_0]") == labels.count("class_0")
    for tile in sheet.tiles:
        assert tile.image.shape == (96, 96, 3) and 0 <= tile.x <= width - 96
    assert run("top", tmp_path / "g", "--units", "0-15", "-o", "top.svg").rc == 0
    page = (tmp_path / "work/top.svg").read_text()
    assert "coonhound" in page and "..." not in page


def ranked(found) -> list:
    return [one for unit in found.units for one in (*unit.most, *unit.least)]


def test_a_moved_or_changed_image_is_a_sentence_and_others_are_shown(
    digits: Path, tmp_path: Path
) -> None:
    (tmp_path / "digits/3.png").rename(tmp_path / "moved.png")
    shutil.copy(tmp_path / "digits/5.png", tmp_path / "digits/4.png")
    found = hookscope.top(digits, units=[3, 4], count=10)
    texts = [label.text for label in top_sheet(found, 150).labels]
    assert [text[-6:] for text in texts if text.startswith("1 image ")] == ["3.png.", "4.png."]
    blank = [len(np.unique(tile.image)) == 1 for tile in top_sheet(found, 150).tiles]
    assert sum(blank) == 8  # two images in each of four rows


def test_items_of_a_dataset_have_no_sheet_but_a_table(tmp_path: Path, repo: Path, run) -> None:
    from torch.utils.data import TensorDataset

    data = TensorDataset(torch.rand(6, 1, 8, 8), torch.arange(6))
    model = f"{repo}/sample_models/digits.py:trained"
    hookscope.extract(model, tmp_path / "f", layers="fc", input=data, workers=0)
    done = run("top", tmp_path / "f", "-o", "top.png")
    assert done.rc == 2 and "files" in done.stderr
    done = run("top", tmp_path / "f", "--units", "1", "--count", "2", "--json", "-o", "top.json")
    assert done.rc == 0, done.stderr
    [unit] = json.loads(done.stdout)["units"]
    assert [one["name"] for one in unit["most"]] == [f"item {one['label']}" for one in unit["most"]]
    assert json.loads((tmp_path / "work/top.json").read_text())["units"] == [unit]


SPOTS = """
import torch
from torch import nn
from torchvision.transforms import v2
def net():
    model = nn.Sequential(nn.AvgPool2d(16), nn.Conv2d(3, 1, 1, bias=False))
    nn.init.ones_(model[1].weight)
    return model
preprocess = v2.Compose([
    v2.PILToTensor(), *CROP, v2.ToDtype(torch.float32, scale=True),
])
"""
SQUARE = "[v2.Resize(128), v2.CenterCrop(112)]"
STRETCHED = "[v2.Resize((112, 160))]"
MIRRORED = "[v2.Resize((112, 112)), v2.RandomHorizontalFlip(1)]"


def spots(folder: Path, crop: str) -> Path:
    """Features of dark images with one white spot, by a model that is brightest there."""
    random = np.random.default_rng(1)
    (folder / "photos").mkdir()
    for n, (width, height) in enumerate([(300, 200), (200, 300), (256, 256)] * 2):
        image = np.full((height, width, 3), 40, np.uint8)
        x, y = (int(side * random.uniform(0.3, 0.7)) for side in (width, height))
        image[y - 12 : y + 12, x - 12 : x + 12] = 255
        Image.fromarray(image).save(folder / f"photos/{n}.png")
    (folder / "spots.py").write_text(SPOTS.replace("CROP", crop))
    out = folder / "features"
    hookscope.extract(
        f"{folder}/spots.py:net", out, layers="1", input=str(folder / "photos"), workers=0
    )
    return out


@pytest.mark.parametrize("crop", [SQUARE, STRETCHED])
def test_a_frame_marks_what_excites_a_channel(tmp_path: Path, crop: str) -> None:
    found = hookscope.top(spots(tmp_path, crop), layer="1", count=6)
    for tile in top_sheet(found, 300).tiles:
        white = np.argwhere((tile.image == 255).all(2))
        frame = np.argwhere((tile.image == (255, 225, 0)).all(2))
        middles = ((each.min(0) + each.max(0)) / 2 for each in (white, frame))
        assert np.abs(np.subtract(*middles)).max() < 12  # the spot and a cell are 16 pixels wide


def test_there_is_no_frame_if_the_place_on_the_image_is_not_known(tmp_path: Path) -> None:
    found = hookscope.top(spots(tmp_path, MIRRORED), layer="1", count=6)
    assert found.visible_part is None and "is not known" in found.notes[0]
    for tile in top_sheet(found, 150).tiles:
        assert not (tile.image == (255, 225, 0)).all(2).any()
    mean = hookscope.top(tmp_path / "features", layer="1", count=6, by="mean")
    assert mean.grid is None and ["6 rows" in note for note in mean.notes] == [True]
    assert not hookscope.top(tmp_path / "features", layer="1", count=3, by="mean").notes
