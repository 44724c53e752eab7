"""The page in a real browser: search, filter, sort, tree by keyboard, maps, dark, phone, print."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import torch

import hookscope
from hookscope.errors import LayerError
from hookscope.specs.patterns import compile_pattern, layer_text
from hookscope.stores.capture_file import open_capture
from hookscope.views.html import capture_page
from tests.views.error_results import SCRIPT
from tests.views.text.samples import captured


def shown_layers(page) -> list[str]:
    return page.eval_on_selector_all(
        ".tree li", "items => items.filter(i => i.offsetParent).map(i => i.dataset.name)"
    )


def beside(page) -> list[str]:
    return page.eval_on_selector_all(
        ".tree li.beside:not([hidden])", "x => x.map(i => i.dataset.name)"
    )


def shown_rows(page, column: str) -> list[str]:
    titles = page.eval_on_selector_all("#table thead button", "x => x.map(b => b.textContent)")
    script = "(rows, n) => rows.filter(r => r.offsetParent).map(r => r.cells[n].textContent)"
    return page.eval_on_selector_all("#table tbody tr", script, titles.index(column))


def wait_for_panel(page, name: str) -> None:
    """Wait until the layer's panel is the one that is shown: the page follows its address."""
    page.wait_for_function(
        """name => { const shown = [...document.querySelectorAll('.panel')]
        .filter(p => p.offsetParent).map(p => p.getAttribute('aria-label'));
        return shown.length === 1 && shown[0] === name; }""",
        arg=name,
    )


def test_every_layer_is_in_the_tree_under_its_holder(opened, html) -> None:
    page = opened(html)
    assert shown_layers(page) == [
        *(".", "stage1", "stage1.0", "stage1.1", "stage2", "stage2.0", "stage2.1"),
        *(SCRIPT, "fc", "idle"),
    ]
    levels = page.eval_on_selector_all(".tree li", "x => x.map(i => i.ariaLevel)")
    assert levels == ["1", "2", "3", "3", "2", "3", "3", "2", "2", "2"]


def test_the_filter_takes_text_and_the_patterns_of_the_terminal(opened, html) -> None:
    page = opened(html)
    for typed, names in (
        ("GE2", ["stage2", "stage2.0", "stage2.1"]),
        ("stage?.0", ["stage1.0", "stage2.0"]),
        ("stage* !*.1", ["stage1", "stage1.0", "stage2", "stage2.0"]),
        ("{fc,idle}", ["fc", "idle"]),
        ("(model)", ["."]),
        ("* !(model) !stage*", [SCRIPT, "fc", "idle"]),
        ("nothing*", []),
    ):
        page.fill("#filter", typed)
        assert [n for n in shown_layers(page) if n not in beside(page)] == names, typed
        assert set(shown_rows(page, "layer")) <= {*map(layer_text, names)}
        assert page.inner_text("#found").startswith(f"{len(names)} of 10 layers, ")
    page.keyboard.press("Escape")
    assert len(shown_layers(page)) == 10
    page.fill("#filter", "{fc")  # an open brace is told, and filters nothing
    assert "brace" in page.inner_text("#found")
    assert page.get_attribute("#filter", "aria-invalid") is not None
    assert len(shown_layers(page)) == 10


def test_the_pattern_language_is_that_of_the_library(opened, html) -> None:
    draw = random.Random(0)
    alphabet = [*"abc0.*?[]!-^\\{},é🜁"]
    patterns = ["".join(draw.choices(alphabet, k=draw.randint(1, 9))) for _ in range(4000)]
    patterns += ["[!a]", "[]a]", "[!]a]", "[a-c]", "[c-a]", "[!c-a]", "[a-]", "[-a]", "[^a]", "[[]"]
    patterns += [
        "{a,b{0,.}}",
        "layer{1,2}.*",
        "[a-c-0]",
        "a\n?",
        "[\\]",
        "[",
        "[!",
        "(",
        "a|b",
        "$",
    ]
    names = ["".join(draw.choices([*"abc0.-^\\!][", "é", "🜁"], k=k)) for k in (1, 1, 2, 2, 3, 4)]
    names += ["a", "b", "c", "-", "]", "[", "^", "🜁", "a\nb", "layer1.0", "(", "a|b", "$", "\\"]

    def answer(pattern: str) -> list[bool] | None:
        try:
            test = compile_pattern(pattern)
        except LayerError:
            return None
        return [test(name) for name in names]

    text = opened(html).evaluate(
        """([patterns, names]) => JSON.stringify(patterns.map(pattern => {
            const test = compilePattern(pattern);
            return test && names.map(test);
        }))""",
        [patterns, names],
    )
    answers = json.loads(text)
    wrong = [p for p, theirs in zip(patterns, answers, strict=True) if theirs != answer(p)]
    assert wrong == []
    assert sum(any(a) for a in answers if a) > 200


