"""Golden outputs: files that rendering must reproduce, rewritten when asked to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

GOLDENS = Path(__file__).parent / "goldens"


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compare a text with a golden file; HOOKSCOPE_REFRESH_GOLDENS=1 writes the file first."""

    def check(name: str, text: str) -> None:
        path = GOLDENS / f"{name}.txt"
        if os.environ.get("HOOKSCOPE_REFRESH_GOLDENS"):
            path.write_bytes(text.encode())
        assert text == path.read_bytes().decode(), f"{path.name} differs"

    return check
