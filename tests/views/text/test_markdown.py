"""``--markdown`` prints tables and sentences that a reader of Markdown shows as they are."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt
from torch import nn

import hookscope
from hookscope.views import display
from hookscope.views.text.text_table import MARKDOWN, TextOptions
from tests.views.text.samples import SAMPLES

COMMONMARK = MarkdownIt("commonmark").enable("table")


class Page(HTMLParser):
    """The texts of cells and paragraphs of a page, and every tag that is in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.paragraphs: list[str] = []
        self.tags: set[str] = set()
        self._into: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        if tag in ("td", "th", "p"):
            self._into = self.paragraphs if tag == "p" else self.cells
            self._into.append("")

    def handle_data(self, data: str) -> None:
        if self._into and data.strip():
            self._into[-1] += data


def rendered(result: object, options: TextOptions = MARKDOWN) -> Page:
    lines = [line.plain for line in display.text(result, options)]
    return Page(COMMONMARK.render("\n".join(lines)))


def test_marks_in_names_are_shown_as_they_are() -> None:
    names = ("a|b", "*c*", "__d__", "e_f", "<b>", "[g](h)", "`i`", "~~j~~", "back\\slash", "k\\|l")
    tree = hookscope.tree(nn.ModuleDict({name: nn.Linear(1, 1) for name in names}))
    page, notebook = rendered(tree), Page(display.html(tree))
    assert set(names) <= set(page.cells)
    guides = str.maketrans("", "", "├─└│ ")
    expected = [cell.translate(guides) for cell in notebook.cells]
    assert [cell.translate(guides) for cell in page.cells] == expected
    assert page.paragraphs == notebook.paragraphs


@pytest.mark.parametrize("command", SAMPLES)
def test_a_result_has_tables_and_paragraphs_alone(command: str) -> None:
    page = rendered(SAMPLES[command]())
    assert page.tags - {"p"} <= {"table", "thead", "tbody", "tr", "th", "td"}
    assert page.paragraphs and (page.cells or command == "check")
    assert not any("\n" in text or text.startswith("|") for text in page.paragraphs)


def test_a_table_is_sorted_and_cut() -> None:
    whole = rendered(SAMPLES["capture"]()).cells
    cut = rendered(SAMPLES["capture"](), TextOptions(120, markdown=True, sort="layer", top=1)).cells
    assert "head" in cut and len(cut) < len(whole) and "layer3.0.relu" not in cut
