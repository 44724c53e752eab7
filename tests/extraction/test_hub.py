"""Data sets of the package datasets, from folders, and tables at addresses, against files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hookscope
from hookscope.errors import EnvironmentFault, InputError
from hookscope.files.hub_source import hub_source
from hookscope.inputs.hub_stream import HubStream
from tests.conftest import REPO

from .conftest import entries

pytest.importorskip("datasets")
# Of datasets and of what it imports, not of hookscope.
pytestmark = pytest.mark.filterwarnings("ignore:::datasets", "ignore::DeprecationWarning")

DIGITS = REPO / "sample_models" / "digits"
MODEL = f"{REPO}/sample_models/digits.py:trained"
TEXT_MODEL = f"hf:{REPO}/sample_models/capitals"
WORDS = ["The capital of France is", "Berlin", "Berlin is the capital of Germany", "The capital"]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))


def write_images(folder: Path, contents: list[bytes | None]) -> str:
    """A folder with a table of images, each with its class, in the way of a hub."""
    import datasets

    names = [f"digit {n}" for n in range(10)]
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=names)}
    images = [{"bytes": data, "path": None} if data is not None else None for data in contents]
    rows = {"image": images, "label": [n % 10 for n in range(len(contents))]}
    folder.mkdir()
    datasets.Dataset.from_dict(rows, datasets.Features(kinds)).to_parquet(folder / "train.parquet")
    return f"hub:{folder}:train"


def write_texts(folder: Path) -> Path:
    folder.mkdir()
    rows = [{"body": text, "text": text, "number": n} for n, text in enumerate(WORDS)]
    for split in ("train", "test"):
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text)
    return folder


def digits() -> list[bytes | None]:
    return [path.read_bytes() for path in sorted(DIGITS.iterdir()) if path.suffix == ".png"]


def images(out: Path, source: Any, **options: Any) -> np.ndarray:
    """The rows of a layer for images."""
    hookscope.extract(MODEL, out, input=source, layers="fc", **options)
    return np.asarray(hookscope.load(out)["fc"][:])


def texts(out: Path, source: str, **options: Any) -> np.ndarray:
    """The rows of a layer for texts."""
    layer = "model.layers.1"
    hookscope.extract(TEXT_MODEL, out, input=source, layers=layer, reduce="last", **options)
    return np.asarray(hookscope.load(out)[layer][:])


def test_images_of_a_data_set_give_the_rows_of_their_files(tmp_path: Path) -> None:
    spec = write_images(tmp_path / "set", digits())
    found, expected = images(tmp_path / "a", spec, batch=4), images(tmp_path / "b", DIGITS, batch=4)
    np.testing.assert_array_equal(found, expected)
    assert hookscope.load(tmp_path / "a").column("label") == [f"digit {n}" for n in range(10)]


def test_a_folder_of_image_files_is_a_data_set_too(tmp_path: Path) -> None:
    found = images(tmp_path / "a", f"hub:{DIGITS}:train", every=3)
    np.testing.assert_array_equal(found, images(tmp_path / "b", DIGITS, every=3))
    assert [row["item"] for row in entries(tmp_path / "a")] == [0, 3, 6, 9]


def test_texts_of_a_data_set_give_the_rows_of_their_file(tmp_path: Path) -> None:
    folder, (a, b) = write_texts(tmp_path / "set"), (tmp_path / "a", tmp_path / "b")
    found = texts(a, f"hub:{folder}:test:body")
    np.testing.assert_array_equal(found, texts(b, f"{folder / 'test.jsonl'}:body"))
    kept = ("number", "text", "sha256", "row")
    assert [[row[k] for k in kept] for row in entries(a)] == [
        [row[k] for k in kept] for row in entries(b)
    ]
    assert entries(a)[2]["path"] == f"hub:{folder}:test:3"


def test_a_run_is_resumed_at_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = write_images(tmp_path / "set", digits())
    options: dict[str, Any] = {"batch": 2, "shard_size": 1}

    def stop(state: Any) -> None:
        if state.done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        images(tmp_path / "a", spec, progress=stop, **options)
    read: list[int] = []
    whole = HubStream.__getitem__
    monkeypatch.setattr(HubStream, "__getitem__", lambda self, n: read.append(n) or whole(self, n))
    found = images(tmp_path / "a", spec, resume=True, **options)
    first, *others = sorted(set(read) - {0})  # which is read for the shapes
    assert first >= 2 and others == list(range(first + 1, 10))
    np.testing.assert_array_equal(found, images(tmp_path / "whole", spec, **options))


def test_rows_of_a_stream_are_read_in_any_order(tmp_path: Path) -> None:
    source = hub_source(f"hub:{write_texts(tmp_path / 'set')}:train")
    assert source is not None
    stream, order = HubStream(source), [2, 0, 0, 3, 1, 2]
    assert [stream[n]["number"] for n in order] == order
    assert len(stream) == 4


def test_another_content_is_not_resumed(tmp_path: Path) -> None:
    spec = write_images(tmp_path / "set", digits())
    images(tmp_path / "a", spec)
    os.utime(tmp_path / "set" / "train.parquet", (1, 1))
    with pytest.raises(hookscope.HookscopeError, match="resume"):
        images(tmp_path / "a", spec, resume=True)


def test_an_image_that_cannot_be_read_is_one_row(tmp_path: Path) -> None:
    contents = digits()
    contents[3], contents[5] = b"not an image", None
    spec = write_images(tmp_path / "set", contents)
    with pytest.raises(InputError, match=r"Item 3 .*train:4"):
        images(tmp_path / "a", spec)
    bad = np.isnan(images(tmp_path / "b", spec, skip_bad=True)).all(axis=1)
    assert np.flatnonzero(bad).tolist() == [3, 5]


WRONG = [
    ("hub:{}", "hub:NAME:SPLIT"),
    ("hub:{}:tran", "train, test"),
    ("hub:{}:train:bdy", "body"),
    ("hub:{}:train:number", "body, text, number"),
    ("hub:{}/missing:train", "missing"),
    ("hub:no/such-set:train", "no/such-set"),
    (["hub:a:train", str(DIGITS)], "only input"),
    ("memory://lab/none.parquet", "none.parquet"),
    ("memory://lab/texts.csv", "Parquet"),
    ("nosuch://lab/texts.parquet", "address"),
]


@pytest.mark.parametrize(("spec", "subject"), WRONG)
def test_a_spec_that_names_no_rows_is_refused(tmp_path: Path, spec: Any, subject: str) -> None:
    folder = write_texts(tmp_path / "set")
    spec = spec.format(folder) if isinstance(spec, str) else spec
    with pytest.raises(InputError, match=subject):
        texts(tmp_path / "a", spec)
    assert not (tmp_path / "a").exists()


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookscope.files.hub_source.find_spec", lambda name: None)
    with pytest.raises(EnvironmentFault, match=r"hookscope\[datasets\]"):
        hookscope.extract(MODEL, input="hub:mnist:train", layers="fc")


@pytest.mark.parametrize("address", ["memory://lab/texts.parquet", "file://{}/texts.parquet"])
def test_a_table_at_an_address_is_read_as_a_file(tmp_path: Path, address: str) -> None:
    import fsspec
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"body": WORDS, "number": range(4)})
    path, address = tmp_path / "texts.parquet", address.format(tmp_path)
    parquet.write_table(table, path, row_group_size=3)
    if address.startswith("memory"):
        with fsspec.open(address, "wb") as file:
            file.write(path.read_bytes())
    found = texts(tmp_path / "a", f"{address}:body")
    np.testing.assert_array_equal(found, texts(tmp_path / "b", f"{path}:body"))
    assert entries(tmp_path / "a")[3]["path"] == f"{address}:4"
    texts(tmp_path / "a", f"{address}:body", resume=True)
