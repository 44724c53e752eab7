"""Suggestions of similar names ("did you mean") for a name that does not exist.

Names that contain the text come first: ``vit`` should suggest ``vit_b_16``, which a similarity
ratio alone would rank low.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from itertools import islice

_COMPARED, _LONGEST = 10_000, 300


def near(word: str, names: Iterable[str], count: int = 3) -> list[str]:
    """Return up to ``count`` of ``names`` that resemble ``word``, the nearest first.

    >>> near("vit", ["resnet18", "vit_b_16", "vit_b_32"])
    ['vit_b_16', 'vit_b_32']
    >>> near("resnt18", ["alexnet", "resnet18", "resnet34"])
    ['resnet18', 'resnet34']
    """
    from difflib import SequenceMatcher  # only needed for a mistake

    wanted = word.lower()
    if not wanted:
        return []

    def rank(name: str) -> tuple[bool, float, int]:
        text = name.lower()
        return (wanted not in text, -SequenceMatcher(None, wanted, text).ratio(), len(name))

    def resembles(name: str) -> bool:
        text = name.lower()
        return wanted in text or SequenceMatcher(None, wanted, text).ratio() >= 0.6

    # Each comparison takes time, and a file may hold millions of names, or very long ones.
    names = [name for name in islice(names, _COMPARED) if len(name) <= _LONGEST]
    return sorted(filter(resembles, dict.fromkeys(names)), key=rank)[:count]


def did_you_mean(
    word: str,
    names: Iterable[str],
    aliases: Mapping[str, str] | None = None,
    *,
    folder: str = "",
) -> str:
    """Return ``Did you mean A, B or C?`` for the names near ``word``, or an empty string.

    >>> did_you_mean("vit", ["resnet18", "vit_b_16", "vit_b_32"])
    'Did you mean vit_b_16 or vit_b_32?'
    >>> did_you_mean("cross-entropy", ["kl", "ce"], {"crossentropy": "ce"})
    'Did you mean ce?'
    """
    alias = (aliases or {}).get(re.sub(r"[\s_-]+", "", word.lower()))
    found = [alias] if alias else near(word, names)
    if not found:
        return ""
    *others, last = [os.path.join(folder, name) for name in found]
    return f"Did you mean {', '.join(others)} or {last}?" if others else f"Did you mean {last}?"