def test_the_tree_is_walked_by_keyboard(opened, html) -> None:
    page = opened(html)
    page.focus(".tree li[tabindex='0']")
    press = page.keyboard.press
    for keys, at in [
        ("ArrowDown", "stage1"),
        ("ArrowRight", "stage1.0"),
        ("ArrowLeft", "stage1"),
        ("End", "idle"),
        ("ArrowUp", "fc"),
        ("Home", "."),
        ("ArrowUp", "."),
        ("ArrowDown", "stage1"),
    ]:
        press(keys)
        assert page.evaluate("document.activeElement.dataset.name") == at, keys
    for key, closed in (("ArrowLeft", True), ("ArrowRight", False)):
        press(key)
        assert ("stage1.0" not in shown_layers(page)) is closed
        state = page.get_attribute(".tree [data-name=stage1]", "aria-expanded")
        assert state == ("false" if closed else "true")
    press("ArrowDown")
    press("Enter")
    wait_for_panel(page, "stage1.0")
    assert page.get_attribute(".tree [aria-selected=true]", "data-name") == "stage1.0"
    # One stop for the Tab key, and "/" leads to the filter.
    assert page.locator(".tree [tabindex='0']").count() == 1
    press("/")
    assert page.evaluate("document.activeElement.id") == "filter"


def test_a_click_collapses_and_a_filter_looks_into_what_is_closed(opened, html) -> None:
    page = opened(html)
    page.click(".tree [data-name=stage2] b")
    for typed, seen in (("", False), ("stage2.0", True), ("", False)):
        page.fill("#filter", typed)
        assert ("stage2.0" in shown_layers(page)) is seen
    page.click(".tree [data-name=fc]")
    wait_for_panel(page, "fc")


def test_numbers_sort_as_numbers_and_what_is_none_comes_last(opened, folder) -> None:
    page = opened(hookscope.report(folder / "odd.safetensors").html)
    records = open_capture(folder / "odd.safetensors").records
    norms = [r.stats.norm for r in records]
    finite = sorted(n for n in norms if n is not None)
    assert None in norms or len(finite) > 5
    places = {f"{n}": r for n, r in enumerate(records, 1)}

    def sorted_norms() -> list[float | None]:
        shown = shown_rows(page, "#")
        assert shown.pop() == ""  # the layer that never ran
        return [places[place].stats.norm for place in shown]

    none = [None] * norms.count(None)
    page.click("#table thead button:text-is('norm')")
    assert sorted_norms() == [*finite, *none]
    page.click("#table thead button:text-is('norm')")
    assert sorted_norms() == [*finite[::-1], *none]
    assert page.locator("#table [aria-sort]").count() == 1
    page.click("#table thead button:text-is('#')")
    assert shown_rows(page, "#") == [*(f"{n}" for n in range(1, len(records) + 1)), ""]
    page.click("#table thead button:text-is('layer')")
    assert shown_rows(page, "layer") == sorted(shown_rows(page, "layer"))


def test_what_never_ran_stands_last_in_the_table_and_is_marked(opened, html) -> None:
    page = opened(html)
    assert shown_rows(page, "layer")[-1] == "idle"
    assert page.locator("#table tbody tr:last-child td.mark").count() == 1
    page.fill("#filter", "idle")
    assert page.inner_text("#found").startswith("1 of 10 layers, 0 of 18 tensors")
    page.click("#table a:text-is('idle')")
    wait_for_panel(page, "idle")
    assert page.locator(".panel:not([hidden]) .mark").count() == 1


