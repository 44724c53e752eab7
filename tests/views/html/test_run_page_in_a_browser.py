"""The page of a run in a real browser: curves, waterfalls, layers, two runs, a large run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import hookscope
from hookscope.stores.runs.series import Series
from tests.run_folders import Values, layer_values, loss_of, run_info, small_run, write_run

pytestmark = pytest.mark.exhaustive


@pytest.fixture
def html(tmp_path: Path) -> str:
    return hookscope.report(small_run(tmp_path / "run")).html


def wait_for_charts(page) -> None:
    page.wait_for_function("() => !charts[0].stale")


def shown_charts(page, within: str) -> list[str]:
    return page.eval_on_selector_all(
        f"{within} .chart",
        "x => x.filter(f => !f.hidden).map(f => f.querySelector('h3').innerText)",
    )


def inked(page, selector: str) -> int:
    """How many pixels of a canvas are drawn."""
    return page.eval_on_selector(
        selector,
        # A copy is read: Chromium warns of canvases that are read more than once.
        """c => { const copy = document.createElement('canvas');
        [copy.width, copy.height] = [c.width, c.height];
        const context = copy.getContext('2d', { willReadFrequently: true });
        context.drawImage(c, 0, 0);
        return context.getImageData(0, 0, c.width, c.height).data
            .filter((v, i) => i % 4 === 3 && v).length; }""",
    )


def test_charts_without_a_series_are_left_out(opened, html) -> None:
    page = opened(html)
    wait_for_charts(page)
    assert len(shown_charts(page, "#charts")) == 3
    assert inked(page, "#charts canvas") > 300
    assert "Largest activation" not in shown_charts(page, "#layer-charts")


def test_a_layer_is_selected_by_list_table_waterfall_and_address(opened, html) -> None:
    page = opened(html, at="#m0l1")
    chosen = page.locator("#selected")
    assert chosen.inner_text() == "fc2 Linear"
    page.click("#list [data-name=fc1]")
    assert chosen.inner_text() == "fc1 Linear"
    page.click("#table a:text-is('(model)')")
    page.wait_for_function("() => document.querySelector('#selected').innerText[0] === '('")
    page.locator("#waterfalls .view canvas").first.scroll_into_view_if_needed()
    page.wait_for_function("() => waterfalls[0].left && !waterfalls[0].stale")
    canvas = page.locator("#waterfalls .view canvas").first
    height = page.evaluate("waterfalls[0].rowHeight")
    canvas.hover(position={"x": 400, "y": 20 + height * 1.5})
    assert page.inner_text("#hint").startswith("fc2, step ")
    canvas.click(position={"x": 400, "y": 20 + height * 1.5})
    assert chosen.inner_text() == "fc2 Linear"
    page.click("#list [data-name=fc1]", modifiers=["Control"])
    assert chosen.inner_text() == "fc2, fc1"
    assert page.locator("#table tr.chosen").count() == 2


def test_curves_are_read_by_pointer_and_by_keyboard(opened, html) -> None:
    page = opened(html)
    wait_for_charts(page)
    canvas = page.locator("#charts canvas").first
    canvas.hover(position={"x": 2, "y": 40})
    figure = page.locator("#charts .chart").first
    assert figure.locator(".read").inner_text() == "Step 0"
    assert figure.locator(".legend b").inner_text() == "1"
    canvas.focus()
    page.keyboard.press("End")
    assert figure.locator(".read").inner_text() == "Step 19"
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("spoken.value") == "Step 18: loss 0.05263"
    button = figure.locator("button")
    button.click()
    assert button.get_attribute("aria-pressed") == "true"


def test_the_waterfall_is_walked_by_keyboard(opened, html) -> None:
    page = opened(html)
    canvas = page.locator("#waterfalls .view canvas").nth(2)
    canvas.scroll_into_view_if_needed()
    page.wait_for_function("() => waterfalls[2].left && !waterfalls[2].stale")
    canvas.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    assert page.evaluate("spoken.value") == "fc2 weight, step 1: 0.005"
    page.keyboard.press("Enter")
    assert page.inner_text("#selected") == "fc2 Linear"


def test_the_filter_narrows_list_waterfall_and_table(opened, html) -> None:
    page = opened(html)
    page.fill("#filter", "fc? !fc1")
    assert page.inner_text("#found") == "1 of 3 layers"
    assert page.evaluate("waterfalls.map(w => w.rows.length)") == [1, 1, 1]
    assert page.locator("#table tbody tr:visible").count() == 1


def test_nan_infinity_and_zero_have_colours_of_their_own_and_are_counted(opened, tmp_path) -> None:
    odd = {0: math.nan, 1: math.inf, 2: 0.0}

    def of_layers(step: int) -> Values:
        return {Series("net", "fc/output", "rms"): odd.get(step, 1.0 + step)}

    info = run_info({"net": ["fc"]})
    folder = write_run(tmp_path / "odd", info, 6, loss_of, of_layers)
    page = opened(hookscope.report(folder).html)
    page.locator("#waterfalls .view canvas").first.scroll_into_view_if_needed()
    page.wait_for_function("() => waterfalls[0].left && !waterfalls[0].stale")
    colors = page.evaluate(
        """() => { const w = waterfalls[0], { width, height } = w.canvas;
        const data = w.canvas.getContext('2d').getImageData(0, 0, width, height).data;
        const y = Math.floor(HEAD + w.rowHeight / 2);
        return [0, 1].map(i => {
            const at = 4 * (y * width + Math.floor(w.left + (i + 0.5) * w.width / 6));
            return [...data.slice(at, at + 3)];
        }); }"""
    )
    assert colors == [[255, 0, 255], [0, 255, 255]]
    legend = page.locator("#waterfalls .scale").first.inner_text()
    assert all(text in legend for text in ("zero: 1", "NaN: 1", "infinite: 1"))
    read = page.locator("#layer-charts .read").first.inner_text()
    assert "NaN: 1" in read and "infinite: 1" in read


def test_models_and_optimizers_are_chosen(opened, tmp_path) -> None:
    def of_step(step: int) -> Values:
        return {Series(name, "groups.0", "lr"): 0.1 for name in ("opt_g", "opt_d")}

    def of_layers(step: int) -> Values:
        return {Series(name, f"{name}fc/output", "rms"): 1.0 + step for name in ("gen", "disc")}

    info = run_info({"gen": ["genfc"], "disc": ["discfc"]}, ["opt_g", "opt_d"])
    page = opened(hookscope.report(write_run(tmp_path / "gan", info, 5, of_step, of_layers)).html)
    assert page.inner_text("#selected") == "genfc Linear"
    page.select_option("#model", label="disc (Net)")
    assert page.inner_text("#selected") == "discfc Linear"
    assert page.locator("#charts .chart:visible .legend li").count() == 2
    page.select_option("#optimizer", "opt_d")
    assert page.locator("#charts .chart:visible .legend li").all_inner_texts() == ["opt_d groups.0"]


def test_two_runs_are_drawn_over_each_other(opened, tmp_path) -> None:
    a, b = (small_run(tmp_path / name) for name in ("first", "second"))
    page = opened(hookscope.report(a, b).html)
    legend = page.locator("#charts .chart").first.locator(".legend li")
    assert legend.all_inner_texts() == ["A first loss", "B second loss"]
    assert page.locator("#layer-charts .chart").first.locator(".legend li").count() == 2
    page.select_option("#run", "1")
    assert page.evaluate("[...new Set(rows.filter(r => !r.hidden).map(r => r.dataset.run))]") == [
        "1"
    ]


def test_300_layers_by_10_000_steps_load_and_respond(opened, tmp_path) -> None:
    layers = [f"block{n // 10}.{n % 10}" for n in range(300)]

    def of_layers(step: int) -> Values:
        return {
            series: value
            for layer in layers
            for series, value in layer_values(layer, step).items()
            if series.measure in ("rms", "ratio")
        }

    folder = write_run(
        tmp_path / "large", run_info({"net": layers}), 10_000, loss_of, of_layers, every=5
    )
    report = hookscope.report(folder)
    assert len(report.html) < 30_000_000
    page = opened(report.html)
    wait_for_charts(page)
    assert inked(page, "#charts canvas") > 300
    canvas = page.locator("#waterfalls .view canvas").first
    canvas.scroll_into_view_if_needed()
    page.wait_for_function("() => waterfalls[0].left && !waterfalls[0].stale")
    canvas.hover(position={"x": 400, "y": 20 + 3 * 42.5})
    assert page.inner_text("#hint").startswith("block4.2, step ")
    canvas.click(position={"x": 400, "y": 20 + 3 * 42.5})
    assert page.inner_text("#selected") == "block4.2 Linear"
    page.locator("#layer-charts canvas").first.scroll_into_view_if_needed()
    page.wait_for_function("() => !layerCharts[0].stale")
    assert inked(page, "#layer-charts canvas") > 300
