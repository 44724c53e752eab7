"""The page of a set of weights: its rows, tree, totals and findings, and what is left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import hookscope
from hookscope.stores.weights.open_weights import open_weights
from hookscope.views.html import weights_page
from hookscope.views.html.weights_page import WEIGHT_COLUMNS, WeightsPage, build_weights_page

RNG = np.random.default_rng(0)
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tensors = {
        "net.layers.10.fc.weight": RNG.standard_normal((4, 20)).astype(np.float32),
        "net.layers.2.fc.weight": RNG.standard_normal((4, 20)).astype(np.float32),
        "net.layers.2.fc.bias": np.array([1, np.nan, 2, np.inf], np.float32),
        "net.head.weight": np.ones((3, 5), np.float16),
        f"net.{SCRIPT}.x": np.array([0, 1, 1, 3], np.int32),
        "net.empty": np.zeros((0, 2), np.float32),
    }
    save_file(tensors, tmp_path / "w.safetensors", metadata={"config": SCRIPT + "x" * 3000})
    return tmp_path / "w.safetensors"


def page_of(file: Path) -> WeightsPage:
    return build_weights_page(open_weights(file))[0]


def cells(page: WeightsPage) -> dict[str, dict[str, str]]:
    titles = [column.title for column in WEIGHT_COLUMNS]
    return {
        row.cells[1].text: dict(zip(titles, (cell.text for cell in row.cells), strict=True))
        for row in page.rows
    }


def test_a_row_has_the_statistics_of_a_tensor(file: Path) -> None:
    rows = cells(page_of(file))
    values = hookscope.load(file)["net.layers.2.fc.weight"].astype(np.float64)
    row = rows["net.layers.2.fc.weight"]
    assert (row["shape"], row["dtype"], row["size"]) == ("4x20", "float32", "320 bytes")
    for title, value in (
        *(("norm", np.linalg.norm(values)), ("mean", values.mean()), ("std", values.std())),
        *(("min", values.min()), ("max", values.max())),
    ):
        assert float(row[title]) == pytest.approx(value, rel=1e-3)
    assert (rows["net.layers.2.fc.bias"]["NaN"], rows["net.layers.2.fc.bias"]["Inf"]) == ("1", "1")
    assert rows["net.empty"]["note"] == "empty"


def test_tensors_are_in_the_order_of_the_tree(file: Path) -> None:
    page = page_of(file)
    assert [node.name for node in page.tree] == [
        *(".", "net", f"net.{SCRIPT}", "net.head", "net.layers", "net.layers.2"),
        *("net.layers.2.fc", "net.layers.10", "net.layers.10.fc"),
    ]
    assert [(n.level, n.place, n.siblings, n.opens) for n in page.tree[:3]] == [
        *((1, 1, 1, True), (2, 1, 1, True), (3, 1, 3, False)),
    ]
    assert [page.tree[row.data["node"]].name for row in page.rows] == [
        *(f"net.{SCRIPT}", "net", "net.head", "net.layers.2.fc", "net.layers.2.fc"),
        "net.layers.10.fc",
    ]
    marks = {node.name: node.mark for node in page.tree}
    assert marks["net.layers.2.fc"] == marks["net"] == marks["."] == "error"
    assert marks["net.layers.10"] == ""


def test_totals_are_by_dtype_and_by_the_first_modules_that_differ(file: Path) -> None:
    page = page_of(file)
    assert [(g.name, g.tensors, g.parameters) for g in page.dtypes] == [
        *(("float32", "4", "164"), ("float16", "1", "15"), ("int32", "1", "4")),
    ]
    assert {g.name for g in page.modules} == {
        *("net.layers", "net.head", f"net.{SCRIPT}", "net.empty"),
    }
    assert page.dtypes[0].share == round(100 * 656 / 702)


def test_the_outline_is_that_of_the_counts(file: Path) -> None:
    drawn = {name: row["histogram"] for name, row in cells(page_of(file)).items()}
    for name, outline, columns in (
        (f"net.{SCRIPT}.x", "V7.5h1V0h1V20h1V7.5h1V20z", 4),
        ("net.head.weight", "h1V0h1V20h1V20z", 3),
    ):
        assert f'd="M0 20{outline}"' in drawn[name]
        assert f'viewBox="0 0 {columns} 20"' in drawn[name]
    assert drawn["net.empty"] == ""


def test_findings_lead_to_their_tensors_and_names_run_nothing(file: Path) -> None:
    report = hookscope.report(file)
    assert SCRIPT not in report.html
    assert "&lt;script&gt;alert(1)" in report.html
    assert report.tensors == 6
    assert [text.split(":")[0] for text in report.warnings[:2]] == ["net.layers.2.fc.bias"] * 2
    page = page_of(file)
    number = list(cells(page)).index("net.layers.2.fc.bias")
    assert page.findings[0].link == f"#t{number}"
    assert f'<tr id="t{number}"' in report.html
    assert "and 1,025 more characters" in report.html


def test_a_page_of_too_many_tensors_keeps_those_with_findings(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_page, "MAX_TENSORS", 3)
    page = page_of(file)
    assert "net.layers.2.fc.bias" in cells(page)
    assert len(page.rows) == 3
    assert "The page has 3 of 6 tensors" in page.sentences[0]
    assert all(row.data["node"] < len(page.tree) for row in page.rows)
    page.html()
