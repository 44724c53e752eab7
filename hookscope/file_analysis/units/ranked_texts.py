"""The token that excites a unit, in its text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from hookscope.stores.features.token_spans import SPANS, Span, split_spans

LARGEST = "The activation is the largest over the tokens."
BRACKETS = "Brackets mark the token that has it."
NUMBER = "'position' is the number of the token, from 0."
NO_SPANS = f"Where the tokens are in the text is not known from this folder: {NUMBER}"
MIXED = (
    "The stored values are the largest of each channel over the tokens, which may be different"
    " tokens. So no token is marked for a direction."
)


class TextReader(Protocol):
    """Reads the texts of a dataset again, from their files."""

    def read(self, name: str, sha256: str | None) -> str | None:
        """Return the text of a row; None if it is not there any more, or has changed."""

    def notes(self) -> Sequence[str]:
        """Return what could not be read, in sentences."""


def is_text(entry: dict[str, Any]) -> bool:
    """Whether an entry of the table of inputs is that of a text."""
    return isinstance(entry.get("tokens"), int)


def token_at(
    entry: dict[str, Any], position: int, text: str | None
) -> tuple[str | None, Span | None]:
    """Return the characters of a token, or its name if it has none; and where they are in the text.

    Example:
        >>> token_at({"spans": "[CLS] 0-3 3-11"}, 2, "the capital")
        (' capital', (3, 11))
        >>> token_at({"spans": "[CLS] 0-3 3-11"}, 0, None)
        ('[CLS]', (0, 0))
        >>> token_at({"spans": "0-3"}, 1, "the")
        (None, None)
    """
    spans = split_spans(entry[SPANS])
    if position >= len(spans):  # a tokenizer that counts them in another way
        return None, None
    span = spans[position]
    if isinstance(span, str):
        before = [each[1] for each in spans[:position] if not isinstance(each, str)]
        end = before[-1] if before else 0
        return span, (end, end)
    start, stop = span
    return (text[start:stop] or None if text is not None else None), span
