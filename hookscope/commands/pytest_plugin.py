"""The plugin of pytest: the fixture ``hookscope_golden``, which compares a model with its file.

Pytest loads this module in every run, so it imports nothing else of the package before a test uses
the fixture.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch import nn

    from hookscope.results.fingerprint_diff import FingerprintDiff

_UPDATE = "--hookscope-update"
_WRITTEN = "hookscope_golden"  # in the properties of a test, which xdist passes on
_FOLDER = "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes files."""
    parser.getgroup("hookscope").addoption(
        _UPDATE,
        action="store_true",
        help="Write the fingerprints of models that changed, or that have none.",
    )


class Golden:
    """Compares models of one test with the files in ``golden/`` beside it."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self._names: list[str] = []

    def __call__(self, model: nn.Module, input: Any, *, name: str = "") -> FingerprintDiff | None:
        """Fail the test if a layer of the model computes something else than its file has.

        Args:
            model: a module, in the mode, dtype and device in which it is to run.
            input: what it is called with: a tensor, a tuple of positional arguments, a dict of
                keyword arguments, or a pair of both.
            name: of the file, without ``.fp``. Default: that of the test; of a second call in the
                same test with ``-2``.

        Returns:
            The comparison; None if the file was written.
        """
        __tracebackhide__ = True
        from hookscope.errors import HookscopeError
        from hookscope.files.garbage import without_collection

        try:
            with without_collection():
                return self._check(model, input, name)
        except HookscopeError as error:
            # Its text has the cause. With the frames, pytest would show our source above it.
            raise error.with_traceback(None) from None

    def _check(self, model: nn.Module, input: Any, name: str) -> FingerprintDiff | None:
        """Compare the model with its file, or write the file."""
        with _imported_as_written(self._request.config):
            from hookscope.model_analysis.golden import GoldenModel

        path = self._path(name)
        golden = GoldenModel(model, input, self._request.node.nodeid)
        updates = self._request.config.getoption(_UPDATE)
        if not path.exists() and not updates:
            pytest.fail(
                f"There is no file {_shown(path)}. To write it: pytest {_UPDATE}", pytrace=False
            )
        if path.exists():
            found = golden.compare(path)
            if found.same:
                return found
            other = "" if name else _other_test(found, path)
            if other or not updates:
                pytest.fail(other if updates else self._message(found, path) + other, pytrace=False)
        golden.write(path)
        self._request.node.user_properties.append((_WRITTEN, _shown(path)))
        return None

    def _path(self, name: str) -> Path:
        """The file of this call."""
        if not name:
            owner = self._request.cls
            parts = ([owner.__name__] if owner else []) + [self._request.node.name]
            name = re.sub(r"[^\w.-]+", "-", ".".join(parts)).strip("-")
            again = sum(known == name for known in self._names)
            self._names.append(name)
            name += f"-{again + 1}" if again else ""
        return self._request.path.parent / _FOLDER / f"{name}.fp"

    def _message(self, found: FingerprintDiff, path: Path) -> str:
        """What differs, and the commands for the page and for the new file."""
        from hookscope.files.shell_words import join_words
        from hookscope.views.fingerprint_diff import verdict_sentences

        new = self._request.getfixturevalue("tmp_path") / path.name
        found.b.save(new)
        lines = [sentence for sentence, _ in verdict_sentences(found)]
        page = join_words(["hookscope", "diff", _shown(path), str(new), "-o", f"{path.stem}.html"])
        lines += [f"For a page: {page}", f"If the change is meant: pytest {_UPDATE}"]
        return "\n".join(lines)


@contextmanager
def _imported_as_written(config: pytest.Config) -> Iterator[None]:
    """Import modules without the rewriting of their assertions, which takes longer than the test.

    Pytest rewrites all modules of a plugin's package, in each run again if Python writes no
    bytecode.
    """
    hook: Any = config.pluginmanager.rewrite_hook
    if hook not in sys.meta_path:
        yield
        return
    place = sys.meta_path.index(hook)
    del sys.meta_path[place]
    try:
        yield
    finally:
        sys.meta_path.insert(place, hook)


@pytest.fixture
def hookscope_golden(request: pytest.FixtureRequest) -> Golden:
    """Compare a model with its fingerprint in ``golden/``: ``hookscope_golden(model, input)``."""
    return Golden(request)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List the files that were written."""
    reports = [one for several in terminalreporter.stats.values() for one in several]
    written = {
        value
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == _WRITTEN
    }
    for path in sorted(written):
        terminalreporter.write_line(f"hookscope: wrote {path}")


def _other_test(found: FingerprintDiff, path: Path) -> str:
    """A sentence if the file was written by a test with another name; else an empty text."""
    owner, own = (str(side.metadata.get("test", "")) for side in (found.a, found.b))
    if not owner or _short(owner) == _short(own):
        return ""
    return (
        f"\n{_shown(path)} was written by another test, {owner}. Give one of the two another file:"
        " hookscope_golden(model, input, name=...). If that test has a new name, delete the file."
    )


def _short(test: str) -> str:
    """A test without the folders before its file, which depend on where pytest was started."""
    file, mark, name = test.partition("::")
    return f"{file.rpartition('/')[2]}{mark}{name}"


def _shown(path: Path) -> str:
    """A path as it is typed in the working folder."""
    return os.path.relpath(path)
