"""Loads a sample by its file name, as Python itself would run it from its own folder."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Sample = Callable[[str], ModuleType]


@pytest.fixture
def sample(repo: Path, monkeypatch: pytest.MonkeyPatch) -> Sample:
    """``sample("digits")`` is the module sample_models/digits.py."""
    monkeypatch.syspath_prepend(repo / "sample_models")
    return importlib.import_module
