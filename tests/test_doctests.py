"""The examples of docstrings are true: one test for each, which imports its module when it runs."""

from __future__ import annotations

import ast
import doctest
import importlib

import pytest

from tests.conftest import REPO

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def documented(node: ast.Module | ast.ClassDef, name: str) -> list[str]:
    """The names of what has examples in its docstring: ``node`` itself and what it defines."""
    names = [name] if ">>>" in (ast.get_docstring(node) or "") else []
    for child in node.body:
        if isinstance(child, ast.ClassDef):
            names += documented(child, f"{name}.{child.name}")
        elif isinstance(child, ast.FunctionDef) and ">>>" in (ast.get_docstring(child) or ""):
            names.append(f"{name}.{child.name}")
    return names


def in_files() -> list[tuple[str, str]]:
    """The modules, and the names in them that have examples, read without importing anything."""
    found = []
    for path in sorted((REPO / "hookscope").rglob("*.py")):
        if ">>>" in (text := path.read_text("utf-8")):
            parts = path.relative_to(REPO).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found += [(module, name) for name in documented(ast.parse(text), module)]
    return found


@pytest.mark.parametrize(
    ("module", "name"), [pytest.param(*pair, id=pair[1]) for pair in in_files()]
)
def test_the_examples_of_a_docstring_are_true(module: str, name: str) -> None:
    assert what_is_not_true(module, name) == ""


def what_is_not_true(module: str, name: str) -> str:
    found = doctest.DocTestFinder().find(importlib.import_module(module), module)
    (test,) = (test for test in found if test.name == name)
    said: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=OPTIONS)
    runner.run(test, out=said.append)
    assert runner.tries
    return "".join(said)
