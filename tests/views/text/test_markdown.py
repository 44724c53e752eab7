"""``--markdown`` prints tables and sentences that a reader of Markdown shows as they are."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt
from torch import nn

import hookscope
from hookscope.views import display
from hookscope.views.text.text_table import MARKDOWN
from tests.conftest import REPO, Refused, Run

FIVE = f"{REPO}/sample_models/five.safetensors"
DIGITS = f"{REPO}/sample_models/digits.py:trained"
CAPITALS = f"hf:{REPO}/sample_models/capitals"
PERU = ("--input", "text:the capital of Peru is", "--no-output")
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


def rendered(text: str) -> Page:
    return Page(COMMONMARK.render(text))


def test_marks_in_names_are_shown_as_they_are() -> None:
    names = ("a|b", "*c*", "__d__", "e_f", "<b>", "[g](h)", "`i`", "~~j~~", "back\\slash", "k\\|l")
    tree = hookscope.tree(nn.ModuleDict({name: nn.Linear(1, 1) for name in names}))
    text = "\n".join(line.plain for line in display.text(tree, MARKDOWN))
    page, notebook = rendered(text), Page(display.html(tree))
    assert set(names) <= set(page.cells)
    guides = str.maketrans("", "", "├─└│ ")
    expected = [cell.translate(guides) for cell in notebook.cells]
    assert [cell.translate(guides) for cell in page.cells] == expected
    assert page.paragraphs == notebook.paragraphs


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "words",
    [
        ("show", FIVE),
        ("show", FIVE, "conv1", "-v"),
        ("diff", "resnet18", "resnet34", "--structure"),
        ("tree", DIGITS, "--shapes"),
        pytest.param(("sweep", DIGITS, "--no-output"), marks=pytest.mark.slow),
        pytest.param(("lens", CAPITALS, *PERU), marks=pytest.mark.slow),
        pytest.param(("attribute", CAPITALS, *PERU), marks=pytest.mark.slow),
        pytest.param(("show", f"{REPO}/sample_models/run"), marks=pytest.mark.slow),
    ],
    ids=lambda words: words[0],
)
def test_a_command_prints_tables_and_paragraphs_alone(run: Run, words: tuple[str, ...]) -> None:
    done = run(*words, "--markdown", "-q")
    assert done.rc == (words[0] == "diff"), done.stderr
    page = rendered(done.stdout)
    assert page.tags - {"p"} == {"table", "thead", "tbody", "tr", "th", "td"}
    assert not any("\n" in text or "| " in text for text in page.paragraphs)
    # Colours are for terminals.
    assert run(*words, "--markdown", "-q", "--color").stdout == done.stdout


def test_a_table_is_sorted_and_cut(run: Run) -> None:
    whole = rendered(run("show", FIVE, "--markdown", "-q").stdout).cells
    cut = rendered(run("show", FIVE, "--markdown", "-q", "--sort", "layer", "--top", "1").stdout)
    assert "conv1" in cut.cells and len(cut.cells) < len(whole) and "fc" not in cut.cells


@pytest.mark.parametrize("other", ["--json", "--csv"])
def test_two_formats_are_refused(refused: Refused, other: str) -> None:
    assert "cannot be combined" in refused("show", FIVE, "--markdown", other)


def test_a_map_of_characters_is_not_markdown(refused: Refused) -> None:
    assert "--map and --markdown" in refused("show", FIVE, "conv1", "--map", "--markdown")
