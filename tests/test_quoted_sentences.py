"""Words are free: tests outside of the transcripts quote few sentences of the product."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import REPO

MOST = 100  # texts in tests that quote a sentence
RUN = 4  # words in a row that make a quotation
WORD = re.compile(r"[A-Za-z][\w'-]*|\S")


def texts(path: Path) -> Iterator[ast.Constant]:
    """The strings of a file that are no docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body and isinstance(node.body[0], ast.Expr)
    }  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node


def runs(text: str) -> set[tuple[str, ...]]:
    """Four words that follow each other, with nothing between them."""
    words = [word.lower() for word in WORD.findall(text)]
    parts = (tuple(words[i : i + RUN]) for i in range(len(words) - RUN + 1))
    return {part for part in parts if all(word[0].isalpha() for word in part)}


def quotations(tests: Path, product: Path) -> list[str]:
    """The places of the strings of tests that quote the product."""
    said = {
        run for path in product.rglob("*.py") for node in texts(path) for run in runs(node.value)
    }
    return [
        f"{path.relative_to(tests)}:{node.lineno}: {node.value!r}"
        for path in sorted(tests.rglob("*.py"))
        for node in texts(path)
        if not said.isdisjoint(runs(node.value))
    ]


def test_tests_quote_few_sentences() -> None:
    found = quotations(REPO / "tests", REPO / "hookscope")
    assert len(found) <= MOST, "\n".join(found)


def test_a_quotation_is_found_by_four_words_in_a_row(tmp_path: Path) -> None:
    product, tests = tmp_path / "product", tmp_path / "tests"
    for folder in (product, tests):
        folder.mkdir()
    (product / "errors.py").write_text('f"There is no file {name}. Look around."')
    (tests / "test_it.py").write_text(
        '"""There is no file."""\nmatch = "is no file"\nmatch = r"there is no file"\n'
    )
    (found,) = quotations(tests, product)
    assert found.startswith("test_it.py:3:")
