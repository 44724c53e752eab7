"""The page as data and as a file: what it chose, how far two files lie apart, what it warns of."""

from __future__ import annotations

import base64
import io
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import hookscope
from hookscope.results.records import Record, Recording
from hookscope.stores.capture_file import CaptureFile, open_capture
from hookscope.views.html.capture_page import (
    LIMIT_STEPS,
    MAX_IMAGE_BYTES,
    MAX_PAGE_BYTES,
    PageLimits,
    build_page,
    descending_limits,
    figure_or_note,
    max_image_bytes,
)
from hookscope.views.html.page import PageFigure
from hookscope.views.html.page_images import drawn_part, map_figure, png_data_uri, tile_maps
from hookscope.views.html.page_table import tensor_difference
from hookscope.views.images.colors import scale_for
from hookscope.views.text.shared_parts import ALERT_STYLE
from tests.processes import run_python
from tests.views.text.samples import captured
from tests.zoo import Side

SMALL = PageLimits(4, 16)


def record(shape: tuple[int, ...], type: str = "Conv2d", kind: str = "output") -> Record:
    origin = {"key": "a/x", "module": "a", "call": 1, "what": "x", "device": "cpu"}
    return Record(**origin, type=type, kind=kind, shape=shape, dtype="float32")


def holding(records: list[Record]) -> Recording:
    recording = Recording()
    recording._records = {f"{i}/x": record for i, record in enumerate(records)}
    return recording


def saved(tmp_path: Path, values: torch.Tensor, *types: str) -> CaptureFile:
    """A file with one tensor, of a run on an image."""
    arguments = [{"name": "0", "shape": [2, 3, 28, 28]}]
    captured({"a": values}, *types, arguments=arguments).save(tmp_path / "a.safetensors")
    return open_capture(tmp_path / "a.safetensors")


def figure_of(opened: CaptureFile, maps: int, side: int) -> PageFigure:
    figure = map_figure(opened, opened.records[0], maps, side)
    assert figure is not None
    return figure


# Which part of a tensor is drawn


@pytest.mark.parametrize(
    ("record", "index", "maps"),
    [
        (record((2, 9, 5, 6)), np.s_[0, :4], 4),
        (record((2, 7, 7, 9), "LayerNorm"), np.s_[0, :, :, :4], 4),
        (record((2, 3, 5, 5), "MultiheadAttention", "attention"), np.s_[0, :4], 3),
        (record((2, 9, 5), "LayerNorm"), np.s_[0], 1),
        (record((2, 9), "Linear"), np.s_[:], 1),
        (record((9,), "Linear"), np.s_[None], 1),
        (record((9, 2, 3, 3), kind="param.grad"), np.s_[:4, 0], 4),
        (record((9, 2, 3), "Conv1d", "param.grad"), np.s_[:4], 4),
        (record((2, 5, 4, 3, 6), "Conv3d"), np.s_[0, :4, 2], 4),
    ],
    ids=str,
)
def test_maps_are_the_part_of_the_tensor_that_is_described(tmp_path, record, index, maps) -> None:
    values = torch.arange(float(np.prod(record.shape))).reshape(record.shape)
    figure = figure_of(saved(tmp_path, values, record.type, record.kind), 4, 32)
    drawn = values.numpy()[index]
    if drawn.ndim == 3 and drawn.shape[2] == 4 and record.type == "LayerNorm":
        drawn = np.moveaxis(drawn, -1, 0)
    drawn = drawn if drawn.ndim == 3 else drawn[None]
    assert len(figure.labels) == (maps if maps > 1 else 0)
    painted = scale_for(record.kind)(drawn).paint(drawn)
    assert figure.image == png_data_uri(tile_maps(painted, min(len(drawn), 4)))


def test_one_map_fills_its_image_and_is_named_in_the_singular(tmp_path) -> None:
    figure = figure_of(saved(tmp_path, torch.ones(1, 1, 8, 5), "Conv2d"), 16, 56)
    assert (figure.height, figure.width) == (8, 5)
    assert figure.caption.startswith("channel 0 of 1; ")


@pytest.mark.parametrize(("shape", "size"), [((1, 1000), (18, 280)), ((1, 4, 1, 56), (15, 228))])
def test_a_vector_is_a_band_whose_rows_are_equal(tmp_path, shape, size) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    figure = figure_of(saved(tmp_path, values), 4, 56)
    assert (figure.height, figure.width) == size
    drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(figure.image.partition(",")[2]))))
    rows = drawn[: size[0] - (len(shape) == 4)]  # without the gap below
    assert (rows == rows[0]).all() and len(np.unique(rows)) > 4


