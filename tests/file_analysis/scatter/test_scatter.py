"""The rows of features as points, compared with PCA and neighbours of scikit-learn."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

import hookscope
from hookscope.errors import EnvironmentFault, RequestError, StoreError
from hookscope.file_analysis import layer_rows, scatter_run
from tests.extraction.handwritten_features import write_features
from tests.file_analysis.inputs_table import change_inputs, set_column


def features(folder: Path, rows: int, shape: tuple[int, ...], labels=None, **more) -> np.ndarray:
    """A folder of one layer, with labels if any; return its rows, flattened, in float64."""
    values = np.random.default_rng(3).normal(size=(rows, *shape)) * np.linspace(1, 3, shape[-1]) + 5
    tensor = torch.from_numpy(values.astype(np.float32))
    write_features(folder, {"fc/output": tensor, **more}, 7)
    if labels is not None:
        set_column(folder, labels)
    return tensor.double().numpy().reshape(rows, -1)


def check_pca(found, values: np.ndarray) -> None:
    pca = PCA(2).fit(values)
    expected = pca.transform(values)
    points = np.array([(point.x, point.y) for point in found.points])
    signs = np.sign(np.sum(points * expected, axis=0))
    np.testing.assert_allclose(points, expected * signs, atol=1e-9 * np.abs(expected).max())
    np.testing.assert_allclose(found.explained, pca.explained_variance_ratio_, rtol=1e-9)


@pytest.mark.parametrize(("rows", "shape"), [(40, (6,)), (12, (3, 5, 2)), (3, (2,)), (5, (1,))])
def test_points_and_variance_are_those_of_sklearn(tmp_path, monkeypatch, rows, shape) -> None:
    monkeypatch.setattr(layer_rows, "_BLOCK", 8 * 5 * int(np.prod(shape)))  # five rows
    values = features(tmp_path / "f", rows, shape)
    found = hookscope.plot(tmp_path / "f", "fc")
    if shape == (1,):
        np.testing.assert_allclose([p.x for p in found.points], values[:, 0] - values.mean())
        assert found.explained == pytest.approx((1, 0))
        assert {point.y for point in found.points} == {0.0}
        return
    check_pca(found, values)
    assert [point.row for point in found.points] == list(range(rows))


@pytest.mark.parametrize("memory", [10**9, 9000])
def test_neighbours_and_outliers_are_those_of_sklearn(tmp_path, monkeypatch, memory: int) -> None:
    monkeypatch.setattr(scatter_run, "MEMORY", memory)
    values = features(tmp_path / "f", 60, (4,))
    found = hookscope.plot(tmp_path / "f", neighbors=3)
    distances, near = NearestNeighbors(n_neighbors=4).fit(values).kneighbors(values)
    assert [point.neighbors for point in found.points] == [tuple(row[1:]) for row in near]
    np.testing.assert_allclose([p.distance for p in found.points], distances[:, 3], rtol=1e-6)
    assert [p.row for p in found.outliers] == np.argsort(-distances[:, 3])[:10].tolist()


def test_a_row_that_is_there_twice_is_at_distance_0(tmp_path: Path) -> None:
    values = torch.randn(6, 3) + 1000
    values[4] = values[1]
    write_features(tmp_path / "f", {"fc/output": values}, 4)
    found = hookscope.plot(tmp_path / "f", neighbors=1)
    assert (found.points[4].neighbors, found.points[4].distance) == ((1,), 0.0)


def test_of_many_rows_a_sample_is_drawn_with_neighbours_among_all(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(scatter_run, "MOST_POINTS", 8)
    values = features(tmp_path / "f", 50, (4,))
    found = hookscope.plot(tmp_path / "f", seed=2)
    rows = [point.row for point in found.points]
    assert len(set(rows)) == 8
    assert rows == sorted(rows)
    assert rows == [point.row for point in hookscope.plot(tmp_path / "f", seed=2).points]
    assert rows != [point.row for point in hookscope.plot(tmp_path / "f", seed=3).points]
    assert "8 of 50 rows" in found.notes[0] and "seed 2" in found.notes[0]
    near = NearestNeighbors(n_neighbors=6).fit(values).kneighbors(values[rows])[1]
    assert [point.neighbors for point in found.points] == [tuple(row[1:]) for row in near]
    projected = PCA(2).fit(values).transform(values[rows])  # the axes are those of all rows
    points = np.array([(point.x, point.y) for point in found.points])
    np.testing.assert_allclose(np.abs(points), np.abs(projected), atol=1e-9)


def test_many_wide_rows_have_the_axes_of_a_sample_which_is_said(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(scatter_run, "MOST_PRODUCTS", 10)
    features(tmp_path / "f", 30, (20,))
    found = hookscope.plot(tmp_path / "f")
    assert len(found.points) == 30
    [note] = found.notes
    assert "10 of 30 rows (seed 0)" in note and "20 values" in note


def test_skipped_inputs_are_left_out(tmp_path: Path) -> None:
    rows = torch.randn(6, 3)
    write_features(tmp_path / "f", {"fc/output": rows}, 4, skipped={2: "damaged"})
    found = hookscope.plot(tmp_path / "f")
    assert [point.row for point in found.points] == [0, 1, 3, 4, 5]
    check_pca(found, rows[[0, 1, 3, 4, 5]].double().numpy())
    assert "1 row" in found.notes[0] and "4 others" in found.notes[1]


@pytest.mark.exhaustive
def test_tsne_says_its_settings_and_repeats(tmp_path: Path) -> None:
    features(tmp_path / "f", 20, (4,))
    found = hookscope.plot(tmp_path / "f", method="tsne", seed=5)
    assert all(said in found.about for said in ("t-SNE", "perplexity 6.33", "first 4", "seed 5"))
    assert found.points == hookscope.plot(tmp_path / "f", method="tsne", seed=5).points


@pytest.mark.parametrize(("method", "package"), [("umap", "umap"), ("tsne", "sklearn")])
def test_a_missing_package_is_named(tmp_path, monkeypatch, method: str, package: str) -> None:
    features(tmp_path / "f", 5, (4,))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(EnvironmentFault, match=f"package {package}") as caught:
        hookscope.plot(tmp_path / "f", method=method)
    assert "python -m pip install" in caught.value.hint


def legend_of(found) -> list[str]:
    return [text.get_text() for text in found.figure.axes[0].get_legend().get_texts()]


def test_labels_colour_the_points_and_rare_ones_are_grey(tmp_path: Path) -> None:
    names = [f"class {i % 12}" for i in range(36)] + ["rare", "rarer", None, None]
    features(tmp_path / "f", 40, (4,), names)
    found = hookscope.plot(tmp_path / "f")
    assert found.color_by == "label"
    assert legend_of(found) == [
        *("2 other values (2)", "no label (2)"),
        *(f"class {i} (3)" for i in range(12)),
    ]
    drawn = found.figure.axes[0].collections
    looks = {
        (tuple(one.get_facecolor()[0]), one.get_paths()[0].vertices.tobytes()) for one in drawn
    }
    assert len(looks) == 13  # two groups are grey
    assert hookscope.plot(tmp_path / "f", color_by="path").color_by == "path"


def test_few_whole_numbers_are_categories_and_others_have_a_colour_bar(tmp_path: Path) -> None:
    features(tmp_path / "f", 20, (4,), [i % 10 for i in range(20)])
    assert legend_of(hookscope.plot(tmp_path / "f")) == [f"{i} (2)" for i in range(10)]
    set_column(tmp_path / "f", [i / 3 if i else None for i in range(20)])
    found = hookscope.plot(tmp_path / "f")
    panel, bar = found.figure.axes
    assert bar.get_ylabel() == "label"
    grey, colored = panel.collections
    assert len(grey.get_offsets()) == 1
    np.testing.assert_allclose(colored.get_array(), [i / 3 for i in range(1, 20)])


def test_without_labels_there_is_one_colour(tmp_path: Path) -> None:
    features(tmp_path / "f", 6, (4,))
    figure = hookscope.plot(tmp_path / "f", dark=True).figure
    assert figure.axes[0].get_legend() is None
    assert len(figure.axes[0].collections) == 1
    assert figure.axes[0].get_xlabel().startswith("PC 1 (")


@pytest.mark.parametrize(
    ("values", "options", "named"),
    [
        (torch.randn(5, 3), {"keys": "nosuch"}, "nosuch"),
        (torch.randn(5, 3), {"layer": "nosuch"}, "nosuch"),
        (torch.randn(2, 3), {}, "2 rows"),
        (torch.randn(5, 3), {"color_by": "nosuch"}, "'nosuch'"),
        (torch.ones(5, 3), {}, "fc/output"),
        (torch.tensor([[1.0], [2], [torch.nan], [torch.inf]]), {}, "2 rows with NaN .* row 2"),
        (torch.randn(5, 3), {"kind": "hist"}, "hist"),
        (torch.randn(5, 3, dtype=torch.complex64), {}, "complex"),
        (torch.randn(5, 0), {}, "fc/output"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tmp_path: Path, values, options, named) -> None:
    write_features(tmp_path / "f", {"fc/output": values}, 4)
    with pytest.raises(RequestError, match=named):
        hookscope.plot(tmp_path / "f", **options)


def test_one_layer_is_drawn_at_a_time(tmp_path: Path) -> None:
    features(tmp_path / "f", 5, (4,), ["a"] * 5, **{"conv/output": torch.randn(5, 2)})
    with pytest.raises(RequestError, match="2 tensors"):
        hookscope.plot(tmp_path / "f")
    with pytest.raises(RequestError) as caught:  # --color is another option, of colours at all
        hookscope.plot(tmp_path / "f", "label")
    assert "color_by" in caught.value.hint


@pytest.mark.parametrize("subject", ["five.safetensors", "digits.safetensors", "digits"])
def test_other_results_have_no_scatter(repo: Path, subject: str) -> None:
    with pytest.raises((RequestError, StoreError), match=r"scatter|digits"):
        hookscope.plot(repo / "sample_models" / subject, kind="scatter")


def test_each_format_has_the_points_and_the_labels(tmp_path: Path) -> None:
    labels = ["odd" if i % 2 else "even" for i in range(30)]
    features(tmp_path / "f", 30, (4,), labels)
    found = hookscope.plot(tmp_path / "f", "fc", color_by="label")
    for name in ("x.csv", "x.json", "x.png", "x.svg", "x.html"):
        found.save(tmp_path / name)
    with (tmp_path / "x.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == labels
    stored = json.loads((tmp_path / "x.json").read_text())
    assert float(rows[4]["x"]) == pytest.approx(stored["points"][4]["x"])
    for name in ("x.png", "x.svg", "x.html"):
        before = (tmp_path / name).read_bytes()
        hookscope.plot(tmp_path / "f", "fc", color_by="label").save(tmp_path / name)
        assert (tmp_path / name).read_bytes() == before


@pytest.mark.parametrize("axes", ["pca", "other", "flat"])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e7])
def test_the_numbers_on_the_axes_of_the_page_are_those_of_the_points(
    tmp_path: Path, axes: str, size: float
) -> None:
    features(tmp_path / "f", 9, (4,))
    found = hookscope.plot(tmp_path / "f")
    points = tuple(
        replace(p, x=p.x * size, y=3 * size if axes == "flat" else p.y * size) for p in found.points
    )
    found = replace(found, points=points, explained=found.explained if axes == "pca" else ())
    found.save(tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text()
    drawing = ElementTree.fromstring(re.search("<svg viewBox.*?</svg>", page, re.DOTALL)[0])
    marks = {int(m.get("data-row")): m.get("d") for m in drawing if m.get("data-row")}
    scales = []
    for kind, side, at in (("across", "x", 0), ("up", "y", 1)):
        ticks = [
            (float(text.text), float(text.get(side)))
            for text in drawing
            if text.get("class") == kind and re.fullmatch("[-+.e0-9]+", text.text or "")
        ]
        assert 3 <= len(ticks) <= 9
        slope, zero = np.polyfit(*zip(*ticks, strict=True), 1)
        scales.append(abs(slope))
        for point in points:
            place = float(re.findall("-?[0-9.]+", marks[point.row])[at])
            shift = 4 if side == "y" else 0  # of the letters of a number, below its tick
            value = (point.x, point.y)[at]
            assert place == pytest.approx(zero - shift + slope * value, abs=0.6)
    if axes == "pca":
        assert scales[0] == pytest.approx(scales[1], rel=0.01)


def test_the_page_has_names_images_and_neighbours(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    features(tmp_path / "f", 6, (4,), ["<b>", "a", "a", "<b>", "a", None])
    for row, color in enumerate(("red", "lime", None, "blue", "red", "red")):
        if color:
            Image.new("RGB", (8, 4), color).save(f"{row}.png")
        data = Path(f"{row}.png").read_bytes() if color else b""
        about = {"path": f"{row}.png", "sha256": hashlib.sha256(data).hexdigest()}
        change_inputs(tmp_path / "f", {row: about})
    found = hookscope.plot(tmp_path / "f", neighbors=2)
    found.save("x.html")
    page = Path("x.html").read_text()
    for point in found.points:
        near = " ".join(map(str, point.neighbors))
        assert f'data-row="{point.row}" data-near="{near}"' in page
    assert "<title>0.png (row 0, label: &lt;b&gt;)</title>" in page
    assert "<b>" not in page
    assert page.count('src="data:image/png;base64,') == 5
    assert "1 input without a picture" in page
    assert "PC 2 (" in page
    assert "no label</" not in page
    assert page.count('class="point') == 6 + 3  # and a mark for each group
    monkeypatch.setattr("hookscope.views.html.scatter_page.MOST_IMAGES", 2)
    found.save("x.html")
    assert "4 more images" in Path("x.html").read_text()
