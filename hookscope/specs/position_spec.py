"""Positions of a sequence after a layer: ``GLOB@3``, ``GLOB@-1``, ``GLOB@2-5``, ``GLOB@" Paris"``.

Positions count tokens: padding is left out, ``@0`` is the first token of each row and ``@-1`` the
last one. In a vision transformer ``@3x5`` is the patch in row 3 and column 5, and ``@cls`` the
class token. Several are separated by commas.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hookscope.errors import RequestError

_QUOTED = re.compile(r"\"([^\"]*)\"|'([^']*)'")
_BRACKETS = re.compile(r"\[[^]]*\]")
_ENTRY = re.compile(
    r"(?P<row>\d{1,6})x(?P<column>\d{1,6})"
    r"|(?P<first>-?\d{1,9})(?:-(?P<last>-?\d{1,9}))?"
    r"|(?P<cls>cls)"
    r"|\"(?P<double>[^\"]+)\"|'(?P<single>[^']+)'"
)
_FORMS = (
    'Write numbers, ranges or tokens in quotes: @3, @-1, @2-5, @" Paris", @0,-1. For an @ in the'
    " name of a layer, write ?."
)


@dataclass(frozen=True)
class IndexRange:
    """Positions from ``first`` to ``last``, both included; negative ones count from the end."""

    first: int
    last: int


@dataclass(frozen=True)
class TokenText:
    """Every position of a token with this text."""

    text: str


@dataclass(frozen=True)
class Patch:
    """The patch of an image in a row and a column, from 0."""

    row: int
    column: int


@dataclass(frozen=True)
class ClassToken:
    """The class token of a vision transformer."""


Entry = IndexRange | TokenText | Patch | ClassToken


@dataclass(frozen=True)
class Positions:
    """Parsed positions."""

    text: str
    entries: tuple[Entry, ...]

    def union(self, other: Positions) -> Positions:
        """Return the positions of both."""
        return Positions(f"{self.text},{other.text}", self.entries + other.entries)


def split_positions(target: str) -> tuple[str, Positions | None]:
    """Split a layer from its positions, which follow the first ``@`` that is not in brackets."""
    start = find_positions(target)
    if start < 0:
        return target, None
    name, text = target[:start], target[start + 1 :]
    if not name or not text:
        raise RequestError(f"{target!r} has no {'positions' if name else 'layer'}.", _FORMS)
    return name, Positions(text, _entries(text, target))


def find_positions(target: str) -> int:
    """Return where the ``@`` of the positions is; -1 if there are none.

    >>> find_positions("h.1@3"), find_positions("h[@]1"), find_positions("fc")
    (3, -1, -1)
    """
    return _BRACKETS.sub(lambda match: "_" * len(match[0]), target).find("@")


def parse_positions(text: str) -> Positions:
    """Parse positions without a layer.

    >>> parse_positions("0,2-3").entries
    (IndexRange(first=0, last=0), IndexRange(first=2, last=3))
    """
    return Positions(text, _entries(text, text))


def _entries(text: str, whole: str) -> tuple[Entry, ...]:
    """The positions in a text; ``whole`` is what the user typed, for errors."""
    entries: list[Entry] = []
    start = 0
    while start <= len(text):
        match = _ENTRY.match(text, start)
        if match is None or text[match.end() : match.end() + 1] not in ("", ","):
            part = text[start:].partition(",")[0]
            raise RequestError(f"{whole!r}: {part!r} is not a position.", _FORMS)
        entries.append(_entry(match))
        start = match.end() + 1
    return tuple(entries)


def _entry(match: re.Match[str]) -> Entry:
    if match["first"] is not None:
        first = int(match["first"])
        return IndexRange(first, first if match["last"] is None else int(match["last"]))
    if match["row"] is not None:
        return Patch(int(match["row"]), int(match["column"]))
    if match["cls"] is not None:
        return ClassToken()
    return TokenText(match["double"] or match["single"])


def cut_quoted(text: str) -> str:
    """Return a text of the same length, with what stands in quotes replaced by underscores.

    So the separators outside of quotes can be found by their place.

    >>> cut_quoted('h.1@"a=b"=zero')
    'h.1@_____=zero'
    """
    return _QUOTED.sub(lambda match: "_" * len(match[0]), text)
