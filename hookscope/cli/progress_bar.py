"""The progress bar: text, bar, count and remaining time in the last line of the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

_LEAST_BAR = 5  # columns


def new_bar(colored: bool) -> Progress:
    """Return a progress bar on standard error with count and remaining time."""
    from rich.console import Console as RichConsole
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    console = RichConsole(file=sys.stderr, no_color=not colored)
    # rich does not truncate columns with no_wrap while it can shrink the bar.
    text = TextColumn("{task.description}", markup=False)
    count = MofNCompleteColumn(table_column=Column(no_wrap=True))
    left = TimeRemainingColumn(table_column=Column(no_wrap=True))
    parts = (text, BarColumn(None), count, left)
    return Progress(*parts, console=console, transient=True, expand=True)


def bar_label(text: str, more: str, total: int, width: int) -> str:
    """Return the text before the bar: of ``more`` the parts between commas that fit.

    The bar has at least a quarter of the line, so that it is readable.
    """
    bar = max(_LEAST_BAR, width // 4)
    # The rest of the line: the bar, `5/10`, `0:00:09`, and a space before each.
    room = width - (bar + 2 * len(str(total)) + len("/0:00:00") + 3)
    parts = more.split(", ") if more else []
    while parts and len(text) + 1 + len(", ".join(parts)) > room:
        parts.pop()
    return f"{text} {', '.join(parts)}".strip()[: max(room, 0)]
