"""``--sort``, ``--top`` and ``--precision``, names of the whole model, random weights."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from hookscope.cli.main import cli
from hookscope.views.display import result_columns
from hookscope.views.text.table import NOTE
from tests.cli.conftest import Parse, command
from tests.cli.test_options import needed_by
from tests.conftest import REPO, Refused, Run
from tests.properties.conftest import Workplace, kept_sources, workplace  # noqa: F401
from tests.properties.declared_values import first_request
from tests.properties.test_numbers import TIMES, number

DIGITS = f"{REPO}/sample_models/digits.py:trained"
FIVE = f"{REPO}/sample_models/five.safetensors"
SORTED = [
    name for name, one in cli.commands.items() if "sort" in {option.key for option in one.options()}
]


def first_words(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()[1:] if line]


def test_the_table_of_a_file_is_sorted_and_cut(run: Run) -> None:
    done = run("show", FIVE, "--sort", "max", "--top", "2")
    assert done.rc == 0, done.stderr
    document = json.loads(run("show", FIVE, "--json", "--sort", "max", "--top", "2").stdout)
    records = document["recording"]["records"]
    assert len(records) == 4  # a document has all of them, in their order
    largest = sorted(records, key=lambda record: -record["stats"]["max"])
    assert first_words(done.stdout)[:2] == [record["module"] for record in largest[:2]]


def test_a_pipe_has_six_digits_and_a_document_all(run: Run) -> None:
    [record, *_] = json.loads(run("show", FIVE, "--json").stdout)["recording"]["records"]
    mean = record["stats"]["mean"]
    for words, digits in ((), 6), (("--precision", "9"), 9):
        row = run("show", FIVE, *words).stdout.splitlines()[1].split()
        assert f"{mean:.{digits}g}" in row
    assert float(f"{mean:.9g}") != mean


def test_an_unknown_column_is_refused_before_the_model_is_read(refused: Refused) -> None:
    said = refused("capture", "no_such_file.py:Net", "--sort", "maen")
    assert "'maen'" in said and "mean?" in said
    refused("show", FIVE, "--sort", "norm")
    refused("show", FIVE, "conv1", "--top", "1")  # a tensor has no table
    refused("trace", "--sort", "note")  # nor has it notes


@pytest.mark.parametrize("name", SORTED)
def test_every_column_of_a_pipe_can_be_sorted_by(parse: Parse, name: str) -> None:
    for column in result_columns(command(name).views) or (NOTE,):
        assert parse(name, *needed_by(name), "--sort", column.title).obj.sort == column.title


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SORTED)
def test_every_table_is_sorted_by_its_numbers_and_cut(workplace: Workplace, name: str) -> None:  # noqa: F811
    words = f"{first_request(name)} --quiet"
    header, *rows = csv.reader(workplace.shell(name, f"{words} --csv").out.splitlines())
    columns = [title for title in header if title not in TIMES]
    numeric = [c for c in columns if all(number(row[header.index(c)]) is not None for row in rows)]
    for column in numeric[-2:]:
        place = header.index(column)
        least = sorted(float(row[place]) for row in rows)[:3]
        done = workplace.shell(name, f"{words} --sort '-{column}' --top 3")
        assert done.status in (0, 1), done.err
        lines = [re.split(r"\s{2,}", line.strip()) for line in done.out.splitlines()]
        start = lines.index(header) + 1
        shown = [float(line[place]) for line in lines[start : start + len(least)]]
        assert shown == pytest.approx(least, rel=5e-6), column
        after = lines[start + len(least) :]
        assert not [line for line in after[:1] if len(line) == len(header)], column


def test_csv_has_all_tensors_of_a_key_below_one_header(run: Run) -> None:
    done = run("show", FIVE, "conv1", "relu1", "--csv")
    assert done.rc == 0, done.stderr
    header, *rows = csv.reader(done.stdout.splitlines())
    assert header[0] == "tensor"
    assert [row[0] for row in rows] == ["conv1/output", "relu1/output"]


def test_csv_and_json_are_not_printed_together(refused: Refused) -> None:
    said = refused("models", "--csv", "--json")
    assert "--csv and --json" in said


def test_the_file_of_an_analysis_may_be_the_table(workplace: Workplace) -> None:  # noqa: F811
    printed = workplace.shell("memory", f"{first_request('memory')} --quiet --csv")
    done = workplace.shell("memory", f"{first_request('memory')} --quiet -o memory.csv")
    assert done.status == printed.status == 0
    assert done.files["memory.csv"].decode() == printed.out


@pytest.mark.slow
def test_the_whole_model_reads_model_in_text_and_a_dot_in_documents(run: Run) -> None:
    assert first_words(run("tree", DIGITS).stdout)[0] == "(model)"
    assert json.loads(run("tree", DIGITS, "--json").stdout)["modules"][0]["name"] == "."
    done = run("capture", DIGITS, "--layer", ".", "-o", "a.safetensors")
    assert first_words(done.stdout)[0] == "(model)"
    shown = run("show", "a.safetensors", "./output")
    assert shown.rc == 0 and first_words(shown.stdout)[0] == "./output"


@pytest.mark.slow
def test_random_weights_are_stated_beside_the_names_of_classes(run: Run, repo: Path) -> None:
    note, image = "Random weights", repo / "img.png"
    random = run("capture", "squeezenet1_1", "--layer", "classifier", "--input", image)
    assert random.rc == 0, random.stderr
    assert random.stdout.splitlines()[-1].startswith(note)
    assert note in run("cam", "squeezenet1_1", "--input", image).stdout
    trained = run("capture", DIGITS, "--layer", "fc")
    assert "top 5" in trained.stdout and note not in trained.stdout
