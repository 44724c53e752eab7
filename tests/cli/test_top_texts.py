"""``top`` of texts as a command: the width of a terminal, pipes, JSON and pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

import hookscope
from hookscope.views.text.text_table import TextOptions
from hookscope.views.top_inputs import top_lines
from tests.extraction.text_oracle import write_texts
from tools.warm_process import WarmProcess

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"
TEXTS = [
    "the capital of France is Paris",
    "Berlin is the capital of Germany",
    "the capital\nof \x1b[31mPeru",
    "the capital of Spain is Madrid and " * 9,
]


@pytest.fixture(scope="module")
def features(
    warm_process: WarmProcess, bare_environment: dict[str, str], tmp_path_factory: Any
) -> Path:
    """Features of four texts, the last of which is longer than a terminal."""
    folder: Path = tmp_path_factory.mktemp("texts")
    write_texts(folder / "cities.jsonl", TEXTS)
    model = f"hf:{SAMPLES}/capitals"
    words = (
        *("extract", model, "--layer", "model.layers.?", "--reduce", "max", "--max-tokens", "30"),
        *("--input", "cities.jsonl", "-o", "features/"),
    )
    done = warm_process.run(words, folder, bare_environment)
    assert done.rc == 0, done.stderr
    assert "4 rows of 4 tensors" in done.stdout  # the indices of the maxima are not listed
    return folder / "features"


def top(run: Any, features: Path, *args: str) -> Any:
    command = ("top", "features/", "--layer", "model.layers.1", "--units", "6", *args)
    done = run(*command, cwd=features.parent)
    assert done.rc == 0, done.stderr
    return done


def test_a_pipe_has_the_whole_text_and_a_mark(run: Any, features: Path) -> None:
    lines = top(run, features).stdout.splitlines()
    marked = {line.split()[0]: line for line in lines if line.startswith("cities.jsonl:")}
    assert marked["cities.jsonl:1"].endswith("  the capital of France is [Paris]")
    assert marked["cities.jsonl:2"].endswith("  [Berlin] is the capital of Germany")
    assert "\\nof]] \\x1b[31mPeru" in marked["cities.jsonl:3"]
    assert "\x1b" not in "".join(lines)
    assert len(marked["cities.jsonl:4"]) > 300


def test_json_has_text_token_and_span(run: Any, features: Path) -> None:
    document = json.loads(top(run, features, "--json").stdout)
    assert document["texts"] is True
    by_row = {one["row"]: one for one in document["units"][0]["most"]}
    one = by_row[0]
    assert (one["text"], one["token"], one["span"], one["position"]) == (
        *(TEXTS[0], " Paris"),
        *([24, 30], [5]),
    )


@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize("width", [44, 60, 80, 132])
def test_on_a_terminal_lines_fit_and_the_token_is_in_the_middle(
    features: Path, monkeypatch: pytest.MonkeyPatch, width: int, ascii: bool
) -> None:
    monkeypatch.chdir(features.parent)
    found = hookscope.top(features, layer="model.layers.1", units=[6])
    lines = [line.plain for line in top_lines(found, TextOptions(width=width, ascii=ascii))]
    assert max(map(cell_len, lines)) <= width
    assert any(line.endswith("the capital of France is [Paris]") for line in lines)
    long = next(line for line in lines if "Spain" in line)
    assert "[" in long and "]" in long and long.endswith("...")
    precise = TextOptions(width=width, precision=9)
    assert max(cell_len(line.plain) for line in top_lines(found, precise)) <= width
