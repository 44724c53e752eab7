"""The layout of help texts: columns, narrow terminals, examples, the screen that ``-h`` shows."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from hookscope.cli.console import Console

NARROW = 60  # columns; below, the meaning of a term has lines of its own
MAX_WIDTH = 100
SHORT_EXAMPLES, SHORT_WIDTH = 3, 78  # how many examples ``-h`` shows, and their widest line
SHORT_HEIGHT = 24  # lines of the screen that it is to fit

Rows = list[tuple[str, str]]


class Formatter(click.HelpFormatter):
    """Click's formatter. In a narrow terminal the meaning of a term is below it."""

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

    def write_examples(self, examples: Iterable[tuple[str, str]]) -> None:
        """Write a section of command lines and what they show."""
        with self.section("Examples"):
            for line, shows in examples:
                # Never wrapped: an example is copied from the terminal.
                self.write(f"{'':{self.current_indent}}{line}\n")
                with self.indentation():
                    self.write_text(shows)

    def _write_lines(self, text: str, first: str, hang: int) -> None:
        margin = " " * self.current_indent
        lines = textwrap.wrap(
            # [cpu|cuda|auto] may break after a bar: \0 marks the place, and is removed afterwards.
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


def short_help_option(text: Callable[[click.Context], str]) -> click.Option:
    """Return the option ``-h``, which prints the text of a command and ends it."""

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value and not ctx.resilient_parsing:
            ctx.ensure_object(Console).text(text(ctx))
            ctx.exit()

    return click.Option(
        ["-h", "short_help"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=callback,
        help="Show a short help and exit.",
    )


def short_help(
    ctx: click.Context, examples: Iterable[tuple[str, str]], title: str, rows: Rows, more: str
) -> str:
    """Return the help of one screen, with as many of three examples as it has room for."""
    fitting = [example for example in examples if len(example[0]) <= SHORT_WIDTH]
    text = ""
    for count in range(SHORT_EXAMPLES, 1, -1):
        text = _short_help(ctx, fitting[:count], title, rows, more)
        if text.count("\n") < SHORT_HEIGHT:
            break
    return text


def _short_help(
    ctx: click.Context, examples: Sequence[tuple[str, str]], title: str, rows: Rows, more: str
) -> str:
    formatter = ctx.make_formatter()
    assert isinstance(formatter, Formatter)
    ctx.command.format_usage(ctx, formatter)
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text((ctx.command.help or "").partition("\n\n")[0].replace("\n", " "))
    formatter.write_examples(examples)
    with formatter.section(title):
        formatter.write_dl(rows)
    formatter.write_paragraph()
    for line in more.splitlines():
        formatter.write_text(line)
    return formatter.getvalue().rstrip("\n")


def first_sentence(text: str) -> str:
    """Return the first sentence of a help text.

    >>> first_sentence("A .pt file. Repeatable.  [default: a.pt]")
    'A .pt file.'
    """
    sentence, _, more = text.partition("  [")[0].partition(". ")
    return f"{sentence}." if more else sentence
