"""``similar``, ``probe`` and ``top`` as commands: text, JSON, files, and what they import."""

from __future__ import annotations

import csv
import dataclasses
import re
from pathlib import Path

import pytest

import hookscope

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"
FEATURES, ODD = f"{SAMPLES}/features", f"{SAMPLES}/odd.csv"
COMMANDS = {
    "similar": ("similar", FEATURES, "--by", "rsa"),
    "probe": ("probe", FEATURES, "--labels", ODD, "--test", "0.4", "--splits", "2"),
    "top": ("top", FEATURES, "--layer", "fc", "--units", "0-2", "--count", "2"),
}


def test_the_matrix_is_written_as_csv_and_as_a_page(run, tmp_path: Path) -> None:
    work = tmp_path / "work"
    assert run("similar", FEATURES, "-o", "a.csv").rc == 0
    found = hookscope.similar(FEATURES)
    with (work / "a.csv").open(newline="") as file:
        header, *lines = csv.reader(file)
    assert header == ["layer", "pool/output", "fc/output"]
    values = [tuple(map(float, line[1:])) for line in lines]
    assert values == list(found.values)
    assert run("similar", FEATURES, "-o", "a.html").rc == 0
    page = (work / "a.html").read_text()
    assert ">0.91</td>" in page and '<th scope="row">fc</th>' in page


def test_a_similarity_below_one_reads_as_what_it_is(tmp_path: Path) -> None:
    from hookscope.views import display
    from hookscope.views.layer_similarity import draw_similarity, write_similarity_page
    from hookscope.views.text.text_table import TextOptions

    result = hookscope.similar(FEATURES)
    near = ((1.0, 0.99997), (0.99997, 1.0))
    result = dataclasses.replace(result, values=near)
    texts = {text.get_text() for text in draw_similarity(result).figure.axes[0].texts}
    assert texts == {"1.00", "0.99997"}
    lines = "\n".join(line.plain for line in display.text(result, TextOptions(80)))
    assert re.findall(r"\b[01]\.[0-9]+", lines) == ["1.00", "0.99997", "0.99997", "1.00"]
    write_similarity_page(result, tmp_path / "near.html")
    assert (tmp_path / "near.html").read_text().count(">0.99997</td>") == 2


@pytest.mark.parametrize("width", [40, 80])
def test_a_terminal_has_a_matrix_no_wider_than_itself(width: int) -> None:
    from hookscope.views import display
    from hookscope.views.text.text_table import TextOptions

    for result in (
        hookscope.similar(FEATURES, FEATURES),
        hookscope.probe(FEATURES, labels=ODD, test=0.4),
        hookscope.top(FEATURES, layer="pool"),
    ):
        lines = display.text(result, TextOptions(width))
        assert max(line.cell_len for line in lines) <= width
        assert lines
