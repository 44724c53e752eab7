"""The page of a run as data: what is embedded, what is thinned, what its head and table say."""

from __future__ import annotations

import base64
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import hookscope
from hookscope.results.health import Finding
from hookscope.stores.runs.series import Series
from hookscope.stores.runs.training_run import TrainingRun
from hookscope.views.html.run_curves import MISSING, NAN, StepColumns
from hookscope.views.html.run_page import RunPage, build_run_page
from tests.run_folders import Values, layer_values, loss_of, run_info, small_run, write_run

RMS = Series("net", "fc1/output", "rms")
LOSS = Series("", "loss", "value")


def embedded(html: str, run: int = 0) -> dict[tuple[str, int, str, str, str], np.ndarray]:
    """The words of each series of the page, as its script decodes them."""
    blocks = re.findall(r'<script type="text/plain" id="block\d+">([^<]*)</script>', html)
    words = [np.frombuffer(base64.b64decode(block), "<u4") for block in blocks]
    [text] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html)
    return {
        tuple(s[name] for name in ("model", "layer", "label", "group", "measure")): words[
            s["values"][0]
        ][s["values"][1] :][: s["values"][2]]
        for s in json.loads(text)["runs"][run]["series"]
    }


def odd_run(folder: Path, seed: int) -> Path:
    """Random float32 with gaps, NaN and infinities, in 300 steps."""
    draw = np.random.default_rng(seed)
    odd = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, 3.4e38]

    def of_layers(step: int) -> Values:
        values = layer_values("fc1", step)
        values[RMS] = float(np.float32(draw.lognormal()))
        values[Series("net", "fc2/output", "max")] = odd[draw.integers(len(odd))]
        if draw.random() < 0.3:
            values[Series("net", "fc2/bias.grad", "norm")] = float(draw.normal())
        return values

    return write_run(folder, run_info({"net": ["fc1", "fc2"]}), 300, loss_of, of_layers)


@pytest.mark.parametrize("seed", range(3))
def test_every_embedded_number_is_the_float32_of_the_run(tmp_path, seed) -> None:
    folder = odd_run(tmp_path / "run", seed)
    page = embedded(hookscope.report(folder).html)
    run = TrainingRun(folder)
    compared = 0
    for (model, layer, label, group, measure), words in page.items():
        name = ("fc1", "fc2")[layer]
        ending = group.removeprefix("parameter").removeprefix("output")
        key = label.removeprefix(f"{model} ") if layer < 0 else f"{name}/{label}{ending}"
        curve = run.curve(key, measure, model)
        table = run.steps if curve.series in run.steps.series else run.layers
        present = np.isin(table.steps, curve.steps)
        expected = curve.values.view(np.uint32)
        if len(words) == 1:
            assert present.all() and (expected == words[0]).all(), key
            continue
        assert len(words) == len(table)
        assert ((words != MISSING) == present).all(), key
        shown = words[present]
        numbers = ~np.isnan(curve.values)
        assert (shown[numbers] == expected[numbers]).all(), key
        assert np.isnan(shown[~numbers].view(np.float32)).all(), key
        compared += len(shown)
    assert compared > 1000 and len(page) == len([*run.steps.series, *run.layers.series])


words_of_rows = arrays(
    np.uint32,
    st.integers(1, 60),
    elements=st.one_of(
        st.floats(width=32, allow_nan=False).map(lambda x: int(np.float32(x).view(np.uint32))),
        st.sampled_from([int(NAN), int(MISSING)]),
    ),
)


@given(words_of_rows, st.integers(2, 9))
def test_a_thinned_column_has_the_extremes_of_its_rows_and_nothing_else(words, rows) -> None:
    thinned = StepColumns(len(words), rows).thin(words)
    if len(thinned) == 1:
        assert (words == words[0]).all()
        return
    groups = [words[at : at + rows] for at in range(0, len(words), rows)]
    assert len(thinned) == 2 * len(groups)
    for group, low, high in zip(groups, thinned[::2], thinned[1::2], strict=True):
        values = [float(word.view(np.float32)) for word in group if word != MISSING]
        finite = [value for value in values if not math.isnan(value)]
        if not values:
            assert low == high == MISSING
            continue
        assert np.float32(min(finite, default=math.nan)).tobytes() in (
            low.tobytes(),
            np.float32(-float(low.view(np.float32))).tobytes() if not low & 0x7FFFFFFF else b"",
        )
        if len(finite) < len(values):
            assert high == NAN
        else:
            assert float(high.view(np.float32)) == max(finite)


