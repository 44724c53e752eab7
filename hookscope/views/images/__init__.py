"""Tensors as images: which part is drawn and in which colours, as arrays of numpy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hookscope.errors import EnvironmentFault


@contextmanager
def require_matplotlib() -> Iterator[None]:
    """Report a failed import of matplotlib in the block as an error with a hint."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise EnvironmentFault(
            f"Pictures are drawn with matplotlib, which does not load: {error}.",
            "Install it: pip install matplotlib (hookscope[plot] includes it).",
        ) from error
