"""Where the tokens of a text are in it: a short text for each row of the table of inputs.

Each token is the range of its characters, ``START-STOP``, with a space between two tokens. A token
without characters, such as one that a tokenizer adds at the beginning, has its name instead. A text
takes less memory than numbers: the rows of a whole shard wait in memory until it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

SPANS = "spans"  # the column of the table of inputs

Span = tuple[int, int]
TokenSpan = Span | str  # the range of the characters, or the name of a token without any

_RANGE = re.compile(r"(\d+)-(\d+)")


def join_spans(offsets: Iterable[Span], names: Iterable[str]) -> str:
    """Return the text of the tokens' spans.

    A name that looks like a span, or has spaces, is replaced by an empty span.

    Example:
        >>> join_spans([(0, 0), (0, 3), (4, 11)], ["[CLS]", "the", "capital"])
        '[CLS] 0-3 4-11'
    """
    return " ".join(
        f"{start}-{stop}" if start < stop or not _is_plain(name) else name
        for (start, stop), name in zip(offsets, names, strict=True)
    )


def _is_plain(name: str) -> bool:
    return bool(name) and not re.search(r"\s", name) and not _RANGE.fullmatch(name)


def split_spans(text: str) -> Sequence[TokenSpan]:
    """Return the spans of the tokens, or their names."""
    parts = [(part, _RANGE.fullmatch(part)) for part in text.split(" ")]
    return [(int(match[1]), int(match[2])) if match else part for part, match in parts]