def test_a_long_run_is_thinned_and_says_so(tmp_path) -> None:
    folder = odd_run(tmp_path / "run", 0)
    page = build_run_page([TrainingRun(folder)], words=600)
    html = page.html()
    assert "300 sampled steps" in "".join(page.notes)
    assert all(note in html for note in page.notes)
    rms = embedded(html)["net", 0, "output", "output", "rms"].view(np.float32)
    values = TrainingRun(folder).layers.curve(RMS).values
    assert len(rms) < 200
    assert (rms.min(), rms.max()) == (values.min(), values.max())
    full = build_run_page([TrainingRun(folder)])
    assert full.notes == ()


def test_words_bound_the_page_whatever_the_number_of_series(tmp_path) -> None:
    layers = tuple(f"layer{n}" for n in range(40))
    run = TrainingRun(small_run(tmp_path / "run", layers, steps=400))
    assert len(run.layers.series) * 400 > 90_000
    for words in (10_000, 20_000, 40_000):
        blocks = build_run_page([run], words=words).blocks
        assert 0.6 * words < sum(map(len, blocks)) * 3 / 4 / 4 < words + 500


def build(folder: Path, findings: tuple[Finding, ...] = ()) -> RunPage:
    return build_run_page([TrainingRun(folder)], findings)


def test_layers_are_in_execution_order_and_not_in_that_of_definition(tmp_path) -> None:
    def of_layers(step: int) -> Values:
        return layer_values("second", step) | layer_values("first", step)

    info = run_info({"net": ["first", "second", "idle"]})
    page = build(write_run(tmp_path / "run", info, 3, loss_of, of_layers))
    [model] = page.data.models
    assert [layer.name for layer in model.layers] == ["second", "first"]
    assert [layer.type for layer in model.layers] == ["Linear", "Linear"]


def test_the_table_has_the_last_values_and_the_first_step_that_is_not_finite(tmp_path) -> None:
    def of_layers(step: int) -> Values:
        values = layer_values("fc", step)
        values[Series("net", "fc/bias.update", "ratio")] = 5.0
        values[Series("net", "fc/output", "max")] = math.nan if step >= 4 else 1.0
        values[Series("net", "ok/output", "nonfinite")] = 0.0
        values[Series("net", "bad/output", "nonfinite")] = float(step == 0)
        return values

    info = run_info({"net": ["fc", "ok", "bad"]})
    page = build(write_run(tmp_path / "run", info, 9, loss_of, of_layers, every=2))
    titles = [column.title for column in page.columns]
    rows = {row.cells[1].text: dict(zip(titles, row.cells, strict=True)) for row in page.rows}
    assert rows["fc"]["rms"].value == np.float32(1 / 11)
    assert rows["fc"]["update ratio"].text == "0.01100"  # of the weight, as in ``show``
    assert '<td class="number mark" data-sort="">NaN</td>' in page.html()
    first = {name: row["first not finite"].text for name, row in rows.items()}
    assert first == {"fc": "4", "ok": "", "bad": "0"}


def test_findings_lead_to_their_layers(tmp_path) -> None:
    findings = (
        Finding("nan", "error", "fc2", "NaN <b>here</b>.", 1, hint="Look.", others=(".",)),
        Finding("x", "warning", "gone", "No such layer.", 1),
        Finding("y", "note", "", "Of the whole run.", 1),
    )
    page = build(small_run(tmp_path / "run"), findings)
    assert [f.link for f in page.findings] == ["#m0l1", "", ""]
    assert [layer.level for layer in page.data.models[0].layers] == ["", "error", "error"]
    html = page.html()
    assert "NaN &lt;b&gt;here&lt;/b&gt;." in html and "Also: (model)." in html


def test_the_head_says_what_ran_and_what_was_not_watched(tmp_path) -> None:
    [side] = build(small_run(tmp_path / "train-1.5")).sides
    assert side.name == "train-1.5"
    assert side.command == "train.py --name 'two words'"
    assert side.verdict == "Finished after 20 steps in 1 min 15 s."
    assert [what for what, _ in side.unwatched] == ["net.encode"]
    assert ("sampling", "steps 0, 1, 2, 4, 8, 16, 32, and every 50th") in side.facts


def test_a_run_without_any_row_is_a_page(tmp_path) -> None:
    folder = write_run(tmp_path / "run", run_info({}), 0, loss_of, loss_of)
    assert "Finished after 0 steps" in hookscope.report(folder).html
