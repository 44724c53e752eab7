"""Demands on single words, the same wherever a keyword takes one of a few."""

from __future__ import annotations

from collections.abc import Iterable

from hookscope.errors import RequestError


def demand_word(keyword: str, word: str, known: Iterable[str]) -> None:
    """Raise RequestError if ``word`` is not among those that ``keyword`` takes."""
    if word not in known:
        raise RequestError(
            f"{word!r} is no value of {keyword}.", f"Choose among {', '.join(known)}."
        )
