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

from .conftest import contents, leave_unfinished

DIGITS = "sample_models/digits"
MODEL = "sample_models/digits.py:trained"
IMAGE = Path(__file__).parents[2] / DIGITS / "1.png"
COUNTRIES = ("France", "Germany", "Spain", "Italy", "Japan", "China", "Norway", "Greece")


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


def extract(out: Path, source: Any, spec: str = MODEL, **options: Any) -> Any:
    """Run digits, or texts through a language model; return the features."""
    wanted = {"layers": "fc"} if spec == MODEL else {"layers": "transformer.h.0", "reduce": "mean"}
    hookscope.extract(spec, out, input=source, **wanted, **{"workers": 0, **options})
    return hookscope.load(out)


def test_subfolders_are_classes_as_in_image_folder(classes: Path, tmp_path: Path) -> None:
    from torchvision.datasets import ImageFolder

    found = extract(tmp_path / "f", str(classes))
    shutil.rmtree(classes / "empty")  # ImageFolder refuses a class without images
    wanted = ImageFolder(str(classes))
    assert found.inputs.paths == [path for path, _ in wanted.samples]
    assert found.column("label") == [wanted.classes[index] for _, index in wanted.samples]
    assert found.columns == ("label",)
    shutil.copy(IMAGE, classes)  # a folder with images of its own has no classes
    assert [entry.columns for entry in list_entries([str(classes)])] == [()]


def test_columns_of_a_list_in_csv_are_kept(tmp_path: Path) -> None:
    table = tmp_path / "list.csv"
    with table.open("w", newline="") as file:
        lines = ([f"{n}, a", f"{DIGITS}/{n}.png", n / 2] for n in range(10))
        csv.writer(file).writerows([("label", "path", "width"), *lines])
    found = extract(tmp_path / "f", f"@{table}")
    assert found.columns == ("label", "width")
    assert found.column("label") == [f"{n}, a" for n in range(10)]
    assert found.column("width")[3] == "1.5"


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("name,label\na.png,1\n", "'path'"),
        ("path,sha256\na.png,1\n", "sha256.*reserved"),
        ("path,a,a\na.png,1,2\n", "a.*twice"),
        ("path,a\na.png\n", "Row 2 .* 1 "),
    ],
)
def test_a_wrong_list_is_refused(tmp_path: Path, text: str, subject: str) -> None:
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(InputError, match=subject):
        list_entries([f"@{tmp_path / 'list.csv'}"])


@pytest.mark.parametrize("workers", [0, 2])
def test_labels_of_a_dataset_are_kept(tmp_path: Path, workers: int) -> None:
    numbers = torch.arange(10).flip(0)
    data = TensorDataset(torch.rand(10, 1, 8, 8), numbers)
    found = extract(tmp_path / "f", data, workers=workers, batch=4)
    assert found.column("label") == numbers.tolist()


def test_labels_that_are_vectors_are_left_out_with_a_note(tmp_path: Path, caplog) -> None:
    caplog.set_level("INFO", "hookscope")
    data = TensorDataset(torch.rand(4, 1, 8, 8), torch.rand(4, 2))
    found = extract(tmp_path / "f", data)
    assert found.columns == () and "label" not in found.inputs[0]
    assert "Tensor" in caplog.text
    with pytest.raises(RequestError, match="'label'"):
        found.column("label")


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
    expected = {
        "label": [str(number % 2) for number in range(10)],
        "of": [f"no. {number}" for number in range(10)],
        "width": ["8"] * 10,
        "text": ["a zero é", *[None] * 9],
    }
    assert {name: found.column(name) for name in found.columns} == expected
    assert found.inputs[3]["path"].endswith("digits.tar::train/a.b/3.seg.png")


def test_labels_that_cannot_be_read_are_left_out_with_a_warning(tmp_path: Path, caplog) -> None:
    bad = [("0.cls", b"\xff"), ("0.json", b"{" * 9), ("0.txt", b"x" * 70_000), ("1.json", b"[1]")]
    entries = list_entries([write_tar(tmp_path / "a.tar", ("0.png", IMAGE.read_bytes()), *bad)])
    assert [entry.columns for entry in entries] == [()]
    assert "3 files" in caplog.text and "'0.cls'" in caplog.text


def test_a_list_of_archives_adds_its_columns(tmp_path: Path) -> None:
    members = [("0.png", IMAGE.read_bytes()), ("0.cls", b"4"), ("0.txt", b"four")]
    path = write_tar(tmp_path / "a.tar", *members)
    (tmp_path / "list.csv").write_text(f"path,label\n{path},five\n")
    [entry] = list_entries([f"@{tmp_path / 'list.csv'}"])
    assert dict(entry.columns) == {"label": "five", "text": "four"}


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


def test_several_files_have_the_columns_of_all(tmp_path: Path, gpt2: str) -> None:
    specs = [
        write_lines(tmp_path / "a.jsonl", [{"body": "Paris", "label": 1}]),
        write_lines(tmp_path / "b.jsonl", [{"body": "Berlin", "by": "x"}, {"body": "of"}]),
    ]
    features = extract(tmp_path / "out", specs, gpt2)
    assert features.columns == ("label", "by")
    assert features.column("label") == [1, None, None]
    assert features.column("by") == [None, "x", None]
    assert "label" not in features.inputs[1]


def test_a_skipped_text_keeps_its_label_and_is_not_probed(tmp_path: Path, gpt2: str) -> None:
    spec = write_lines(tmp_path / "a.jsonl", [*reviews(12), {"body": "", "label": "third"}])
    found = extract(tmp_path / "out", spec, gpt2, skip_bad=True)
    assert found.inputs[12]["label"] == "third"
    probed = hookscope.probe(tmp_path / "out", labels="label", splits=2)
    assert "third" not in probed.classes


@pytest.mark.parametrize("kind", ["images", "texts"])
def test_a_resumed_run_must_have_the_same_columns(
    request, classes: Path, tmp_path: Path, kind: str
) -> None:
    out, more = tmp_path / "out", {"batch": 2, "shard_size": 1}
    if kind == "images":
        spec, source, changed = MODEL, str(classes), f"@{tmp_path / 'list.csv'}"
    else:
        spec = request.getfixturevalue("gpt2")
        source = changed = write_lines(tmp_path / "a.jsonl", reviews(8))
    paths = extract(out, source, spec, **more).inputs.paths
    whole = contents(out)
    leave_unfinished(out, 4)
    extract(out, source, spec, resume=True, **more)
    assert contents(out) == whole
    write_lines(tmp_path / "a.jsonl", [{**row, "more": 1} for row in reviews(8)])
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(f"{path},x\n" for path in paths))
    with pytest.raises(RequestError, match="resume"):
        extract(out, changed, spec, resume=True, **more)


def test_labels_are_in_every_exported_file(tmp_path: Path, gpt2: str) -> None:
    from pyarrow import parquet

    rows = reviews(9)
    features = extract(tmp_path / "out", write_lines(tmp_path / "a.jsonl", rows), gpt2)
    assert features.manifest["inputs"]["columns"] == ["label", "stars", "good"]
    arrays = np.load(hookscope.export(tmp_path / "out", tmp_path / "f.npz").path)
    table = parquet.read_table(hookscope.export(tmp_path / "out", tmp_path / "f.parquet").path)
    for name in ("label", "stars", "good"):
        expected = [row[name] for row in rows]
        found = [features.column(name), arrays[name].tolist(), table[name].to_pylist()]
        assert found == [expected] * 3
