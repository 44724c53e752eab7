"""How help looks: lists of terms and meanings, also where a terminal is narrow."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

import click

NARROW = 60  # columns below which a term's meaning stands on lines of its own


class Formatter(click.HelpFormatter):
    """Click's formatter, which on a narrow terminal gives the two columns of a list less room.

    A term is as wide as its longest choice, so beside it the meaning would be a word a line.
    """

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Write rows of a term and its meaning."""
        if self.width >= NARROW:
            super().write_dl(list(rows), col_max, col_spacing)
            return
        for term, meaning in rows:
            self._write_lines(term, "", self.indent_increment * 2)
            self._write_lines(meaning, " " * self.indent_increment, self.indent_increment)

    def write_heading(self, heading: str) -> None:
        """Write a section's title."""
        if self.width >= NARROW:
            super().write_heading(heading)
        else:
            self._write_lines(f"{heading}:", "", self.indent_increment)

    def _write_lines(self, text: str, first: str, hang: int) -> None:
        margin = " " * self.current_indent
        lines = textwrap.wrap(
            # [cpu|cuda|auto] may be parted behind a bar: \0 marks where, and takes no room after.
            re.sub(r"\|(?=\S)", "|\0 ", text),
            max(self.width, 20),
            initial_indent=margin + first,
            subsequent_indent=margin + " " * hang,
            break_long_words=False,
            break_on_hyphens=False,
        )
        self.write("".join(f"{line}\n" for line in lines).replace("\0 ", "").replace("\0", ""))


class Context(click.Context):
    """A context whose help is written by :class:`Formatter`."""

    formatter_class = Formatter
