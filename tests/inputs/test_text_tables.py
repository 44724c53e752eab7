"""Tables of texts: each text with its other columns, compared with the readers of the formats."""

from __future__ import annotations

import csv
import json
import tracemalloc
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pytest
from pyarrow import parquet

from hookscope.errors import InputError
from hookscope.files.text_sources import TextSource, text_sources
from hookscope.inputs.text_formats import open_texts
from hookscope.inputs.text_tables import TextTable

ROWS = [
    {"id": 10**17 + n, "text": f"text {n}", "stars": n / 4, "good": n % 2 == 0, "by": f"Zoë, {n}"}
    for n in range(25)
]
OTHERS = ["id", "stars", "good", "by"]


def opened(spec: Path | str) -> TextTable:
    sources = text_sources(str(spec))
    assert sources is not None
    [source] = sources
    return open_texts(source)


def all_columns(table: TextTable) -> list[dict[str, Any]]:
    return [table.read(index).columns for index in range(len(table))]


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_csv(path: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), **options)
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=7)
    return path


def write_dataset(path: Path, rows: list[dict[str, Any]]) -> Path:
    datasets.Dataset.from_list(rows).save_to_disk(path)
    return path


WRITERS = {".jsonl": write_lines, ".parquet": write_parquet, "": write_dataset}


@pytest.mark.parametrize("suffix", WRITERS)
def test_numbers_booleans_and_texts_keep_their_type(tmp_path: Path, suffix: str) -> None:
    table = opened(WRITERS[suffix](tmp_path / f"a{suffix}", ROWS))
    assert list(table.columns) == OTHERS
    for index in (3, 24, 0, 8, 7):
        found = table.read(index)
        assert found.text == ROWS[index]["text"]
        expected = {name: ROWS[index][name] for name in OTHERS}
        assert found.columns == expected
        assert [type(found.columns[name]) for name in OTHERS] == [int, float, bool, str]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_values_are_texts_as_csv_reads_them(tmp_path: Path, delimiter: str) -> None:
    odd = [
        {"n": 1, "text": 'a "quoted"\r\nline', "by": " spaces "},
        {"n": "", "text": "b;\t,|", "by": "two\nlines"},
        {"n": "é", "text": "c", "by": ""},
    ]
    path = write_csv(tmp_path / "a.csv", odd, delimiter=delimiter)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes() + b"\r\n\r\n")
    table = opened(path)
    with path.open(encoding="utf-8-sig", newline="") as file:
        expected = list(csv.DictReader(file, delimiter=delimiter))
    assert len(table) == len(expected) == 3
    for index in (2, 0, 1):
        found = table.read(index)
        assert {"text": found.text, **found.columns} == expected[index]


# A file, its columns, and those of each row.
COLUMNS = {
    "empty lines, old line ends": (
        "a.csv",
        "text,label\r\rone,1\r\r\rtwo,2\r",
        ["label"],
        [{"label": "1"}, {"label": "2"}],
    ),
    "the index that pandas writes": (
        "a.csv",
        ",text,label\n0,a,x\n1,b,y\n",
        ["label"],
        [{"label": "x"}, {"label": "y"}],
    ),
    "missing fields, nulls, only a text": (
        "a.jsonl",
        '{"text": "a", "label": 1}\n{"text": "b"}\n'
        '{"late": "x", "text": "c", "label": null}\n"d"\n',
        ["label", "late"],
        [{"label": 1}, {}, {"late": "x"}, {}],
    ),
    "nested in one line": (
        "a.jsonl",
        '{"text": "a", "tags": "x"}\n{"text": "b", "tags": ["x"]}\n',
        [],
        [{}, {}],
    ),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_odd_files(tmp_path: Path, name: str) -> None:
    file, text, columns, rows = COLUMNS[name]
    (tmp_path / file).write_bytes(text.encode())
    table = opened(tmp_path / file)
    assert list(table.columns) == columns
    assert all_columns(table) == rows


def test_a_field_that_no_line_has_gets_a_near_name(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"body": "a"}, {"body": "b", "id": 3}])
    with pytest.raises(InputError, match="'boddy'") as raised:
        open_texts(TextSource(str(path), "jsonl", "boddy"))
    assert "body" in str(raised.value.hint) and "id" in str(raised.value.hint)


