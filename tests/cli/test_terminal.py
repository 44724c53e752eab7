"""What a person sees on a terminal while a run is under way, as an emulated terminal draws it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.warm_process import WarmProcess

pytest.importorskip("termios")
pyte = pytest.importorskip("pyte")

SLOW = """
import logging, time
import torch
from torch import nn
from torch.utils.data import TensorDataset

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x):
        time.sleep(0.05)  # so the bar, which comes after a second, is drawn well before the end
        if len(x) == 3:
            logging.getLogger("hookscope").warning("[b]odd[/b] batch")
        return self.inner(x)

def rows():
    return TensorDataset(torch.ones(203, 4))
"""
COMMAND = ("extract", "slow.py:Slow", "--layer", "inner", "--input", "slow.py:rows", "--batch", "5")
OUTPUT = ("--shard-size", "1", "--workers", "0", "-o", "out/")
BAR = re.compile(r"rows(?: .*[^,])? +[━╸╺]+ +\d+/203 (?:\d+:\d\d:\d\d|-:--:--)")


@pytest.fixture
def seen(
    tmp_path: Path, clean_environment: dict[str, str], warm_process: WarmProcess
) -> Callable[..., list[list[str]]]:
    """Runs a command on a terminal and returns the screens that it showed, line by line each."""
    (tmp_path / "slow.py").write_text(SLOW)

    def watch(
        columns: int, *words: str, stdout: Path | None = None, status: int = 0
    ) -> list[list[str]]:
        environment = {**clean_environment, "TERM": "xterm-256color"}
        rc, raw = warm_process.run_on_terminal(words, tmp_path, environment, columns, stdout)
        assert rc == status, raw
        screen = pyte.Screen(columns, 40)
        stream, screens = pyte.ByteStream(screen), []
        for part in re.split(rb"(?=\r)", raw):  # however the bytes came: a line is drawn up to it
            stream.feed(part)
            screens.append([line.rstrip() for line in screen.display if line.strip()])
        return screens

    return watch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "shown"),
    [(40, "[━╸╺]{10,}"), (80, "rows/s, .* decode"), (120, "rows/s, .* decode .*, write")],
)
def test_the_bar_of_a_dataset_is_one_whole_line(seen, columns: int, shown: str) -> None:
    screens = seen(columns, *COMMAND, *OUTPUT)
    bars = [line for lines in screens for line in lines if "/203" in line]
    assert bars, [line for lines in screens for line in lines if "rows" in line]
    for line in bars:
        assert BAR.fullmatch(line) and len(line) < columns, line
        assert re.search(shown, line), line
    for lines in screens:
        assert not any("[K" in line or "[1m" in line for line in lines), lines
        assert sum("rows are done." in line or "/203" in line for line in lines) <= 1, lines
    final = "\n".join(screens[-1])
    assert "/203" not in final and "rows are done." not in final
    assert "Warning: [b]odd[/b] batch" in final
    assert "203 rows of 1 tensor" in final


@pytest.mark.slow
def test_the_bar_is_as_wide_as_its_terminal_where_the_result_goes_to_a_file(seen, tmp_path) -> None:
    result = tmp_path / "result.txt"
    screens = seen(120, *COMMAND, *OUTPUT, stdout=result)
    bars = [line for lines in screens for line in lines if "/203" in line]
    assert bars and all(BAR.fullmatch(line) and len(line) == 119 for line in bars)
    assert "203 rows of 1 tensor" in result.read_text()
    assert "\x1b" not in result.read_text()


def test_notes_and_errors_are_broken_between_words(seen, tmp_path: Path) -> None:
    lines = seen(40, "config", stdout=tmp_path / "settings.txt")[-1]
    assert lines[0].startswith("the user's settings file: /")  # no line has room for the path
    assert lines[-1].endswith("(does not exist)")
    assert seen(60, "capture", "--what", "attention", status=2)[-1] == [
        "Error: Invalid value for --what: 'attention' is not one of",
        "  output, input, state. Separate several with commas. Did",
        "  you mean --attention?",
        "See: hookscope capture --help",
    ]
    # A command that has no room stays in one piece: it is copied from the terminal.
    assert seen(60, "lens", status=2)[-1][2].startswith("Name one: hookscope lens hf:FOLDER")
