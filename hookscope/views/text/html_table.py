"""Tables and sentences as HTML for a notebook: a plain table, every text escaped.

The HTML has no scripts, no links and no style sheet. Nothing of the model is run: all texts come
from a result, as on a terminal.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from hookscope.escapes import visible
from hookscope.files.words import plural

if TYPE_CHECKING:
    from hookscope.views.text.table import Cell, Row, Table

# The styles of a terminal in colours that are legible on a light and on a dark page.
_STYLES = {
    "bold": "font-weight:bold",
    "dim": "opacity:0.7",
    "red": "color:#d33",
    "green": "color:#2a8f2a",
    "yellow": "color:#b07a00",
    "blue": "color:#4a7fd0",
    "cyan": "color:#1a8a9a",
    "magenta": "color:#b050b0",
}

SHOWN_ROWS = 20  # the other rows of a table are folded


def html_table(table: Table) -> str:
    """Return a table as HTML, without the columns that are empty in every row.

    The rows after the first 20 are in a part that the reader opens.

    Example:
        >>> from hookscope.views.text.text_table import Cell, Column, Row, Table
        >>> print(html_table(Table((Column("layer"),), (Row((Cell("a<b"),)),), note="")))
        <table>
        <thead><tr><th style="text-align:left">layer</th></tr></thead>
        <tbody>
        <tr><td style="text-align:left;white-space:pre">a&lt;b</td></tr>
        </tbody>
        </table>
    """
    shown = [
        i
        for i, column in enumerate(table.columns)
        if i == 0 or any(row.cells[i].text for row in table.rows)
    ]
    noted = any(row.note.text for row in table.rows)
    titles = [_element("th", table.columns[i].title, right=table.columns[i].right) for i in shown]
    titles += [_element("th", table.note)] * noted
    # The lines of a tree meet only if every character has the same width.
    name_css = ["font-family:monospace"] * any(row.guide for row in table.rows)
    rows = [_html_row(row, shown, table, noted, name_css) for row in table.rows]
    head = f"<table>\n<thead><tr>{''.join(titles)}</tr></thead>"
    ends = "</tbody>", "</table>"
    lines = [head, "<tbody>", *rows[:SHOWN_ROWS], *ends]
    if folded := rows[SHOWN_ROWS:]:
        summary = f"<details><summary>{plural(len(folded), 'more row')}</summary>"
        lines += [summary, head, "<tbody>", *folded, *ends, "</details>"]
    return "\n".join(lines)


def html_sentence(text: str, style: str = "") -> str:
    """Return a sentence as a paragraph.

    Example:
        >>> html_sentence("1 layer <b> ran.", "bold")
        '<p style="margin:0.3em 0;font-weight:bold">1 layer &lt;b&gt; ran.</p>'
    """
    styles = ";".join(["margin:0.3em 0", *_css(style)])
    return f'<p style="{styles}">{escape(visible(text))}</p>'


def _html_row(row: Row, shown: list[int], table: Table, noted: bool, name_css: list[str]) -> str:
    name = row.guide + visible(row.cells[0].text)
    css = ["white-space:pre", *name_css, *_css(row.cells[0].style)]
    cells = [
        _element("td", name, css),
        *(_cell(row.cells[i], table.columns[i].right) for i in shown[1:]),
    ]
    cells += [_cell(row.note)] * noted
    return f"<tr>{''.join(cells)}</tr>"


def _cell(cell: Cell, right: bool = False) -> str:
    return _element("td", visible(cell.text), _css(cell.style), right)


def _element(tag: str, text: str, css: list[str] | None = None, right: bool = False) -> str:
    styles = ";".join([f"text-align:{'right' if right else 'left'}", *(css or ())])
    return f'<{tag} style="{styles}">{escape(text)}</{tag}>'


def _css(style: str) -> list[str]:
    """The CSS of a style of the terminal, such as ``bold red``."""
    return [_STYLES[word] for word in style.split()]
