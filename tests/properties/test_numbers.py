"""The numbers of a table are those of ``--csv``, and those are in the document of ``--json``."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest

from hookscope.cli.main import cli
from hookscope.errors import USAGE
from tests.properties.conftest import Workplace
from tests.properties.minimal_requests import REQUESTS
from tests.properties.test_requests import name_of

TABLES = {
    pair: words
    for pair, words in REQUESTS.items()
    if any(option.key == "csv" for option in cli.commands[pair[0]].options())
}
# All is equal, or whole: there is nothing to list.
WITHOUT_TABLE = {("diff", "weights"), ("diff", "features"), ("verify", "features")}
TIMES = {"ms", "own"}  # columns of other numbers each time


def values_in(document: Any) -> Iterator[float | str]:
    """All that a table may show of a document: numbers without their sign, and what they make.

    Of a group of numbers the sum and the shares of ``numel``, of a shape its product.
    """
    if isinstance(document, str):
        yield document
    elif isinstance(document, int | float):
        yield abs(document)
    elif isinstance(document, dict | list):
        parts = list(document.values()) if isinstance(document, dict) else document
        numbers = [part for part in parts if type(part) in (int, float)]
        yield len(parts)
        yield sum(numbers)
        if isinstance(document, dict) and document.get("numel"):
            yield from (number / document["numel"] for number in numbers)
        elif isinstance(document, list) and len(numbers) == len(parts) < 8:
            yield math.prod(numbers)
        for part in parts:
            yield from values_in(part)


def words_of(value: float | str) -> list[str]:
    return [f"{value:.9g}"] if not isinstance(value, str) else re.split(r"[/.: ]", value)


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def rows_of(text: str, columns: list[str], count: int) -> list[list[str]]:
    """The cells of the table with these columns in what a command printed."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    start = next(n for n, cells in enumerate(lines) if cells == columns)
    return lines[start + 1 : start + 1 + count]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("pair", TABLES, ids=name_of)
def test_table_csv_and_document_have_the_same_numbers(
    workplace: Workplace, pair: tuple[str, str]
) -> None:
    command, words = pair[0], f"{TABLES[pair]} --quiet"
    text, table, document = (
        workplace.shell(command, words + more) for more in ("", " --csv", " --json")
    )
    if pair in WITHOUT_TABLE:
        assert (text.status, table.status, table.out) == (0, USAGE, "")
        assert "--csv" in table.err
        return
    assert text.status == table.status == document.status
    columns, *rows = csv.reader(table.out.splitlines())
    assert rows and all(len(row) == len(columns) for row in rows)
    shown = rows_of(text.out, columns, len(rows))
    stored = {word for value in values_in(json.loads(document.out)) for word in words_of(value)}
    for row, cells in zip(rows, shown, strict=True):
        for title, full, short in zip(columns, row, cells, strict=True):
            value = number(full)
            if title in TIMES or value is None:
                assert short == (full or "-") or title in TIMES, (title, full, short)
                continue
            assert short in (full, f"{value:.6g}"), (title, full, short)
            assert f"{abs(value):.9g}" in stored or not math.isfinite(value), (title, full)
