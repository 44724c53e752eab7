"""Numbers, shapes and names as text: one rule for each, for all tables and sentences."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from hookscope.escapes import visible

UNITS = ("K", "M", "G", "T", "P", "E")  # each is 1000 of the unit before
DIGITS = 4  # significant digits on a terminal
PIPE_DIGITS = 6  # in a pipe
FULL_DIGITS = 9  # two different float32 values differ in these digits


def number_text(value: float | int | None, digits: int = DIGITS) -> str:
    """Return ``value`` to ``digits`` significant digits; an ``int`` up to seven digits exactly."""
    if value is None:
        return "-"
    if isinstance(value, int) and abs(value) < 10**7:
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    if value == 0:
        return "0"
    return f"{value:#.{digits}g}".rstrip(".")


def near_one_text(value: float | None, places: int) -> str:
    """Return a number that would read as 1 or -1, but is less, with more decimals; else "".

    >>> near_one_text(0.99997, 2), near_one_text(-0.999, 2), near_one_text(1 - 1e-7, 2)
    ('0.99997', '-0.999', '>0.99999')
    >>> near_one_text(0.99, 2), near_one_text(1.0, 2)
    ('', '')
    """
    # Nearer to 1 is rounding in float64.
    if value is None or not abs(value) < 1 - 1e-9 or abs(round(value, places)) < 1:
        return ""
    for more in range(places + 1, places + 4):
        if abs(round(value, more)) < 1:
            return f"{value:.{more}f}"
    return f"{'<-' if value < 0 else '>'}0.{'9' * (places + 3)}"


def cosine_text(value: float | None, digits: int = DIGITS) -> str:
    """Return a cosine to ``digits`` digits; one below 1 is never shown as 1.

    >>> cosine_text(0.99989, 3), cosine_text(1 - 1e-6), cosine_text(1.0), cosine_text(0.5)
    ('0.9999', '0.999999', '1.000', '0.5000')
    """
    return near_one_text(value, digits) or number_text(value, digits)


def full_text(value: float | int | None, digits: int = FULL_DIGITS) -> str:
    """Return an integer exactly, others to ``digits`` significant digits without trailing zeros.

    >>> full_text(1 / 3), full_text(2**63 - 1), full_text(None)
    ('0.333333333', '9223372036854775807', '-')
    >>> full_text(1 / 3, PIPE_DIGITS)
    '0.333333'
    """
    if isinstance(value, int):
        return str(int(value))
    if value is None or not math.isfinite(value):
        return number_text(value)
    return f"{value:.{digits}g}" if value else "0"


def count_text(number: int) -> str:
    """Return ``number`` with commas between thousands."""
    return f"{number:,}"


def short_count_text(number: int) -> str:
    """Return ``number`` to three significant digits, with K, M, G, T, P or E from 1000 up."""
    value, *units = float(number), "", *UNITS
    for unit in units:
        if value < 999.5 or unit == UNITS[-1]:  # from 999.5 up, three digits round to 1000
            break
        value /= 1000
    return f"{value:#.3g}".rstrip(".") + unit if unit else str(number)


def bytes_text(number: int) -> str:
    """Return a number of bytes in SI units (1 MB is 1,000,000 bytes)."""
    short = short_count_text(number)
    if short.isdigit():
        return plural(number, "byte")
    return f"{short[:-1]} {short[-1].replace('K', 'k')}B"


def percent_text(share: float) -> str:
    """Return a share from 0 to 1 as a percentage; 0% and 100% are exact.

    >>> percent_text(0.5), percent_text(0.0), percent_text(1e-6), percent_text(0.99999)
    ('50.0%', '0%', '<0.1%', '>99.9%')
    """
    if share in (0, 1):
        return f"{share:.0%}"
    if share < 0.0005:
        return "<0.1%"
    return ">99.9%" if share >= 0.9995 else f"{share:.1%}"


def shape_text(shape: Iterable[int], scalar: str = "scalar") -> str:
    """Return a shape as ``1x64x56x56``; ``scalar`` is the text of one without dimensions."""
    return "x".join(map(str, shape)) or scalar


def plural(number: int, noun: str) -> str:
    """Return ``1 layer``, ``15 layers``."""
    return f"{count_text(number)} {noun}{'' if number == 1 else 's'}"


def fold(text: str, width: int) -> list[str]:
    """Cut ``text`` into pieces of at most ``width`` terminal cells."""
    from rich.cells import cell_len  # importing rich takes as long as most of a help page

    if cell_len(text) <= width:
        return [text]
    pieces, piece, used = [], "", 0
    for character in text:
        cells = cell_len(character)
        if piece and used + cells > max(width, 1):
            pieces.append(piece)
            piece, used = "", 0
        piece, used = piece + character, used + cells
    return [*pieces, piece]


def wrap(text: str, width: int, indent: str = "  ") -> list[str]:
    """Break a text at spaces into lines of ``width`` cells; only a wider word is cut."""
    from rich.cells import cell_len  # importing rich takes as long as most of a help page

    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        joined = f"{line} {word}" if line.strip() else line + word
        if cell_len(joined) <= width or not word:
            line = joined
            continue
        if line.strip():
            lines.append(line)
            line = indent
        *whole, rest = fold(word, max(width - max(cell_len(line), cell_len(indent)), 1))
        for piece in whole:
            lines.append(line + piece)
            line = indent
        line += rest
    return [*lines, line]


def token_text(token: str, ascii: bool = False) -> str:
    """Return a token with its spaces visible, and other characters that do not print escaped.

    >>> token_text(" Paris"), token_text(" a", ascii=True)
    ('·Paris', '_a')
    """
    return visible(token.replace(" ", "_" if ascii else "·"), ascii)


def shape_label(shape: Sequence[int]) -> str:
    """Return a shape as ``1x3x8x8``."""
    return shape_text(shape, "a single number")


def ranges_text(numbers: Sequence[int]) -> str:
    """Return numbers with commas between, consecutive ones as a range."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def join_first(names: Iterable[str], count: int = 3) -> str:
    """Return the first names, joined, and the number of the others."""
    names = list(names)
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more


def join_or(names: Sequence[str]) -> str:
    """Return names as alternatives.

    >>> join_or([".csv"]), join_or([".npy", ".npz", ".csv"])
    ('.csv', '.npy, .npz or .csv')
    """
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def list_first(names: Sequence[str], count: int) -> str:
    """Return the first names, joined, with an ellipsis for the others."""
    return ", ".join(names[:count]) + (", ..." if len(names) > count else "")


def natural_order(name: str) -> list[tuple[int, str]]:
    """Return the key that sorts names with numbers: ``h.2.x`` before ``h.10.x``.

    >>> sorted(["h.10.w", "h.2.w", "b"], key=natural_order)
    ['b', 'h.2.w', 'h.10.w']
    """
    parts = re.split(r"([0-9]{1,18})", name)
    return [(int(part), "") if n % 2 else (-1, part) for n, part in enumerate(parts)]
