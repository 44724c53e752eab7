"""What pictures need beyond hookscope itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hookscope.errors import EnvironmentFault


@contextmanager
def needing_matplotlib() -> Iterator[None]:
    """Turn a failed import of matplotlib inside the block into a sentence.

    Raises:
        EnvironmentFault: matplotlib is not installed, or does not load.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise EnvironmentFault(
            f"Pictures are drawn with matplotlib, which does not load: {error}.",
            "Install it: pip install matplotlib (hookscope[plot] brings it along).",
        ) from error
