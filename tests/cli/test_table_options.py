"""``--sort``, ``--top`` and ``--precision``, names of the whole model, random weights."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from hookscope.views.display import result_columns
from hookscope.views.text.table import NOTE
from tests.cli.conftest import Parse, command
from tests.conftest import REPO, Refused, Run

DIGITS = f"{REPO}/sample_models/digits.py:trained"
FIVE = f"{REPO}/sample_models/five.safetensors"


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
    assert "4 layers matched" in done.stdout.splitlines()[3]


def test_a_pipe_has_six_digits_and_a_document_all(run: Run) -> None:
    [record, *_] = json.loads(run("show", FIVE, "--json").stdout)["recording"]["records"]
    mean = record["stats"]["mean"]
    for words, digits in ((), 6), (("--precision", "9"), 9):
        row = run("show", FIVE, *words).stdout.splitlines()[1].split()
        assert f"{mean:.{digits}g}" in row
    assert float(f"{mean:.9g}") != mean


def test_an_unknown_column_is_a_usage_error_before_the_model_is_read(
    run: Run, refused: Refused
) -> None:
    said = refused("capture", "no_such_file.py:Net", "--sort", "maen")
    assert "The table has no column 'maen'." in said
    assert "Did you mean mean?" in said
    assert run("show", FIVE, "--sort", "norm").rc == 2


SORTED = [
    *("ablate", "attribute", "cam", "capture", "diff", "extract", "gradcheck", "grads", "lens"),
    *("memory", "models", "show", "step", "sweep", "trace", "tree"),
]


@pytest.mark.parametrize("name", SORTED)
def test_every_column_of_a_pipe_can_be_sorted_by(parse: Parse, repo: Path, name: str) -> None:
    files = [FIVE] * {"show": 1, "diff": 2, "lens": 1, "attribute": 1}.get(name, 0)
    for column in result_columns(command(name).views) or (NOTE,):
        assert parse(name, *files, "--sort", column.title).obj.sort == column.title


def test_the_note_that_a_pipe_shows_can_be_sorted_by(run: Run) -> None:
    done = run("show", FIVE, "--sort", "note")
    assert done.rc == 0, done.stderr
    assert done.stdout.splitlines()[0].split()[-1] == "note"
    refused = run("trace", "--sort", "note")
    assert "The table has no column 'note'" in refused.stderr  # nor has it in a pipe


def test_the_table_of_a_file_alone_is_sorted(run: Run) -> None:
    done = run("show", FIVE, "conv1", "--top", "1")
    assert done.rc == 2 and "--sort and --top are for the table of the whole file" in done.stderr


@pytest.mark.parametrize(
    ("words", "column"),
    [
        (("grads", "--sort", "norm", "--top", "3"), "norm"),
        (("step", "--sort", "-update", "--top", "3"), "update"),
        (("tree", "--sort", "parameters", "--top", "3"), "parameters"),
        (("trace", "--sort", "bytes", "--top", "3"), "bytes"),
        (("diff", DIGITS, "--sort", "relative", "--top", "3"), "relative"),
    ],
)
@pytest.mark.slow
def test_tables_of_every_command_are_sorted(run: Run, words, column: str) -> None:
    command, *options = words
    done = run(command, DIGITS, *options)
    assert done.rc == 0, done.stderr
    lines = done.stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if column in line.split())
    position = lines[start].index(column) + len(column)
    values = [float(line[:position].split()[-1]) for line in lines[start + 1 : start + 4]]
    assert values == sorted(values, reverse=words[2][0] != "-")
    rest = lines[start + 4 :]
    assert not any(line.startswith(("conv", "relu", "fc ")) for line in rest)


CAPITALS = f"hf:{REPO}/sample_models/capitals"
PERU = ("--input", "text:the capital of Peru is", "--no-output")


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "column"),
    [
        (("ablate", DIGITS, "--no-output"), "output"),
        (("sweep", DIGITS, "--no-output"), "kl"),
        pytest.param(
            ("sweep", CAPITALS, *PERU, "--layer", "model.layers.*", "--positions", "all"),
            "output",
            marks=pytest.mark.exhaustive,
        ),
        (("lens", CAPITALS, *PERU), "kl"),
        pytest.param(("attribute", CAPITALS, *PERU), "attribution", marks=pytest.mark.exhaustive),
        (("models",), "parameters"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else value,
)
def test_any_table_is_csv_sorted_and_cut(run: Run, words, column: str) -> None:
    whole = run(*words, "--csv", "-q")
    assert whole.rc == 0, whole.stderr
    rows = list(csv.DictReader(whole.stdout.splitlines()))
    assert len(rows) > 3 and None not in rows[0] and None not in rows[0].values()
    table = run(*words, "-q", "--sort", f"-{column}", "--top", "3").stdout
    names, first = (
        [line.split()[0] for line in table.splitlines() if line.split()],
        next(iter(rows[0])),
    )
    least = sorted(rows, key=lambda row: float(row[column]))[:3]
    start = names.index(first)
    assert names[start + 1 : start + 4] == [row[first] for row in least]


@pytest.mark.slow
def test_the_numbers_of_csv_are_those_of_the_document(run: Run) -> None:
    text = run("capture", DIGITS, "--no-output", "-q", "--csv").stdout
    rows = list(csv.DictReader(text.splitlines()))
    document = json.loads(run("capture", DIGITS, "--no-output", "-q", "--json").stdout)
    records = document["records"]
    assert [row["layer"] for row in rows[:-1]] == [record["module"] for record in records[:-1]]
    for row, record in zip(rows, records, strict=True):
        for name in ("mean", "std", "min", "max"):
            assert float(row[name]) == pytest.approx(record["stats"][name], rel=1e-8)


def test_csv_has_all_tensors_of_a_key_below_one_header(run: Run) -> None:
    done = run("show", FIVE, "conv1", "relu1", "--csv")
    assert done.rc == 0, done.stderr
    header, *rows = csv.reader(done.stdout.splitlines())
    assert header[0] == "tensor"
    assert [row[0] for row in rows] == ["conv1/output", "relu1/output"]


def test_csv_and_json_are_not_printed_together(refused: Refused) -> None:
    said = refused("models", "--csv", "--json")
    assert said.startswith("Error: --csv and --json cannot be combined.\n")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_file_of_an_analysis_may_be_the_table(
    run: Run, refused: Refused, tmp_path: Path
) -> None:
    words = ("lens", CAPITALS, "--input", "text:the capital of Peru is", "-q")
    printed = run(*words, "--no-output", "--csv")
    done = run(*words, "-o", "lens.csv")
    assert (done.rc, printed.rc) == (0, 0), done.stderr
    assert (tmp_path / "work" / "lens.csv").read_text(encoding="utf-8") == printed.stdout
    assert "add: --csv > FILE.csv" in refused("capture", DIGITS, "-o", "a.csv")
    for name in ("export", "report"):  # they have no --csv
        assert "--csv" not in refused(name, "x.safetensors", "-o", "a.csv")


@pytest.mark.slow
def test_ablations_are_cut(run: Run) -> None:
    done = run("ablate", DIGITS, "--top", "2", "--precision", "3")
    assert done.rc == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].startswith("layer") and lines[4].startswith("score: ")
    assert all(len(number.lstrip("-0.")) <= 4 for number in lines[2].split()[2:5])


@pytest.mark.slow
def test_the_whole_model_reads_model_in_text_and_a_dot_in_documents(run: Run) -> None:
    tree = run("tree", DIGITS)
    assert first_words(tree.stdout)[0] == "(model)"
    assert json.loads(run("tree", DIGITS, "--json").stdout)["modules"][0]["name"] == "."
    done = run("capture", DIGITS, "--layer", ".", "-o", "a.safetensors")
    assert first_words(done.stdout)[0] == "(model)"
    shown = run("show", "a.safetensors", "./output")
    assert shown.rc == 0 and first_words(shown.stdout)[0] == "./output"


@pytest.mark.slow
def test_random_weights_are_stated_beside_the_names_of_classes(run: Run, repo: Path) -> None:
    note = "Random weights: the class names mean nothing."
    image = repo / "img.png"
    random = run("capture", "squeezenet1_1", "--layer", "classifier", "--input", image)
    assert random.rc == 0, random.stderr
    assert random.stdout.splitlines()[-1] == note
    assert note in run("cam", "squeezenet1_1", "--input", image).stdout
    edited = run(
        "capture", "squeezenet1_1", "--edit", "classifier.1=zero", "--input", image, "-o", "b"
    )
    assert note in edited.stdout
    trained = run("capture", DIGITS, "--layer", "fc")
    assert "top 5" in trained.stdout and note not in trained.stdout
