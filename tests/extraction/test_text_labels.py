"""Labels and other columns of texts: stored beside the rows, probed, shown, and exported."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hookscope
from hookscope.errors import RequestError
from tests import tiny_language
from tests.conftest import Run

from .conftest import contents, leave_unfinished

CAPITALS = f"hf:{Path(__file__).resolve().parents[2] / 'sample_models/capitals'}"
COUNTRIES = ("France", "Germany", "Spain", "Italy", "Japan", "China", "Norway", "Greece")
OPTIONS: dict[str, Any] = {"layers": "transformer.h.0", "reduce": "mean"}


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_language.gpt2(tmp_path_factory.mktemp("gpt2"))


def reviews(count: int) -> list[dict[str, Any]]:
    """Sentences of two forms with the form as label, and columns of all kinds."""
    rows = []
    for number in range(count):
        country, first = COUNTRIES[number % len(COUNTRIES)], number % 3 == 0
        text = f"The capital of {country} is" if first else f"Paris is the capital of {country}."
        row = {"body": text, "label": "question" if first else "answer", "stars": number % 5}
        rows.append({**row, "good": first, "tags": [country]})
    return rows


def write_lines(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"{path}:body"


def test_a_probe_reads_the_label_of_a_file_of_texts(run: Run, tmp_path: Path) -> None:
    rows = reviews(40)
    spec = write_lines(tmp_path / "reviews.jsonl", rows)
    made = run(
        *("extract", CAPITALS, "--layer", "model.layers.?", "--input", spec),
        *("--reduce", "last", "-o", "features/"),
    )
    assert made.rc == 0, made.stderr
    assert "that are not stored: tags" in made.stderr and made.stderr.count("tags") == 1
    assert "label, stars, good" in made.stderr
    shown = run("show", "features/")
    assert "Stored beside the rows: label, stars, good." in " ".join(shown.stdout.split())
    probed = run("probe", "features/", "--labels", "label", "--json")
    assert probed.rc == 0, probed.stderr
    scores = [layer["mean"] for layer in json.loads(probed.stdout)["layers"]]
    assert min(scores) > 0.9  # the last token alone tells the two forms apart
    wrong = run("probe", "features/", "--labels", "lable")
    assert wrong.rc == 2 and "label, stars, good" in wrong.stderr
    assert "Did you mean label" in " ".join(wrong.stderr.split()) and "Trace" not in wrong.stderr
    features = hookscope.load(tmp_path / "work" / "features")
    for name in ("label", "stars", "good"):
        assert features.column(name) == [row[name] for row in rows]
    assert features.manifest["inputs"]["columns"] == ["label", "stars", "good"]


def test_every_format_gives_the_same_labels(tmp_path: Path, gpt2: str) -> None:
    import datasets
    import pyarrow
    from pyarrow import parquet

    rows = [{name: row[name] for name in ("body", "label")} for row in reviews(20)]
    specs = [write_lines(tmp_path / "a.jsonl", rows)]
    with (tmp_path / "a.tsv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["label", "body"], delimiter="\t")
        writer.writeheader()
        writer.writerows(rows)
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=3)
    data = datasets.Dataset.from_list(rows).class_encode_column("label")
    assert data[0]["label"] == 1  # a number, with a name
    data.save_to_disk(tmp_path / "folder")
    specs += [f"{tmp_path / name}:body" for name in ("a.tsv", "a.parquet", "folder")]
    for number, spec in enumerate(specs):
        out = tmp_path / f"out{number}"
        hookscope.extract(gpt2, out, input=spec, every=2, **OPTIONS)
        assert hookscope.load(out).column("label") == [row["label"] for row in rows[::2]], spec


def test_several_files_have_the_columns_of_all(tmp_path: Path, gpt2: str) -> None:
    specs = [
        write_lines(tmp_path / "a.jsonl", [{"body": "Paris", "label": 1}]),
        write_lines(tmp_path / "b.jsonl", [{"body": "Berlin", "by": "x"}, {"body": "of"}]),
    ]
    hookscope.extract(gpt2, tmp_path / "out", input=specs, **OPTIONS)
    features = hookscope.load(tmp_path / "out")
    assert features.columns == ("label", "by")
    assert features.column("label") == [1, None, None]
    assert features.column("by") == [None, "x", None]
    assert "label" not in features.inputs[1]


def test_a_skipped_text_keeps_its_label_and_is_not_probed(tmp_path: Path, gpt2: str) -> None:
    rows = [*reviews(12), {"body": "", "label": "third"}]
    spec = write_lines(tmp_path / "a.jsonl", rows)
    hookscope.extract(gpt2, tmp_path / "out", input=spec, skip_bad=True, **OPTIONS)
    assert hookscope.load(tmp_path / "out").inputs[12]["label"] == "third"
    probed = hookscope.probe(tmp_path / "out", labels="label", splits=2)
    assert "third" not in probed.classes


def test_a_resumed_run_needs_the_same_columns(tmp_path: Path, gpt2: str) -> None:
    options = {**OPTIONS, "batch": 2, "shard_size": 100}
    rows = reviews(8)
    spec = write_lines(tmp_path / "a.jsonl", rows)
    out = tmp_path / "out"
    hookscope.extract(gpt2, out, input=spec, **options)
    whole = contents(out)
    leave_unfinished(out, 4)
    hookscope.extract(gpt2, out, input=spec, resume=True, **options)
    assert contents(out) == whole
    leave_unfinished(out, 4)
    write_lines(tmp_path / "a.jsonl", [{**row, "more": 1} for row in rows])
    with pytest.raises(RequestError, match="Cannot resume"):
        hookscope.extract(gpt2, out, input=spec, resume=True, **options)


def test_labels_are_in_every_exported_file(tmp_path: Path, gpt2: str) -> None:
    from pyarrow import parquet

    rows = reviews(9)
    spec = write_lines(tmp_path / "a.jsonl", rows)
    hookscope.extract(gpt2, tmp_path / "out", input=spec, **OPTIONS)
    arrays = np.load(hookscope.export(tmp_path / "out", tmp_path / "f.npz").path)
    table = parquet.read_table(hookscope.export(tmp_path / "out", tmp_path / "f.parquet").path)
    for name in ("label", "stars", "good"):
        expected = [row[name] for row in rows]
        assert arrays[name].tolist() == table[name].to_pylist() == expected