def test_what_has_no_maps_has_no_picture() -> None:
    for shape in [(), (0,), (2, 0, 3, 3), (1, 1, 1, 1, 1, 1)]:
        assert drawn_part(record(shape), 16, None).maps == 0


# Size


def test_the_bound_on_a_picture_holds_even_for_noise(tmp_path) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, 64, 80, 80), (1, 20, 14, 14), (1, 300, 700), (1, 1, 5, 5), (1, 3, 3, 400)]
    for shape in [*shapes, (1, 1000), (280,), (1, 8, 1, 300)]:
        values = torch.randn(shape, generator=generator)
        values.view(-1)[:2] = torch.tensor([torch.nan, torch.inf])
        opened = saved(tmp_path, values)
        for choice in LIMIT_STEPS:
            figure = figure_of(opened, choice.maps, choice.side)
            assert len(figure.image) <= max_image_bytes(opened.records[0], choice)


def test_more_tensors_are_shown_smaller() -> None:
    few, many = ([record((1, 64, 56, 56))] * n for n in (20, 1000))
    assert next(descending_limits([holding(few)])) == LIMIT_STEPS[0]
    first = next(descending_limits([holding(many)]))
    assert first.maps < 16 or first.side < 56
    assert sum(max_image_bytes(record, first) for record in many) <= MAX_IMAGE_BYTES
    steps = list(descending_limits([holding(many)]))
    assert all((a.maps, a.side, a.rows) > (b.maps, b.side, b.rows) for a, b in pairwise(steps))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_large_capture_stays_under_20_megabytes_and_says_what_it_left_out(tmp_path) -> None:
    values = torch.randn(1, 16, 12, 12, generator=torch.Generator().manual_seed(0))
    names = [f"a_rather_long_name_of_a_layer_{n}.block" for n in range(4100)]
    file = tmp_path / "large.safetensors"
    captured({name: values.clone() for name in names}, "Conv2d").save(file)
    page = hookscope.report(file)
    assert len(page.html.encode()) < MAX_PAGE_BYTES
    assert page.tensors <= 3000
    assert page.chosen
    assert all(text in page.html for text in page.chosen)


# Two files


def test_how_far_two_files_lie_apart_is_what_numpy_says(folder) -> None:
    files = [folder / f"{name}.safetensors" for name in ("values", "other")]
    a, b = (hookscope.load(file)["stage2/output"].double().numpy() for file in files)
    difference = tensor_difference([open_capture(file) for file in files], "stage2/output")
    assert difference is not None
    assert difference.largest == np.abs(b - a).max()
    assert difference.relative == pytest.approx(
        np.linalg.norm(b - a) / np.linalg.norm(a), rel=1e-12
    )
    assert not difference.equal
    same = tensor_difference([open_capture(files[0])] * 2, "stage2/output")
    assert same is not None
    assert (same.largest, same.relative, same.equal) == (0.0, 0.0, True)


def test_the_table_of_two_files_has_both_values_and_what_is_missing(folder) -> None:
    files = [folder / f"{name}.safetensors" for name in ("values", "other")]
    page = build_page([open_capture(file) for file in files], SMALL)
    titles = [column.title for column in page.columns]
    rows = {(row.cells[1].text, row.cells[3].text): row.cells for row in page.rows}
    a, b = (hookscope.load(file)["stage2/output"].double() for file in files)
    cells = dict(zip(titles, rows["stage2", "output"], strict=True))
    for name, value in [
        ("norm A", a.norm()),
        ("norm B", b.norm()),
        ("norm B/A", b.norm() / a.norm()),
    ]:
        assert cells[name].value == pytest.approx(float(value), rel=1e-12)
    assert cells["mean B-A"].value == pytest.approx(float(b.mean() - a.mean()), abs=1e-12)
    alone = dict(zip(titles, rows["fc", "output"], strict=True))
    assert alone["note"].text == "only in A"
    assert (alone["norm B"].value, alone["norm B"].text) == (None, "-")
    assert rows["stage1.0", "input.0"][-1].text == "equal"


def test_values_and_gradients_share_a_table_that_tells_the_file(folder) -> None:
    files = [folder / f"{name}.safetensors" for name in ("values", "grads")]
    page = build_page([open_capture(file) for file in files], SMALL)
    titles = [column.title for column in page.columns]
    assert "file" in titles
    assert {row.cells[titles.index("file")].text for row in page.rows} == {"A", "B", "A, B"}
    [stage] = [node for node in page.tree if node.name == "stage1.0"]
    keys = [entry.key for entry in stage.entries]
    assert {"stage1.0/output", "stage1.0/output.grad", "stage1.0/weight.grad"} < set(keys)


