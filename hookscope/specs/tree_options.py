"""The options of ``tree`` that a file of weights has no use for, checked without torch."""

from __future__ import annotations

from collections.abc import Iterable

from hookscope.errors import RequestError
from hookscope.specs.weight_options import spell_option

# The options that both have; ``trust`` is for files that carry pickles.
WEIGHT_OPTIONS = ("layers", "depth", "leaves", "trust", "hash")


def check_hash_options(chosen: Iterable[str]) -> None:
    """Raise RequestError if an option is chosen together with ``hash`` that selects names."""
    for name in chosen:
        if name in ("layers", "types", "depth", "leaves", "shapes", "shape"):
            raise RequestError(
                f"--hash is of all weights, and {spell_option(name)} cannot be combined with it.",
                "Leave out one of them.",
            )
