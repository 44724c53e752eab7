"""Tensors as images: which part is drawn and in which colours, as arrays of numpy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hookscope.files.optional_packages import optional_package


@contextmanager
def require_matplotlib() -> Iterator[None]:
    """Import matplotlib, and report a failed import in the block as an error with a hint."""
    with optional_package("matplotlib", "plot", "A picture"):
        import matplotlib  # noqa: F401

        yield