@pytest.mark.parametrize("suffix", WRITERS)
def test_nested_and_reserved_columns_are_left_out_with_one_note(
    tmp_path: Path, suffix: str
) -> None:
    row = {"text": "a", "label": "x", "tags": ["y"], "meta": {"z": 1}, "sha256": "0", "tokens": 3}
    table = opened(WRITERS[suffix](tmp_path / f"a{suffix}", [row, row]))
    assert list(table.columns) == ["label"] and all_columns(table) == [{"label": "x"}] * 2
    note = table.left_out
    assert all(name in note for name in ("tags", "meta", "sha256", "tokens"))
    assert "label" not in note


def test_numbers_that_are_not_finite_are_missing(tmp_path: Path) -> None:
    rows = [{"text": "a", "n": float("nan")}, {"text": "b", "n": 2.5}, {"text": "c", "n": -1e999}]
    for suffix, write in WRITERS.items():
        table = opened(write(tmp_path / f"a{suffix}", rows))
        assert all_columns(table) == [{}, {"n": 2.5}, {}]


def test_a_class_label_is_its_name(tmp_path: Path) -> None:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    )
    columns = {"text": list("abcd"), "label": [1, 0, -1, None]}
    data = datasets.Dataset.from_dict(columns, features=features).with_format("numpy")
    data.save_to_disk(tmp_path / "reviews")
    table = opened(tmp_path / "reviews")
    # -1 stands for no label, such as in the test splits of GLUE
    assert all_columns(table) == [{"label": "pos"}, {"label": "neg"}, {}, {}]


def test_a_categorical_column_of_parquet_is_text(tmp_path: Path) -> None:
    label = pyarrow.array(["x", "y", "x"]).dictionary_encode()
    parquet.write_table(
        pyarrow.table({"text": list("abc"), "label": label}), tmp_path / "a.parquet"
    )
    assert all_columns(opened(tmp_path / "a.parquet")) == [{"label": name} for name in "xyx"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_column_that_is_twice_in_a_table_is_an_error(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    if suffix == ".csv":
        path.write_text("text,n,n\na,1,2\n")
    else:
        arrays = [pyarrow.array(["a"]), pyarrow.array([1]), pyarrow.array([2])]
        parquet.write_table(pyarrow.Table.from_arrays(arrays, ["text", "n", "n"]), path)
    with pytest.raises(InputError, match="'n'"):
        opened(path)


def test_a_field_that_is_twice_in_a_line_is_an_error_of_the_line(tmp_path: Path) -> None:
    nested = '{"text": "b", "meta": {"n": 1, "n": 2}}\n'
    (tmp_path / "a.jsonl").write_text(nested + '{"text": "a", "n": 1, "n": 2}\n')
    table = opened(tmp_path / "a.jsonl")
    assert table.read(0).text == "b"
    with pytest.raises(InputError, match=r"Line 2 .* 'n'"):
        table.read(1)


def test_columns_of_a_line_without_a_text_are_kept(tmp_path: Path) -> None:
    rows = [{"text": "", "label": 1}, {"text": None, "label": 2}]
    table = opened(write_lines(tmp_path / "a.jsonl", rows))
    assert all_columns(table) == [{"label": 1}, {"label": 2}]
    with pytest.raises(InputError, match="empty"):
        _ = table.read(0).text


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_values_are_not_held_in_memory(tmp_path: Path, suffix: str) -> None:
    rows = [{"text": f"{n}" * 50, "by": f"{n:09}" * 50} for n in range(4000)]
    path = (write_lines if suffix == ".jsonl" else write_csv)(tmp_path / f"a{suffix}", rows)
    tracemalloc.start()
    try:
        table = opened(path)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 200_000 < path.stat().st_size
    assert table.read(3999).columns == {"by": rows[3999]["by"]}
