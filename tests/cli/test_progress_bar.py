"""The line of the progress bar: what there is no room for is left out, and nothing is cut."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from hookscope.cli.progress_bar import bar_label, new_bar

PACE = "rows/s, 2.69 kB, decode 39%, forward 61%, write 0%"


@pytest.mark.parametrize("columns", [28, 31, *range(38, 43), *range(78, 83), 100, 120])
@pytest.mark.parametrize("rate", ["5", "87.3", "0.0123", "1.23e+03"])
def test_count_and_time_are_whole_at_any_width(columns: int, rate: str) -> None:
    bar = new_bar(colored=False)
    console = Console(file=io.StringIO(), width=columns - 1)
    label = bar_label("rows", f"{rate} {PACE}", 203, columns - 1)
    bar.add_task(label, total=203, completed=100)
    console.print(bar.get_renderable())
    line = console.file.getvalue().rstrip()
    assert line.endswith("100/203 -:--:--") and "━" in line, line
    assert "…" not in line and len(line) < columns


@pytest.mark.parametrize("columns", [38, 80, 120])
def test_the_bar_itself_has_at_least_a_quarter_of_the_line(columns: int) -> None:
    bar = new_bar(colored=False)
    console = Console(file=io.StringIO(), width=columns - 1)
    label = bar_label("rows", f"87.3 {PACE}", 203, columns - 1)
    bar.add_task(label, total=203, completed=203)
    console.print(bar.get_renderable())
    assert console.file.getvalue().count("━") >= (columns - 1) // 4
