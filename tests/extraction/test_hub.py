"""Data sets of the package datasets, from folders, and tables at addresses, against files."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hookscope
from hookscope.errors import EnvironmentFault, InputError
from hookscope.files.hub_source import hub_source
from hookscope.inputs.hub_stream import HubStream
from tests.conftest import REPO, Run

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


def write_images(folder: Path, contents: list[bytes | None]) -> Path:
    """A folder with a table of images, each with its class, in the way of a hub."""
    import datasets

    names = [f"digit {n}" for n in range(10)]
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=names)}
    images = [{"bytes": data, "path": None} if data is not None else None for data in contents]
    rows = {"image": images, "label": [n % 10 for n in range(len(contents))]}
    folder.mkdir()
    datasets.Dataset.from_dict(rows, datasets.Features(kinds)).to_parquet(folder / "train.parquet")
    return folder


def write_texts(folder: Path) -> Path:
    folder.mkdir()
    rows = [{"body": text, "text": text, "number": n} for n, text in enumerate(WORDS)]
    for split in ("train", "test"):
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text)
    return folder


def digits() -> list[bytes | None]:
    return [path.read_bytes() for path in sorted(DIGITS.iterdir()) if path.suffix == ".png"]


def rows_of(folder: Path, key: str = "fc") -> np.ndarray:
    return np.asarray(hookscope.load(folder)[key][:])


def inputs_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "inputs.jsonl").read_text().splitlines()]


def test_images_of_a_data_set_give_the_rows_of_their_files(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "set", digits())
    options: dict[str, Any] = {"layers": "fc", "batch": 4}
    hookscope.extract(MODEL, tmp_path / "a", input=f"hub:{folder}:train", **options)
    hookscope.extract(MODEL, tmp_path / "b", input=DIGITS, **options)
    np.testing.assert_array_equal(rows_of(tmp_path / "a"), rows_of(tmp_path / "b"))
    labels = hookscope.load(tmp_path / "a").column("label")
    assert list(labels) == [f"digit {n}" for n in range(10)]


def test_a_folder_of_image_files_is_a_data_set_too(tmp_path: Path) -> None:
    hookscope.extract(MODEL, tmp_path / "a", input=f"hub:{DIGITS}:train", layers="fc", every=3)
    hookscope.extract(MODEL, tmp_path / "b", input=DIGITS, layers="fc", every=3)
    np.testing.assert_array_equal(rows_of(tmp_path / "a"), rows_of(tmp_path / "b"))
    assert [row["item"] for row in inputs_of(tmp_path / "a")] == [0, 3, 6, 9]


def test_texts_of_a_data_set_give_the_rows_of_their_file(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "set")
    options: dict[str, Any] = {"layers": "model.layers.1", "reduce": "last"}
    hub, file = f"hub:{folder}:test:body", f"{folder / 'test.jsonl'}:body"
    hookscope.extract(TEXT_MODEL, tmp_path / "a", input=hub, **options)
    hookscope.extract(TEXT_MODEL, tmp_path / "b", input=file, **options)
    found, expected = (rows_of(tmp_path / name, "model.layers.1") for name in "ab")
    np.testing.assert_array_equal(found, expected)
    kept = [
        [{k: row[k] for k in ("number", "text", "sha256", "row")} for row in inputs_of(f)]
        for f in (tmp_path / "a", tmp_path / "b")
    ]
    assert kept[0] == kept[1]
    assert inputs_of(tmp_path / "a")[2]["path"] == f"hub:{folder}:test:3"


def test_a_run_is_resumed_at_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_images(tmp_path / "set", digits())
    options: dict[str, Any] = {"layers": "fc", "batch": 2, "shard_size": 1}
    spec = f"hub:{folder}:train"
    hookscope.extract(MODEL, tmp_path / "whole", input=spec, **options)

    def stop(state: Any) -> None:
        if state.done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hookscope.extract(MODEL, tmp_path / "a", input=spec, progress=stop, **options)
    read: list[int] = []
    whole = HubStream.__getitem__
    monkeypatch.setattr(HubStream, "__getitem__", lambda self, n: read.append(n) or whole(self, n))
    done = hookscope.extract(MODEL, tmp_path / "a", input=spec, resume=True, **options)
    assert done.resumed and set(read) == {0, *range(done.resumed, 10)}  # the first is for shapes
    np.testing.assert_array_equal(rows_of(tmp_path / "a"), rows_of(tmp_path / "whole"))


def test_rows_of_a_stream_are_read_in_any_order(tmp_path: Path) -> None:
    source = hub_source(f"hub:{write_texts(tmp_path / 'set')}:train")
    assert source is not None
    stream = HubStream(source)
    order = [2, 0, 0, 3, 1, 2]
    assert [stream[n]["number"] for n in order] == order
    assert len(stream) == 4


def test_another_content_is_not_resumed(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "set", digits())
    options: dict[str, Any] = {"layers": "fc", "input": f"hub:{folder}:train"}
    hookscope.extract(MODEL, tmp_path / "a", **options)
    os.utime(folder / "train.parquet", (1, 1))
    with pytest.raises(hookscope.HookscopeError, match="Cannot resume"):
        hookscope.extract(MODEL, tmp_path / "a", resume=True, **options)


def test_an_image_that_cannot_be_read_is_one_row(tmp_path: Path) -> None:
    contents = digits()
    contents[3], contents[5] = b"not an image", None
    spec = f"hub:{write_images(tmp_path / 'set', contents)}:train"
    with pytest.raises(InputError, match=r"Item 3 .*train:4"):
        hookscope.extract(MODEL, tmp_path / "a", input=spec, layers="fc")
    hookscope.extract(MODEL, tmp_path / "b", input=spec, layers="fc", skip_bad=True)
    bad = np.isnan(rows_of(tmp_path / "b")).all(axis=1)
    assert np.flatnonzero(bad).tolist() == [3, 5]


@pytest.mark.parametrize(
    ("spec", "message", "hint"),
    [
        ("hub:{}", "does not name a split", "hub:NAME:SPLIT"),
        ("hub:{}:tran", "has no split 'tran'", "Did you mean train? It has train, test."),
        ("hub:{}:train:bdy", "has no column 'bdy'", "Did you mean body?"),
        ("hub:{}:train:number", "'number' .* has neither images nor texts", "body, text, number"),
        ("hub:{}/missing:train", "cannot be read: ", "Check the name"),
        ("hub:no/such-set:train", "cannot be read: ", "Check the name"),
    ],
)
def test_a_wrong_spec_is_a_sentence(tmp_path: Path, spec: str, message: str, hint: str) -> None:
    folder = write_texts(tmp_path / "set")
    with pytest.raises(InputError, match=message) as caught:
        hookscope.extract(TEXT_MODEL, tmp_path / "a", input=spec.format(folder), layers="lm_head")
    assert hint in caught.value.hint and not (tmp_path / "a").exists()


def test_a_data_set_is_the_only_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be the only input"):
        hookscope.extract(MODEL, tmp_path / "a", input=["hub:a:train", str(DIGITS)], layers="fc")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookscope.files.hub_source.find_spec", lambda name: None)
    with pytest.raises(EnvironmentFault, match=r'pip install "hookscope\[datasets\]"'):
        hookscope.extract(MODEL, input="hub:mnist:train", layers="fc")


def test_only_extract_reads_a_data_set(run: Run) -> None:
    done = run("capture", "resnet18", "-i", "hub:imdb:train")
    assert done.rc == 2 and "which only 'hookscope extract' reads" in done.stderr


@pytest.mark.slow
def test_the_command_streams_a_data_set(run: Run, tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "set")
    command = ("extract", TEXT_MODEL, "--layer", "model.layers.1", "--reduce", "last", "-i")
    done = run(*command, f"hub:{folder}:train", "-o", "a/")
    assert done.rc == 0, done.stderr
    assert "input: counted 4 rows" in done.stderr and "4 rows of 1 tensor" in done.stdout
    done = run(*command, f"hub:{folder}:valid", "-o", "b/")
    assert done.rc == 2 and re.search(r"has no split 'valid'.\nIt has train, test.", done.stderr)


# Tables at addresses.


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
    options: dict[str, Any] = {"layers": "model.layers.1", "reduce": "last"}
    hookscope.extract(TEXT_MODEL, tmp_path / "a", input=f"{address}:body", **options)
    hookscope.extract(TEXT_MODEL, tmp_path / "b", input=f"{path}:body", **options)
    found, expected = (rows_of(tmp_path / name, "model.layers.1") for name in "ab")
    np.testing.assert_array_equal(found, expected)
    assert [row["path"] for row in inputs_of(tmp_path / "a")][3] == f"{address}:4"
    done = hookscope.extract(
        TEXT_MODEL, tmp_path / "a", input=f"{address}:body", resume=True, **options
    )
    assert done.resumed == 4


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("memory://lab/none.parquet", "cannot be read: "),
        ("memory://lab/texts.csv", "tables of Parquet alone"),
        ("nosuch://lab/texts.parquet", "is not a valid address"),
    ],
)
def test_an_address_that_cannot_be_read_is_a_sentence(
    tmp_path: Path, address: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        hookscope.extract(TEXT_MODEL, tmp_path / "a", input=address, layers="lm_head")
