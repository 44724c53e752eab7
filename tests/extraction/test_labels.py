"""Labels and other columns of a dataset are stored beside its rows, and exported with them."""

from __future__ import annotations

import csv
import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import hookscope
from hookscope.errors import InputError, RequestError
from hookscope.files.input_list import list_entries
from tests import tiny_language
from tests.conftest import Run

from .conftest import contents, leave_unfinished

DIGITS = "sample_models/digits"
MODEL = "sample_models/digits.py:trained"


@pytest.fixture(autouse=True)
def in_the_repository(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repo)


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    """A folder ``classes`` with the digits in two subfolders, one of them nested."""
    folder = tmp_path / "classes"
    for number in range(10):
        home = folder / ("odd/deep" if number % 2 else "even")
        home.mkdir(parents=True, exist_ok=True)
        shutil.copy(f"{DIGITS}/{number}.png", home)
    (folder / "empty").mkdir()
    return folder


def extract(folder: Path, source, **options) -> hookscope.load:
    options = {"layers": "fc", "workers": 0, **options}
    hookscope.extract(MODEL, folder, input=source, **options)
    return hookscope.load(folder)


def test_subfolders_are_classes_as_in_image_folder(classes: Path, tmp_path: Path) -> None:
    from torchvision.datasets import ImageFolder

    found = extract(tmp_path / "f", str(classes))
    shutil.rmtree(classes / "empty")  # ImageFolder refuses a class without images
    wanted = ImageFolder(str(classes))
    assert found.inputs.paths == [path for path, _ in wanted.samples]
    assert found.column("label") == [wanted.classes[index] for _, index in wanted.samples]
    assert found.columns == ("label",)


def test_a_folder_with_images_of_its_own_has_no_classes(classes: Path) -> None:
    shutil.copy(f"{DIGITS}/3.png", classes)
    entries = list_entries([str(classes)])
    assert [entry.columns for entry in entries] == [()]


def test_columns_of_a_list_in_csv_are_kept(tmp_path: Path) -> None:
    table = tmp_path / "list.csv"
    with table.open("w", newline="") as file:
        lines = ([f"{n}, a", f"{DIGITS}/{n}.png", n / 2] for n in range(10))
        csv.writer(file).writerows([("label", "path", "width"), *lines])
    found = extract(tmp_path / "f", f"@{table}")
    assert found.columns == ("label", "width")
    assert found.column("label") == [f"{n}, a" for n in range(10)]
    assert found.column("width")[3] == "1.5"
    done = hookscope.export(tmp_path / "f", tmp_path / "f.npz")
    assert np.load(done.path)["label"].tolist() == found.column("label")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,label\na.png,1\n", "has no column 'path'"),
        ("path,sha256\na.png,1\n", "the name is reserved"),
        ("path,a,a\na.png,1,2\n", "the name is twice in it"),
        ("path,a\na.png\n", "Row 2 .* has 1 cells"),
    ],
)
def test_a_wrong_list_is_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        list_entries([f"@{tmp_path / 'list.csv'}"])


@pytest.mark.parametrize("workers", [0, 2])
def test_labels_of_a_dataset_are_kept(tmp_path: Path, workers: int) -> None:
    numbers = torch.arange(10).flip(0)
    data = TensorDataset(torch.rand(10, 1, 8, 8), numbers)
    found = extract(tmp_path / "f", data, workers=workers, batch=4)
    assert found.column("label") == numbers.tolist()
    from pyarrow import parquet

    done = hookscope.export(tmp_path / "f", tmp_path / "f.parquet")
    assert parquet.read_table(done.path)["label"].to_pylist() == numbers.tolist()


def test_labels_that_are_vectors_are_left_out_with_a_note(tmp_path: Path, caplog) -> None:
    caplog.set_level("INFO", "hookscope")
    data = TensorDataset(torch.rand(4, 1, 8, 8), torch.rand(4, 2))
    found = extract(tmp_path / "f", data)
    assert found.columns == () and "label" not in found.inputs[0]
    assert "Tensor is neither a number nor a text" in caplog.text
    with pytest.raises(RequestError, match="have no column 'label'"):
        found.column("label")


def test_a_resumed_run_must_have_the_same_labels(classes: Path, tmp_path: Path) -> None:
    out = tmp_path / "f"
    extract(out, str(classes), batch=2, shard_size=1)
    whole = contents(out)
    leave_unfinished(out, 4)
    extract(out, str(classes), batch=2, shard_size=1, resume=True)
    assert contents(out) == whole
    (tmp_path / "list.csv").write_text(
        "path,label\n" + "".join(f"{path},x\n" for path in hookscope.load(out).inputs.paths)
    )
    with pytest.raises(RequestError, match="Cannot resume"):
        extract(out, f"@{tmp_path / 'list.csv'}", batch=2, shard_size=1, resume=True)


def write_tar(path: Path, *members: tuple[str, bytes]) -> str:
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return str(path)


def test_labels_of_a_webdataset_are_those_of_the_sample(tmp_path: Path) -> None:
    members = []
    for number in range(10):
        image = Path(f"{DIGITS}/{number}.png").read_bytes()
        beside = json.dumps({"width": 8, "of": f"no. {number}", "list": [1], "sha256": "x"})
        texts = [(f"train/a.b/{number}.cls", f"{number % 2}\n".encode())]
        texts.append((f"train/a.b/{number}.json", beside.encode()))
        texts.insert(number % 3, (f"train/a.b/{number}.seg.png", image))  # before or after them
        members += texts
    members[1:1] = [("train/a.b/0.txt", "a zero é".encode()), ("train/other/0.cls", b"7")]
    found = extract(tmp_path / "f", write_tar(tmp_path / "digits.tar", *members))

    assert found.column("label") == [str(number % 2) for number in range(10)]
    assert found.column("of") == [f"no. {number}" for number in range(10)]
    assert found.column("width") == ["8"] * 10
    assert found.column("text") == ["a zero é", *[None] * 9]
    assert set(found.columns) == {"label", "of", "width", "text"}
    assert found.inputs[3]["path"].endswith("digits.tar::train/a.b/3.seg.png")


def test_labels_that_cannot_be_read_are_left_out_with_a_warning(tmp_path: Path, caplog) -> None:
    image = Path(f"{DIGITS}/1.png").read_bytes()
    bad = [("0.cls", b"\xff"), ("0.json", b"{" * 9), ("0.txt", b"x" * 70_000), ("1.json", b"[1]")]
    entries = list_entries([write_tar(tmp_path / "a.tar", ("0.png", image), *bad)])
    assert [entry.columns for entry in entries] == [()]
    assert "left out the labels in 3 files, the first being '0.cls', which is not UTF-8" in (
        caplog.text
    )


def test_a_list_of_archives_adds_its_columns(tmp_path: Path) -> None:
    image = Path(f"{DIGITS}/1.png").read_bytes()
    path = write_tar(tmp_path / "a.tar", ("0.png", image), ("0.cls", b"4"), ("0.txt", b"four"))
    (tmp_path / "list.csv").write_text(f"path,label\n{path},five\n")
    [entry] = list_entries([f"@{tmp_path / 'list.csv'}"])
    assert dict(entry.columns) == {"label": "five", "text": "four"}


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


@pytest.mark.exhaustive
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
