"""The page as data and as a file: what it chose, how far two files lie apart, what it warns of."""

from __future__ import annotations

import base64
import io
import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import hookscope
from hookscope.results.records import Record, Recording
from hookscope.stores.capture_file import open_capture
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
from hookscope.views.html.page_images import drawn_part, map_figure, png_data_uri, tile_maps
from hookscope.views.html.page_table import tensor_difference
from hookscope.views.text.shared_parts import ALERT_STYLE
from tests.processes import run_python

SMALL = PageLimits(4, 16)


def record(shape: tuple[int, ...], type: str = "Conv2d", kind: str = "output") -> Record:
    origin = {"key": "a/x", "module": "a", "call": 1, "what": "x", "device": "cpu"}
    return Record(**origin, type=type, kind=kind, shape=shape, dtype="float32")


def holding(records: list[Record]) -> Recording:
    recording = Recording()
    recording._records = {f"{i}/x": record for i, record in enumerate(records)}
    return recording


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
    capture = hookscope.Capture()
    origin = {
        "module": record.module,
        "type": record.type,
        "call": 1,
        "what": "x",
        "kind": record.kind,
    }
    capture.put(values, **origin)
    capture.metadata["arguments"] = [{"name": "0", "shape": [2, 3, 28, 28]}]
    capture.save(tmp_path / "a.safetensors")
    opened = open_capture(tmp_path / "a.safetensors")
    figure = map_figure(opened, opened.records[0], 4, 32)
    assert figure is not None
    drawn = values.numpy()[index]
    if drawn.ndim == 3 and drawn.shape[2] == 4 and record.type == "LayerNorm":
        drawn = np.moveaxis(drawn, -1, 0)
    drawn = drawn if drawn.ndim == 3 else drawn[None]
    assert len(figure.labels) == (maps if maps > 1 else 0)
    from hookscope.views.images.colors import scale_for

    columns = min(len(drawn), 4)
    assert figure.image == png_data_uri(
        tile_maps(scale_for(record.kind)(drawn).paint(drawn), columns)
    )


def test_one_map_fills_its_image_and_is_named_in_the_singular(tmp_path) -> None:
    capture = hookscope.Capture()
    origin = {"module": "conv", "type": "Conv2d", "call": 1, "what": "output", "kind": "output"}
    capture.put(torch.ones(1, 1, 8, 5), **origin)
    capture.save(tmp_path / "a.safetensors")
    opened = open_capture(tmp_path / "a.safetensors")
    figure = map_figure(opened, opened.records[0], 16, 56)
    assert figure is not None
    assert (figure.height, figure.width) == (8, 5)
    assert figure.caption.startswith("channel 0 of 1; ")