def test_a_layers_panel_has_its_maps_as_they_are_in_the_file(opened, folder, html) -> None:
    page = opened(html)
    page.click(".tree [data-name='stage1.0']")
    wait_for_panel(page, "stage1.0")
    image = page.locator(".panel:not([hidden]) .entry:has-text('stage1.0/output') .sheet img")
    image.wait_for()
    image.evaluate("i => i.decode()")
    assert image.evaluate("i => [i.naturalWidth, i.naturalHeight]") == [4 * 13, 4 * 13]
    labels = page.locator(".panel:not([hidden]) .entry:has-text('stage1.0/output') .labels span")
    assert labels.all_inner_texts() == [str(n) for n in range(16)]
    # What the browser drew, against the colours of the file's own numbers.
    drawn = image.evaluate(
        """i => { const c = document.createElement('canvas'); c.width = i.naturalWidth;
        c.height = i.naturalHeight; const p = c.getContext('2d'); p.drawImage(i, 0, 0);
        return [...p.getImageData(0, 0, c.width, c.height).data]; }"""
    )
    from hookscope.views.images.colors import color_scale

    pixels = np.array(drawn, np.uint8).reshape(52, 52, 4)
    maps = hookscope.load(folder / "values.safetensors")["stage1.0/output"][0, :16].numpy()
    expected = color_scale(maps).paint(maps)
    for n in range(16):
        top, left = 13 * (n // 4), 13 * (n % 4)
        assert (pixels[top : top + 12, left : left + 12, :3] == expected[n]).all(), n


def test_no_script_but_the_pages_own_can_run(opened, html, said) -> None:
    page = opened(html)
    page.click(f".tree [data-name='{SCRIPT}']")
    wait_for_panel(page, SCRIPT)
    assert page.locator(".panel:not([hidden]) h2").inner_text().startswith(SCRIPT)
    with page.expect_console_message():
        page.evaluate(
            """() => { const s = document.createElement('script');
            s.textContent = 'window.ran = 1'; document.body.append(s); }"""
        )
    assert page.evaluate("window.ran") is None
    assert "Content Security Policy" in said.pop()


def test_dark_follows_the_system_until_somebody_says_otherwise(opened, html) -> None:
    def ground(page) -> int:
        color = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return int(color[4:].split(",")[0])

    light, dark = opened(html), opened(html, dark=True)
    assert (ground(light), ground(dark)) == (255, 20)
    for page, before, after in [(light, "Dark", 20), (dark, "Light", 255)]:
        assert page.inner_text("#theme") == before
        page.click("#theme")
        assert ground(page) == after
    light.click("#theme")
    assert ground(light) == 255


def test_a_long_command_wraps_on_a_phone(opened) -> None:
    glob = "{" + ",".join(f"layer{n}.conv" for n in range(30)) + "}"
    shot = captured(
        {"a": torch.ones(1, 2)},
        command="capture",
        model={"spec": "models/a_network.py:Classifier"},
        options={"layers": [glob], "what": ["input", "output"]},
    )
    page = opened(hookscope.report(shot).html, width=360)
    assert page.inner_text(".command").count(glob) == 1
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.eval_on_selector(".command", "e => e.scrollWidth <= e.clientWidth")
    # A button is not broken in the middle of its word.
    assert page.eval_on_selector("#theme", "e => e.getClientRects()[0].height") < 45


def test_paper_has_the_table_whole_and_no_controls(opened, pages) -> None:
    page = opened(pages["pair"](), width=1047, dark=True)  # an A4 page lying on its side
    page.emulate_media(media="print")
    assert not page.locator("#filter").is_visible() and not page.locator(".tree").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    heights = "(s => [s.scrollHeight, s.clientHeight])(document.querySelector('.scroll'))"
    whole, shown = page.evaluate(heights)
    assert whole == shown
    assert page.evaluate("document.documentElement.scrollWidth") == 1047
    broken = page.eval_on_selector_all(
        "#table td.number",
        """cells => cells.filter(cell => { const range = document.createRange();
        range.selectNodeContents(cell); return range.getClientRects().length > 1; }).length""",
    )
    assert broken == 0
    page.set_viewport_size({"width": 718, "height": 1000})  # letters are those of a screen
    assert page.eval_on_selector(".flow text", "e => getComputedStyle(e).fontSize") == "12px"
    sizes = re.findall(rb"/MediaBox *\[ *0 0 ([\d.]+) ([\d.]+)", page.pdf(format="A4"))
    lying = [float(width) > float(height) for width, height in sizes]
    assert lying == sorted(lying) and set(lying) == {False, True}


def test_the_flow_leads_to_the_layer(opened, folder) -> None:
    page = opened(hookscope.report(folder / "grads.safetensors").html)
    assert page.locator(".flow h3").count() == 2
    names = page.locator(".flow").first.locator("circle title").all_text_contents()
    assert [n.split(":")[0] for n in names] == [
        *("stage1.0/output.grad", "stage1.1/output.grad"),
        *("stage2.0/output.grad", "stage2.1/output.grad"),
        *(f"{SCRIPT}/output.grad", "fc/output.grad"),
    ]
    page.locator(".flow").first.locator("a").nth(2).dispatch_event("click")
    page.wait_for_function("location.hash !== ''")
    wait_for_panel(page, "stage2.0")


def test_a_figure_that_fails_is_a_note_and_the_page_lives(opened, folder, monkeypatch) -> None:
    def fail_once(capture, record, *limits) -> None:
        if record.key == "stage1.0/output":
            raise ZeroDivisionError

    monkeypatch.setattr(capture_page, "map_figure", fail_once)
    result = hookscope.report(folder / "values.safetensors")
    assert any("stage1.0/output" in text for text in result.failed)
    page = opened(result.html)
    for name, count in (("stage1.0", 1), ("fc", 0)):
        page.click(f".tree [data-name='{name}']")
        wait_for_panel(page, name)
        assert page.locator(".panel:not([hidden]) .failed").count() == count
        assert page.locator(".panel:not([hidden]) svg").count() > 0


def test_two_files_stand_side_by_side_on_a_screen_and_fit_a_phone(opened, pages) -> None:
    page = opened(pages["pair"]())
    for name, heads in (("stage1.0", ["A", "B"]), ("fc", ["only in A"] * 2)):
        page.click(f".tree [data-name='{name}']")
        wait_for_panel(page, name)
        shown = page.locator(".panel:not([hidden]) h4").all_inner_texts()
        assert shown == heads * (len(shown) // len(heads))
    boxes = [box.bounding_box() for box in page.locator(".side").all()]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] < boxes[1]["x"]
    page.set_viewport_size({"width": 360, "height": 800})
    for node in range(page.locator(".panel").count()):
        page.evaluate("n => { location.hash = `n${n}`; }", node)
        page.wait_for_function("n => document.getElementById(`n${n}`).offsetParent", arg=node)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_without_its_script_the_page_still_shows_everything_and_the_graph_folds(
    opened, html
) -> None:
    page = opened(html, scripts=False)
    parts = page.locator(".panel, .tree li, #table tr").all()
    assert len(parts) > 30
    for part in parts:
        part.wait_for(state="visible")
    inner = page.locator("#graph details:has(> summary:has-text('stage2')) > ol > li").first
    before = inner.is_visible()
    page.locator("#graph summary:has-text('stage2')").last.click(position={"x": 3, "y": 10})
    assert (before, inner.is_visible()) == (True, False)
    assert not page.locator("#unfold").is_visible()


def test_what_can_be_reached_by_tab_has_a_name_and_shows_its_focus(opened, html) -> None:
    page = opened(html)
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        element = page.evaluate(
            """() => { const e = document.activeElement; const s = getComputedStyle(e);
            return e === document.body ? null : { name: (e.ariaLabel ?? e.labels?.[0]?.textContent
            ?? e.textContent).trim(), is: e.getAttribute('role') || e.id || e.tagName,
            focus: s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2 }; }"""
        )
        if element is None:
            break
        reached.append(element)
    assert all(element["name"] and element["focus"] for element in reached), reached
    order = [element["is"] for element in reached]
    graph = ["unfold", "fold", "SUMMARY"]
    # The last is the table, so that it can be scrolled by keyboard.
    assert order[:8] == ["theme", "SUMMARY", *graph, "filter", "treeitem", "region"]
    assert set(order[8:22]) == {"BUTTON"}


def test_the_table_sorts_by_keyboard_and_says_how(opened, html) -> None:
    page = opened(html)
    page.locator("#table thead button:text-is('norm')").focus()
    for key, order in (("Enter", "ascending"), (" ", "descending")):
        page.keyboard.press(key)
        header = page.locator("#table th:has(button:text-is('norm'))")
        assert header.get_attribute("aria-sort") == order
        assert page.evaluate("document.activeElement.textContent") == "norm"
