"""The graph of modules on the page, and how the page uses the width of a screen."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hookscope
from tests.views.error_results import SCRIPT
from tests.views.html.test_in_a_browser import wait_for_panel
from tests.views.text.samples import captured


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a model with too many modules to be unfolded at first."""
    stages = (nn.Sequential(*(nn.Sequential(nn.ReLU()) for _ in range(5))) for _ in range(3))
    model = nn.Sequential(nn.Sequential(*stages))
    file = tmp_path_factory.mktemp("deep") / "deep.safetensors"
    hookscope.capture(model, input=torch.ones(1, 2)).save(file)
    return hookscope.report(file).html


def shown_boxes(page) -> list[str]:
    """The names in the graph that are not folded away, by what the browser lays out."""
    return page.eval_on_selector_all(
        "#graph a", "x => x.filter(a => a.checkVisibility()).map(a => a.firstChild.textContent)"
    )


def arrows(page) -> list[str]:
    """The names that an arrow leads to."""
    return page.eval_on_selector_all(
        "#graph li",
        """x => x.filter(i => getComputedStyle(i, '::before').content.includes('→'))
        .map(i => i.querySelector('a').firstChild.textContent)""",
    )


def focused(page) -> str:
    return page.evaluate("document.activeElement.textContent.trim().split(' ')[0]")


def test_boxes_hold_what_is_inside_a_module_and_arrows_follow_the_first_calls(opened, html) -> None:
    page = opened(html)
    assert shown_boxes(page) == [
        *("(model)", "stage1", "0", "1", "stage2", "0", "1", SCRIPT, "fc", "idle")
    ]
    inside = page.locator("#graph details:has(> summary:has-text('stage2')) > ol > li > a")
    assert [text.split()[0] for text in inside.all_inner_texts()] == ["0", "1"]
    assert arrows(page) == ["1", "stage2", "1", SCRIPT, "fc"]
    shapes = page.locator("#graph .shape").all_inner_texts()
    assert shapes[:2] == ["2x5", "2x20x12x12"]
    assert page.locator("#graph .unused").count() == 1


def test_modules_of_which_no_order_is_known_have_no_arrows(opened) -> None:
    page = opened(hookscope.report(captured({"a": torch.ones(2), "b": torch.ones(2)})).html)
    assert shown_boxes(page) == ["(model)", "a", "b"]
    assert arrows(page) == []


def test_a_box_folds_and_unfolds_by_click_and_all_by_button(opened, deep) -> None:
    page = opened(deep)
    start = ["(model)", "0", "0", "1", "2"]  # an only child is unfolded too
    assert shown_boxes(page) == start
    page.locator("#graph summary").nth(8).click(position={"x": 3, "y": 10})
    assert shown_boxes(page) == ["(model)", "0", "0", "1", *"01234", "2"]
    page.click("#unfold")
    assert len(shown_boxes(page)) == 2 + 3 * (1 + 5 * 2)
    page.click("#fold")
    assert shown_boxes(page) == ["(model)", "0"]


def test_a_name_in_the_graph_shows_the_layer_and_does_not_fold_its_box(opened, html) -> None:
    page = opened(html)
    page.locator("#graph li > a").nth(2).click()
    wait_for_panel(page, "stage2.0")
    assert page.locator("#graph [aria-current]").all_inner_texts()[0].startswith("0 Conv2d")
    page.locator("#graph summary a").nth(1).click()
    wait_for_panel(page, "stage1")
    assert page.locator("#graph details[open]").count() == 3
    page.fill("#filter", "stage2*")  # leaves the layers that match in full ink
    inked = "x => x.filter(s => !s.matches('.beside')).map(s => s.textContent.split(' ')[0].trim())"
    assert page.eval_on_selector_all("#graph summary, #graph li > a", inked) == ["stage2", "0", "1"]
    page.fill("#filter", "")
    assert page.locator("#graph .beside").count() == 0


def test_the_graph_is_walked_by_keyboard(opened, html) -> None:
    page = opened(html)
    assert page.locator("#graph [tabindex='0']").count() == 1
    page.focus("#graph [tabindex='0']")
    for key, name in [
        ("ArrowDown", "stage1"),
        ("ArrowRight", "0"),
        ("ArrowRight", "1"),
        ("ArrowLeft", "stage1"),
        ("ArrowLeft", "stage1"),  # folds
        ("ArrowDown", "stage2"),
        ("ArrowUp", "stage1"),
        ("ArrowRight", "stage1"),  # unfolds
        ("End", "idle"),
        ("ArrowDown", "idle"),
        ("Home", "(model)"),
    ]:
        page.keyboard.press(key)
        assert focused(page) == name, key
    page.keyboard.press("ArrowDown")
    page.keyboard.press(" ")
    assert shown_boxes(page)[:3] == ["(model)", "stage1", "stage2"]
    page.keyboard.press("Enter")
    wait_for_panel(page, "stage1")
    assert page.locator("#graph [tabindex='0']").count() == 1


def test_a_box_that_folds_over_the_tab_stop_takes_its_place(opened, html) -> None:
    page = opened(html)
    for name in ("stage1", "stage2"):
        page.locator(
            f"#graph details:has(> summary:has-text('{name}')) > ol > li > a"
        ).first.focus()
        assert focused(page) == "0"
        page.click("#fold")
        page.wait_for_function("!document.querySelector('#graph details details[open]')")
        page.wait_for_timeout(100)  # the browser reports what folded afterwards
        stop = page.locator("#graph [tabindex='0']")
        assert stop.count() == 1
        assert stop.inner_text().split()[0] == name
        assert stop.is_visible()
        page.click("#unfold")


# Width


@pytest.mark.parametrize("width", [1400, 2560])
def test_the_summary_is_beside_the_figures_and_a_wide_screen_is_used(opened, html, width) -> None:
    page = opened(html, width=width)
    summary, flow = (page.locator(part).bounding_box() for part in (".sides", ".flow >> nth=0"))
    assert flow["x"] > summary["x"] + summary["width"]
    right = "(s) => document.querySelector(s).getBoundingClientRect().right"
    for part in (".top", ".halves", ".work", ".all .scroll"):
        assert page.evaluate(right, part) > width - 80, part


def test_random_weights_are_stated_at_the_top_and_beside_the_classes(opened, html) -> None:
    top = [[{"index": 1, "label": "tabby", "probability": 0.5}]]
    random, trained = (
        captured({"fc": torch.ones(1, 2)}, model={"spec": "resnet18", "weights": weights}, top=top)
        for weights in ("random", "IMAGENET1K_V1")
    )
    page = opened(hookscope.report(random).html)
    note = page.locator(".untrained")
    assert note.inner_text().startswith("Untrained model.")
    assert note.bounding_box()["y"] < 150
    assert page.inner_text("caption").endswith("(untrained model)")
    assert "Untrained" not in hookscope.report(trained).html + html  # nor a model of the user
    assert "<strong>B: Untrained" in hookscope.report(trained, random).html
