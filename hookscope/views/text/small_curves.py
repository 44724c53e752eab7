"""Curves in characters: one line high in a table, several lines high below one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hookscope.files.words import count_text, number_text

LEVELS, ASCII_LEVELS = "▁▂▃▄▅▆▇█", "_.-=+*#@"
NONFINITE = "!"
HEIGHT = 8  # lines of a plot
WIDTH = 60  # columns of a plot, if the terminal is wide enough
LOG_SPAN = 100  # largest over smallest value from which a plot is logarithmic


def trend_text(values: Sequence[float], ascii: bool = False) -> str:
    """Return a character for each value, from the smallest to the largest; ``!`` if not finite.

    >>> trend_text([0.0, 1.0, 2.0, float("nan")])
    '▁▅█!'
    >>> trend_text([3.0, 3.0], ascii=True)
    '=='
    """
    levels = ASCII_LEVELS if ascii else LEVELS
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)

    def level(value: float) -> str:
        if not math.isfinite(value):
            return NONFINITE
        share = (value - low) / (high - low) if high > low else 0.5
        return levels[round(share * (len(levels) - 1)) if high > low else len(levels) // 2 - 1]

    return "".join(map(level, values))


def plot_lines(
    steps: Sequence[int], values: Sequence[float], width: int, ascii: bool = False
) -> list[str]:
    """Return a plot of values over steps: its lines with the scale on the left, then the steps.

    A value that is not finite is ``!`` on the lowest line.

    >>> lines = plot_lines([0, 1, 2], [8.0, 2.0, 1.0], 30, ascii=True)
    >>> lines[0], lines[-1]
    ('8.000 |*', '       step 0 to 2')
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ["no finite value"]
    low, high = min(finite), max(finite)
    logarithmic = low > 0 and high / low >= LOG_SPAN
    scaled = math.log if logarithmic else float
    bottom, top = scaled(low), scaled(high)
    labels = {0: number_text(high), HEIGHT - 1: number_text(low)}
    room = max(map(len, labels.values()), default=0)
    span = max(steps[-1] - steps[0], 1)
    columns = max(min(WIDTH, width - room - 2), 4)
    grid = [[" "] * columns for _ in range(HEIGHT)]
    for step, value in zip(steps, values, strict=True):
        column = round((step - steps[0]) / span * (columns - 1))
        if not math.isfinite(value):
            grid[-1][column] = NONFINITE
            continue
        share = (scaled(value) - bottom) / (top - bottom) if top > bottom else 0.5
        row = HEIGHT - 1 - round(share * (HEIGHT - 1))
        if grid[row][column] != NONFINITE:
            grid[row][column] = "*" if ascii else "•"
    edge = "|" if ascii else "│"
    lines = [
        f"{labels.get(n, ''):<{room}} {edge}{''.join(line)}".rstrip() for n, line in enumerate(grid)
    ]
    scale = ", logarithmic" if logarithmic else ""
    ends = f"step {count_text(steps[0])} to {count_text(steps[-1])}{scale}"
    return [*lines, f"{' ' * room}  {ends}"]