@pytest.mark.parametrize(("shape", "size"), [((1, 1000), (18, 280)), ((1, 4, 1, 56), (15, 228))])
def test_a_vector_is_a_band_whose_rows_are_equal(tmp_path, shape, size) -> None:
    capture = hookscope.Capture()
    origin = {"module": "x", "type": "X", "call": 1, "what": "output", "kind": "output"}
    capture.put(torch.randn(shape, generator=torch.Generator().manual_seed(0)), **origin)
    capture.save(tmp_path / "a.safetensors")
    opened = open_capture(tmp_path / "a.safetensors")
    figure = map_figure(opened, opened.records[0], 4, 56)
    assert figure is not None
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
        capture = hookscope.Capture()
        capture.put(values, module="a", type="X", call=1, what="x", kind="output")
        capture.save(tmp_path / "a.safetensors")
        opened = open_capture(tmp_path / "a.safetensors")
        for choice in LIMIT_STEPS:
            figure = map_figure(opened, opened.records[0], choice.maps, choice.side)
            assert figure is not None
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
    capture = hookscope.Capture()
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(1, 16, 12, 12, generator=generator)
    for n in range(4100):
        module = f"a_rather_long_name_of_a_layer_{n}.block"
        capture.put(
            values.clone(), module=module, type="Conv2d", call=1, what="output", kind="output"
        )
    capture.save(tmp_path / "large.safetensors")
    page = hookscope.report(tmp_path / "large.safetensors")
    assert len(page.html.encode()) < MAX_PAGE_BYTES
    assert page.tensors <= 3000
    assert any("left out, to keep the page small" in text for text in page.chosen)
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
    assert "with NaN: stage2.0/output" in warnings
    assert "with infinite values: stage2.0/output" in warnings
    assert "Never ran: idle" in warnings


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
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.side, self.idle = (nn.Linear(2, 2) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.side(x)  # outside the loss: it has no gradient
            return self.used(x)

    hookscope.grads(Branch(), input=torch.ones(1, 2), loss="sum").save(tmp_path / "a.safetensors")
    both = [open_capture(tmp_path / "a.safetensors")] * 2
    for files in (both[:1], both):
        page = build_page(files, SMALL)
        titles = [column.title for column in page.columns]
        rows = [dict(zip(titles, row.cells, strict=True)) for row in page.rows if row.kind]
        assert [row.kind for row in page.rows] == sorted(row.kind for row in page.rows)
        notes = {(row["layer"].text, row["what"].text): row["note"] for row in rows}
        assert len(notes) == len(rows)
        assert {("idle", ""), ("side", "output.grad"), ("side", "weight.grad")} <= set(notes)
        for key, cell in notes.items():
            start = "does not exist" if key[1] else "never ran"
            assert cell.text.startswith(f"{start} in A: " if len(files) > 1 else f"{start}: ")
            assert cell.text.count(start) == len(files)
            assert cell.style == ALERT_STYLE
        assert all(row["norm" if len(files) == 1 else "norm A"].value is None for row in rows)
    assert hookscope.report(tmp_path / "a.safetensors").tensors == len(both[0].records)


def test_a_file_of_nothing_is_a_page_that_says_so(opened, tmp_path) -> None:
    hookscope.Capture().save(tmp_path / "empty.safetensors")
    report = hookscope.report(tmp_path / "empty.safetensors")
    assert (report.tensors, report.layers, report.warnings) == (0, 0, ())
    shown = opened(report.html).inner_text("body")
    assert "No warnings: nothing was recorded.\n" in shown


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


def test_the_same_file_gives_the_same_page(folder) -> None:
    first, second = (hookscope.report(folder / "values.safetensors").html for _ in range(2))
    assert first == second


def test_nothing_in_the_page_leads_out_of_it(folder) -> None:
    html = hookscope.report(folder / "values.safetensors").html
    assert re.findall(r'(?:src|href)="(?!data:|#)', html) == []
    assert "@import" not in html
    assert "url(" not in html
    assert "http:" not in html.replace("http-equiv", "")
    assert "https:" not in html
    assert " style=" not in html  # which the page's own policy would refuse
    assert "default-src &#39;none&#39;" in html


def test_hostile_names_are_text_everywhere(tmp_path) -> None:
    names = [
        '"><img src=x onerror=alert(1)>',
        "</script>",
        "\u2028",
        "{{ 7*7 }}",
        "'\x00",
    ]
    capture = hookscope.Capture()
    for name in names:
        capture.put(torch.ones(2), module=name, type=name, call=1, what="x", kind="output")
    capture.metadata = {"model": {"spec": "</title><b>"}, "command": "<i>"}
    path = tmp_path / "a.safetensors"
    capture.save(path)
    html = hookscope.report(path).html
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


# The command


def test_the_command_writes_the_page_and_tells_what_is_on_it(run, folder, tmp_path) -> None:
    file = folder / "values.safetensors"
    done = run("report", file)
    assert done.rc == 0, done.stderr
    page = hookscope.report(file)
    written = (tmp_path / "work" / "values.html").read_text(encoding="utf-8")
    assert written == page.html + "\n"
    assert done.stdout.splitlines()[0] == f"{page.tensors} tensors of 9 layers."
    assert "Never ran: idle" in done.stdout
    assert done.stderr.startswith("wrote values.html (")
    address = (tmp_path / "work" / "values.html").as_uri()
    assert done.stderr.splitlines()[-1] == f"next: open {address} in a browser"
    assert "replacing an earlier file" in run("report", file).stderr


def test_as_json_it_is_one_document(run, folder) -> None:
    done = run("report", folder / "values.safetensors", "--json", "-o", "a.html")
    document = json.loads(done.stdout)
    assert (document["schema"], document["command"], document["file"]) == (1, "report", "a.html")
    assert document["layers"] == 9
    assert "html" not in document


@pytest.mark.parametrize(
    ("arguments", "rc", "words"),
    [
        (["missing.safetensors"], 2, "Cannot read missing.safetensors"),
        (["notes.html"], 2, "Cannot read notes.html"),
        (["{values}", "-o", "notes.html"], 2, "was not written by hookscope"),
        (["{values}", "-o", "no/such/a.html"], 2, "does not exist"),
        (["{values}", "-o", "{values}"], 2, "is an input of this command"),
        ([], 2, "Missing argument 'FILE'"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(
    run, folder, tmp_path, arguments, rc, words
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "notes.html").write_text("<!doctype html>\nmine")
    values = str(folder / "values.safetensors")
    before = Path(values).read_bytes()
    filled = [argument.format(values=values) for argument in arguments]
    if filled[:1] == ["notes.html"]:
        filled += ["-o", "b.html"]
    done = run("report", *filled)
    assert done.rc == rc
    assert done.stdout == ""
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert (work / "notes.html").read_text() == "<!doctype html>\nmine"
    assert Path(values).read_bytes() == before


def test_a_page_counts_the_layers_that_have_tensors(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    file = tmp_path / "one.safetensors"
    hookscope.capture(model, input=torch.ones(1, 4), layers="0").save(file)
    report = hookscope.report(file)
    assert (report.tensors, report.layers) == (1, 1)
