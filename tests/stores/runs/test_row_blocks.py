"""Rows in files come back bit for bit, and a damaged file is named in a sentence."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import hookscope
from hookscope.errors import ResultsFileError
from hookscope.stores.runs.row_blocks import (
    BlockFile,
    RowBlock,
    block_files,
    concatenate,
    read_blocks,
)
from tests.conftest import REPO

floats = st.floats(width=32, allow_nan=True, allow_infinity=True)
rows = st.lists(st.dictionaries(st.integers(0, 20), floats, min_size=1), min_size=1, max_size=9)


def block_of(values: list[dict[int, float]]) -> RowBlock:
    rows = enumerate(values)
    return concatenate(
        [RowBlock.of_rows([n], [n / 7], list(row), [list(row.values())]) for n, row in rows]
    )


def plain(block: RowBlock) -> list[dict[int, bytes]]:
    """The bits of each value that is present, by the number of its series."""
    return [
        {
            int(number): block.values[row, column].tobytes()
            for column, number in enumerate(block.series)
            if block.present[row, column]
        }
        for row in range(len(block))
    ]


@given(rows)
def test_rows_come_back_bit_for_bit(tmp_path_factory, values: list[dict[int, float]]) -> None:
    file = BlockFile.named(tmp_path_factory.mktemp("run"), "steps", 0, len(values) - 1)
    file.write(block_of(values))
    block = file.read()
    assert plain(block) == [{n: np.float32(v).tobytes() for n, v in row.items()} for row in values]
    assert block.steps.tolist() == list(range(len(values)))
    assert block.times.tolist() == [n / 7 for n in range(len(values))]


def test_a_value_beyond_float32_becomes_infinite() -> None:
    block = RowBlock.of_rows([0], [0.0], [0, 1, 2], [[1e300, -1e300, 3e38]])
    assert block.values.tolist() == [[np.inf, -np.inf, np.float32(3e38)]]


def test_bits_of_missing_values_are_left_out_where_all_are_present(tmp_path: Path) -> None:
    file = BlockFile.named(tmp_path, "steps", 0, 1)
    file.write(block_of([{0: 1.0}, {0: 2.0}]))
    assert "present" not in load_file(file.path)
    file.write(block_of([{0: 1.0}, {1: 2.0}]))
    assert load_file(file.path)["present"].tolist() == [[0b10000000], [0b01000000]]


def test_a_file_within_a_merged_one_does_not_count(tmp_path: Path) -> None:
    values = [{0: float(n)} for n in range(6)]
    for first, last in ((0, 1), (2, 3), (0, 3), (4, 5)):
        BlockFile.named(tmp_path, "steps", first, last).write(block_of(values[first : last + 1]))
    assert [(file.first, file.last) for file in block_files(tmp_path, "steps")] == [(0, 3), (4, 5)]
    read = [float(v) for block in read_blocks(tmp_path, "steps") for v in block.values[:, 0]]
    assert read == [0, 1, 2, 3, 4, 5]


def test_rows_that_are_merged_while_they_are_read_come_once(tmp_path: Path) -> None:
    values = [{0: float(n)} for n in range(4)]
    parts = [BlockFile.named(tmp_path, "steps", n, n) for n in range(4)]
    for n, file in enumerate(parts):
        file.write(block_of(values[n : n + 1]))
    blocks = read_blocks(tmp_path, "steps")
    read = [float(next(blocks).values[0, 0])]
    BlockFile.named(tmp_path, "steps", 0, 3).write(block_of(values))
    for file in parts:
        file.path.unlink()
    read += [float(value) for block in blocks for value in block.values[:, 0]]
    assert read == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "array", "problem"),
    [
        ("step", np.zeros(3, np.int64), "shapes"),
        ("step", np.zeros(2, np.float32), "step has the dtype float32"),
        ("values", np.zeros((2, 3), np.float32), "shapes"),
        ("values", np.zeros((3, 1), np.float32), "shapes"),
        ("time", np.zeros(1, np.float64), "shapes"),
        ("series", np.array([-1], np.int32), "negative"),
        ("series", np.zeros((1, 1), np.int32), "shapes"),
        ("present", np.zeros((1, 1), np.uint8), "shapes"),
        ("present", np.zeros((2, 1), np.float32), "damaged"),
        ("present", np.zeros(2, np.uint8), "damaged"),
        ("step", None, "step"),
    ],
)
def test_wrong_tensors_are_damage(tmp_path: Path, name: str, array, problem: str) -> None:
    file = BlockFile.named(tmp_path, "steps", 0, 1)
    file.write(block_of([{0: 1.0}, {0: 2.0}]))
    tensors = load_file(file.path)
    if array is None:
        del tensors[name]
    else:
        tensors[name] = array
    save_file(tensors, file.path)
    with pytest.raises(ResultsFileError, match=re.escape(problem)) as caught:
        file.read()
    assert str(file.path) in caught.value.message and "Remove it" in caught.value.hint


@pytest.mark.parametrize("table", ["steps", "layers"])
def test_a_damaged_step_is_named_by_the_report(tmp_path: Path, table: str) -> None:
    folder = shutil.copytree(f"{REPO}/sample_models/run", tmp_path / "run")
    [path] = folder.glob(f"{table}-*.safetensors")
    tensors = {name: values.copy() for name, values in load_file(path).items()}
    tensors["step"][len(tensors["step"]) // 2] = 1 << 40
    save_file(tensors, path)
    with pytest.raises(ResultsFileError, match=path.name):
        hookscope.report(folder)
