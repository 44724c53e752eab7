"""The numbers of a run in CSV, Parquet and TensorBoard's files, read by other programs."""

from __future__ import annotations

import csv
import json
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hookscope
from hookscope.errors import LayerError, RequestError, StoreError
from hookscope.stores.runs.run_export import _masked_crc, write_scalars
from hookscope.stores.runs.series import Series
from tests.conftest import Run
from tests.stores.runs.conftest import LOSS, write_run

RMS = Series("Net", "fc/output", "rms")
NORM = Series("Net", "fc/weight.grad", "norm")
ODD = Series("Nät", 'a,"b/output', "max")
STEPS = [(n, {LOSS: 1 / (n + 1)}) for n in range(5)]
LAYERS = [
    (0, {RMS: 0.1, NORM: 1e-30, ODD: math.nan}),
    (2, {RMS: math.inf, NORM: -math.inf}),
    (4, {RMS: 16777217.0, ODD: 0.0}),
]
# Each value as in the rows, in the order of the files.
EXPECTED = [
    (table, step, step / 10, *series, np.float32(value))
    for table, rows in (("steps", STEPS), ("layers", LAYERS))
    for step, values in rows
    for series, value in values.items()
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "train-1", STEPS, LAYERS)


def check_equal(found: list[tuple], expected: list[tuple] = EXPECTED) -> None:
    assert [row[:-1] for row in found] == [row[:-1] for row in expected]
    values = [np.array([row[-1] for row in rows], np.float32) for rows in (found, expected)]
    np.testing.assert_array_equal(*values)


def read_csv(path: Path) -> list[tuple]:
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["table", "step", "seconds", "model", "key", "measure", "value"]
    return [(row[0], int(row[1]), float(row[2]), *row[3:6], np.float32(row[6])) for row in rows]


def test_csv_has_each_value_exactly(folder: Path, tmp_path: Path) -> None:
    done = hookscope.export(folder, tmp_path / "a.csv")
    check_equal(read_csv(done.path))
    assert (done.series, done.values, done.bytes) == (4, 12, done.path.stat().st_size)


def test_parquet_has_each_value_exactly(folder: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(hookscope.export(folder, tmp_path / "a.parquet").path)
    check_equal([tuple(row.values()) for row in table.to_pylist()])
    assert str(table.schema.field("value").type) == "float"


def test_tensorboard_reads_each_value_exactly(folder: Path, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    hookscope.export(folder, tmp_path / "board")
    events = accumulator.EventAccumulator(str(tmp_path / "board"), {"scalars": 0})
    events.Reload()
    tags = {
        "loss.value": LOSS,
        "output.rms/Net/fc": RMS,
        "weight.grad.norm/Net/fc": NORM,
        'output.max/Nät/a,"b': ODD,
    }
    assert set(events.Tags()["scalars"]) == set(tags)
    for tag, series in tags.items():
        found = events.Scalars(tag)
        rows = [row for row in EXPECTED if row[3:6] == series]
        assert [event.step for event in found] == [row[1] for row in rows]
        assert [event.wall_time for event in found] == [1767323045 + row[2] for row in rows]
        np.testing.assert_array_equal(
            np.array([event.value for event in found], np.float32), [row[6] for row in rows]
        )


def test_the_checksum_is_crc_32c() -> None:
    """Of the test vectors of RFC 3720, section B.4."""
    for data, crc in ((bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)):
        masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
        assert _masked_crc(data) == struct.pack("<I", masked)
    assert zlib.crc32(bytes(32)) != 0x8A9136AA


@settings(max_examples=30)
@given(
    st.integers(0, 2**40),
    st.dictionaries(st.text(max_size=300), st.floats(width=32), max_size=5),
)
def test_an_event_is_what_the_package_of_tensorboard_parses(
    tmp_path_factory, step: int, scalars: dict[str, float]
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event

    path = tmp_path_factory.mktemp("events") / "a"
    with path.open("wb") as file:
        write_scalars(file, 1.5, step, [(tag.encode(), value) for tag, value in scalars.items()])
    event = Event.FromString(path.read_bytes()[12:-4])
    assert (event.wall_time, event.step) == (1.5, step)
    assert [value.tag for value in event.summary.value] == list(scalars)
    np.testing.assert_array_equal(
        [value.simple_value for value in event.summary.value], list(scalars.values())
    )


def test_layers_narrow_the_export(folder: Path, tmp_path: Path) -> None:
    for layers, names in (
        ("fc", {RMS, NORM}),
        ("fc/weight.grad", {NORM}),
        (["*", "!fc"], {ODD, LOSS}),
        ("loss", {LOSS}),
    ):
        done = hookscope.export(folder, tmp_path / "a.csv", layers=layers)
        rows = read_csv(done.path)
        assert {Series(*row[3:6]) for row in rows} == names
        check_equal(rows, [row for row in EXPECTED if Series(*row[3:6]) in names])
    with pytest.raises(LayerError, match="'fd' matches nothing"):
        hookscope.export(folder, tmp_path / "a.csv", layers="fd")


def test_the_same_export_twice_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    for name in ("a.csv", "a.parquet", "board"):
        first = hookscope.export(folder, tmp_path / name)
        content = first.path.read_bytes()
        assert hookscope.export(folder, tmp_path / name).path == first.path
        assert first.path.read_bytes() == content


def test_all_ranks_are_exported_as_one(tmp_path: Path) -> None:
    for rank, loss in enumerate((1.0, 3.0)):
        write_run(tmp_path / "run" / f"rank{rank}", [(0, {LOSS: loss})], rank=rank)
    done = hookscope.export(tmp_path / "run", tmp_path / "a.csv")
    check_equal(read_csv(done.path), [("steps", 0, 0.0, *LOSS, 2.0)])


def test_what_cannot_be_written_is_an_error_with_a_repair(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"a\.npy") as caught:
        hookscope.export(folder, tmp_path / "a.npy")
    assert ".csv" in caught.value.hint and "TensorBoard" in caught.value.hint
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="board"):
        hookscope.export(folder, tmp_path / "file" / "board")


def test_the_command_writes_the_file_and_says_so(run: Run, folder: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    done = run("export", folder)
    assert (done.rc, done.stdout) == (0, "12 values of 4 series.\n"), done.stderr
    assert "wrote train-1.export.csv" in done.stderr
    check_equal(read_csv(work / "train-1.export.csv"))
    again = run("export", folder)
    assert again.rc == 2 and "--force" in again.stderr
    assert run("export", folder, "--force").rc == 0
    done = run("export", folder, "-o", "board/", "--layer", "fc", "--json")
    document = json.loads(done.stdout)
    assert (document["series"], document["values"]) == (2, 5)
    assert (work / document["file"]).stat().st_size == document["bytes"]
