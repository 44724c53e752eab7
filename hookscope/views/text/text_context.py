"""A text with a token in brackets, cut to some width on both sides of the token."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate

from rich.cells import cell_len

from hookscope.escapes import visible
from hookscope.file_analysis.top_inputs import RankedInput

DOTS = "..."
_LONGEST = 8  # characters in a cell, on average, that are measured


def marked_text(
    ranked: RankedInput, width: int | None = None, shown: Callable[[str], str] = visible
) -> str:
    """Return the text of an input, with brackets around the token that has the largest value.

    Spaces around a token stay outside the brackets. If there are brackets in the text, more are
    used than it has side by side. Dots replace what does not fit; the token is in the middle.
    """
    text, token, span = ranked.text or "", ranked.token, ranked.span
    room = _Room(width, shown)
    if token is None or span is None:
        return room.head(text)
    before, after = text[: span[0]], text[span[1] :]
    if core := token.strip():
        start = token.index(core)
        before, after = before + token[:start], token[start + len(core) :] + after
    longest = max(map(len, re.findall(r"[\[\]]+", before + after)), default=0)
    marks = "[" * (longest + 1), "]" * (longest + 1)
    return room.around(before, core or token, after, marks)


@dataclass(frozen=True)
class _Room:
    """Cells of a terminal for a text; None for any number."""

    width: int | None
    shown: Callable[[str], str]

    def cells(self, text: str) -> list[int]:
        return [1 if c == " " else cell_len(self.shown(c)) for c in text]

    def head(self, text: str) -> str:
        """The beginning of a text that fits."""
        text = text.rstrip(" ")
        fitting = self._fitting(text)
        return text if fitting is None else f"{text[:fitting]}{DOTS}"

    def tail(self, text: str) -> str:
        """The end of a text that fits."""
        fitting = self._fitting(text[::-1])
        return text if fitting is None else f"{DOTS}{text[len(text) - fitting :]}"

    def _fitting(self, text: str) -> int | None:
        """How many of the first characters fit before dots; None if all do, without dots."""
        if self.width is None:
            return None
        ends = list(accumulate(self.cells(text[: _LONGEST * self.width])))
        if len(ends) == len(text) and (not ends or ends[-1] <= self.width):
            return None
        return bisect_right(ends, self.width - len(DOTS))

    def around(self, before: str, token: str, after: str, marks: tuple[str, str]) -> str:
        """A token between its marks, and as much of the text on both sides as fits."""
        after = after.rstrip(" ")
        if self.width is None:
            return f"{before}{marks[0]}{token}{marks[1]}{after}"
        # Dots on both sides must fit, too.
        widest = max(self.width - 2 * (len(marks[0]) + len(DOTS)), len(DOTS))
        token = replace(self, width=widest).head(token) or token
        free = self.width - sum(self.cells(token)) - 2 * len(marks[0])
        reach = _LONGEST * self.width
        left, right = (sum(self.cells(s)) for s in (before[-reach:], after[:reach]))
        left = min(left, max(free // 2, free - right))
        before = replace(self, width=left).tail(before)
        return f"{before}{marks[0]}{token}{marks[1]}{replace(self, width=free - left).head(after)}"
