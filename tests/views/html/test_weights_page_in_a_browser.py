"""The page of weights in a real browser: tree, filter, sort, one tensor, thousands of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import hookscope

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = np.random.default_rng(0)
    tensors = {
        f"layer{i}.{j}.conv.weight": rng.standard_normal((8, 3, 3, 3)).astype(np.float32) * (i + 1)
        for i in range(3)
        for j in range(2)
    }
    tensors["layer1.0.conv.bias"] = np.array([0.5, np.nan], np.float32)
    tensors["layer2.1.conv.weight"][4] = 0
    file = tmp_path_factory.mktemp("weights") / "w.safetensors"
    save_file(tensors, file, metadata={"epoch": "3"})
    return hookscope.report(file).html


def shown(page, column: int = 1) -> list[str]:
    script = "(rows, n) => rows.filter(r => r.offsetParent).map(r => r.cells[n].textContent)"
    return page.eval_on_selector_all("#table tbody tr", script, column)


def test_a_module_of_the_tree_shows_its_tensors(opened, html) -> None:
    page = opened(html)
    assert len(shown(page)) == 7
    page.click(".tree li[data-name=layer1] a")
    page.wait_for_function("() => document.querySelector('#selected').innerText === 'layer1'")
    assert sorted(shown(page)) == [
        *("layer1.0.conv.bias", "layer1.0.conv.weight", "layer1.1.conv.weight"),
    ]
    assert page.inner_text("#found") == "3 of 7 tensors"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('#selected').innerText === 'Tensors'")
    assert len(shown(page)) == 7


def test_a_finding_leads_to_its_tensor(opened, html) -> None:
    page = opened(html)
    page.click(".findings a:has-text('layer1.0.conv.bias')")
    page.wait_for_selector("#detail h3")
    assert page.inner_text("#detail h3") == "layer1.0.conv.bias"
    assert "NaN\n1" in page.inner_text("#detail dl")
    assert page.locator("#detail svg path").count() == 1
    assert page.inner_text("#table tr.chosen th") == "layer1.0.conv.bias"


@pytest.mark.parametrize(
    ("typed", "count"),
    [("CONV.W", 6), ("layer1", 3), ("layer?.0", 4), ("* !*.bias", 6), ("{layer0,layer2}", 4)],
)
def test_the_filter_takes_text_and_patterns_of_tensors_and_modules(
    opened, html, typed: str, count: int
) -> None:
    page = opened(html)
    page.fill("#filter", typed)
    assert len(shown(page)) == count
    assert page.inner_text("#found") == f"{count} of 7 tensors"
    page.keyboard.press("Escape")
    assert len(shown(page)) == 7


def test_the_table_sorts_by_number(opened, html) -> None:
    page = opened(html)
    page.click("#table thead button:text-is('norm')")
    first = shown(page)
    page.click("#table thead button:text-is('norm')")
    assert first[0] == "layer1.0.conv.bias"
    assert shown(page) == first[::-1]


def test_of_thousands_of_tensors_some_rows_are_laid_out(opened, tmp_path: Path) -> None:
    tensors = {f"layers.{i}.w": np.full(2, i, np.float32) for i in range(1500)}
    save_file(tensors, tmp_path / "many.safetensors")
    page = opened(hookscope.report(tmp_path / "many.safetensors").html)
    assert len(shown(page)) == 400
    page.evaluate("document.querySelector('.scroll').scrollTop = 1e7")
    page.wait_for_function("() => [...table.tBodies[0].rows].filter(r => !r.hidden).length === 800")
    page.click("#table thead button:text-is('max')")
    page.click("#table thead button:text-is('max')")
    assert shown(page)[0] == "layers.1499.w"
    page.fill("#filter", "layers.14??.*")
    assert page.inner_text("#found") == "100 of 1500 tensors"
    assert len(shown(page)) == 100