# What stands out


def test_nan_and_what_never_ran_are_warnings(folder) -> None:
    warnings = " ".join(hookscope.report(folder / "odd.safetensors").warnings)
    assert warnings.count(": stage2.0/output") == 2 and ": idle" in warnings


def test_the_tree_marks_a_layer_with_every_warning_of_its_tensors(tmp_path) -> None:
    model = nn.Sequential(nn.ReLU(), nn.ReLU())
    inputs = torch.tensor([[float("nan"), float("inf"), 1.0]])
    file = tmp_path / "a.safetensors"
    hookscope.capture(model, input=inputs, layers="*", edits="1=scale:0.5").save(file)
    nodes = {node.name: node for node in build_page([open_capture(file)], SMALL).tree}
    assert {name: node.marks for name, node in nodes.items()} == {
        ".": ("NaN!", "Inf!"),
        "0": ("NaN!", "Inf!"),
        "1": ("NaN!", "Inf!", "edited"),
    }
    assert not any(node.unused for node in nodes.values())


def test_what_is_missing_has_rows_behind_all_others(tmp_path) -> None:
    hookscope.grads(Side(), shape=(1, 4), loss="sum").save(tmp_path / "a.safetensors")
    both = [open_capture(tmp_path / "a.safetensors")] * 2
    for files in (both[:1], both):
        page = build_page(files, SMALL)
        titles = [column.title for column in page.columns]
        rows = [dict(zip(titles, row.cells, strict=True)) for row in page.rows if row.kind]
        assert [row.kind for row in page.rows] == sorted(row.kind for row in page.rows)
        notes = {(row["layer"].text, row["what"].text): row["note"] for row in rows}
        assert len(notes) == len(rows)
        assert {("never", ""), ("aside", "output.grad"), ("aside", "weight.grad")} <= set(notes)
        for key, cell in notes.items():
            start = "does not exist" if key[1] else "never ran"
            assert cell.text.startswith(f"{start} in A: " if len(files) > 1 else f"{start}: ")
            assert cell.text.count(start) == len(files)
            assert cell.style == ALERT_STYLE
        assert all(row["norm" if len(files) == 1 else "norm A"].value is None for row in rows)
    assert hookscope.report(tmp_path / "a.safetensors").tensors == len(both[0].records)


def test_a_file_of_nothing_is_a_page_that_says_so(tmp_path) -> None:
    hookscope.Capture().save(tmp_path / "empty.safetensors")
    report = hookscope.report(tmp_path / "empty.safetensors")
    assert (report.tensors, report.layers, report.warnings) == (0, 0, ())
    assert "nothing was recorded" in report.html


def test_vanishing_gradients_are_warnings(tmp_path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with torch.no_grad():
        model[1].weight.mul_(1e-9)
    hookscope.grads(model, input=torch.ones(1, 3), loss="sum").save(tmp_path / "a.safetensors")
    [warning] = [
        t for t in hookscope.report(tmp_path / "a.safetensors").warnings if "vanishing" in t
    ]
    assert "0/output.grad" in warning


def test_a_figure_that_raises_becomes_a_note() -> None:
    def fail() -> None:
        raise ZeroDivisionError("by <nothing>\nat all")

    [figure] = figure_or_note("A figure", fail)
    assert figure.failed == "ZeroDivisionError: by <nothing>"
    assert figure_or_note("None", lambda: None) == ()


# The file


def test_hostile_names_are_text_everywhere() -> None:
    names = ('"><img src=x onerror=alert(1)>', "</script>", "\u2028", "{{ 7*7 }}", "'\x00")
    capture = captured({name: torch.ones(2) for name in names}, "</script>")
    capture.metadata = {"model": {"spec": "</title><b>"}, "command": "<i>"}
    html = hookscope.report(capture).html
    for text in ("<img src=x", "</title><b>", "\u2028", "\x00", "<i>\n"):
        assert text not in html
    assert "{{ 7*7 }}" in html
    assert html.count("</script>") == 1


def test_a_report_needs_no_torch(folder, clean_environment) -> None:
    code = f"""
import sys, hookscope
page = hookscope.report({str(folder / "values.safetensors")!r})
assert page.tensors
assert "torch" not in sys.modules
"""
    run_python("-c", code, env=clean_environment, status=0)


def test_a_page_counts_the_layers_that_have_tensors(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    file = tmp_path / "one.safetensors"
    hookscope.capture(model, input=torch.ones(1, 4), layers="0").save(file)
    report = hookscope.report(file)
    assert (report.tensors, report.layers) == (1, 1)
