"""Reading features: arrays on disk behave like arrays in memory."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.utils.data import DataLoader, Dataset

import hookscope
from hookscope.errors import RequestError, ResultsFileError, StoreError
from hookscope.stores.features.folder import write_json
from hookscope.stores.features.location import parse_location
from tests.test_architecture import heavy_after

from .handwritten_features import ramp, write_features

SHAPE = (7, 3, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven rows in shards of three; the last layer has two calls."""
    tensors = {
        "conv/output": ramp(*SHAPE),
        "bf/output": ramp(7, 4, dtype=torch.bfloat16),
        "f8/output": ramp(7, 2, dtype=torch.float8_e4m3fn),
        "half/output": ramp(7, 5, dtype=torch.float16),
        "ids/output": ramp(7, dtype=torch.int64),
        "flags/output": ramp(7, 2) > 0,
        "fc/output": ramp(7, 3),
        "fc:2/output": ramp(7, 3) + 0.5,
    }
    return write_features(tmp_path_factory.mktemp("a") / "features", tensors, 3)


def test_keys_rows_and_shapes_are_told_without_reading_a_shard(folder: Path, tmp_path) -> None:
    features = hookscope.load(folder)
    assert (len(features), features.rows) == (7, 7)
    assert features.keys[0] == "conv/output" and list(features) == list(features.keys)
    assert "conv/output" in features and "conv" not in features
    rows = features["conv"]
    assert (rows.shape, rows.dtype, len(rows), rows.ndim, rows.nbytes) == (SHAPE, "f4", 7, 3, 168)
    assert repr(rows) == "<Rows of conv/output: 7x3x2, float32>"
    assert repr(features).startswith(f"<Features in {folder}: 7 rows of conv/output, bf/output")


def test_a_layer_or_a_key_names_its_rows(folder: Path) -> None:
    features = hookscope.load(folder)
    assert features["conv"].key == features["conv/output"].key == "conv/output"
    assert features["fc:2"].key == "fc:2/output"
    with pytest.raises(RequestError, match=r"'cnv' matches nothing.*\nDid you mean conv"):
        features["cnv"]
    with pytest.raises(RequestError, match=r"'fc\*' matches 2 keys.*\nName one: fc/output, fc:"):
        features["fc*"]
    with pytest.raises(RequestError, match="conv/output is followed by a slice"):
        features["conv[0]"]


REST = st.just(...)
INDICES = st.one_of(
    hnp.basic_indices(SHAPE, allow_newaxis=True, max_dims=6),
    hnp.integer_array_indices(SHAPE),
    hnp.arrays(bool, SHAPE[0]),
    hnp.arrays(bool, SHAPE[:2]),
    hnp.arrays(bool, SHAPE),
    st.tuples(hnp.arrays(bool, SHAPE[0]), st.slices(3), st.integers(-2, 1)),
    st.tuples(st.slices(7), st.lists(st.integers(-3, 2), max_size=4)),
    st.tuples(st.lists(st.integers(-7, 6), max_size=9), REST, st.integers(-2, 1)),
    st.tuples(
        st.slices(7), st.lists(st.integers(-3, 2), min_size=2, max_size=2), REST, st.just([0])
    ),
    st.lists(st.integers(-9, 8), max_size=5),
    st.tuples(st.integers(-9, 8), st.slices(3)),
    st.tuples(st.booleans(), st.slices(7)),
    st.sampled_from([(), None, ..., (..., ...), (0, 0, 0), (0, 0, 0, 0), 1.5, "a", np.int64(2)]),
    st.sampled_from([np.array(3), slice(None, None, 0), [[0, 1], [2, 3]], np.array([], float), []]),
)


@given(INDICES)
def test_any_index_gives_what_it_gives_of_an_array_in_memory(folder: Path, index: object) -> None:
    whole, rows = ramp(*SHAPE).numpy(), hookscope.load(folder)["conv"]
    try:
        wanted = whole[index]
    except (IndexError, ValueError, TypeError) as error:
        with pytest.raises(type(error)):
            rows[index]
        return
    found = rows[index]
    assert (type(found), found.dtype, found.shape) == (type(wanted), wanted.dtype, wanted.shape)
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("name", ["bf", "f8", "half", "ids", "flags"])
def test_dtypes_that_numpy_has_not_keep_their_values(folder: Path, name: str) -> None:
    wanted = {
        "bf": ramp(7, 4, dtype=torch.bfloat16),
        "f8": ramp(7, 2, dtype=torch.float8_e4m3fn),
        "half": ramp(7, 5, dtype=torch.float16),
        "ids": ramp(7, dtype=torch.int64),
        "flags": ramp(7, 2) > 0,
    }[name]
    rows = hookscope.load(folder)[name]
    plain = wanted.float().numpy() if name in ("bf", "f8") else wanted.numpy()
    assert rows.dtype == plain.dtype == rows[2].dtype
    assert np.array_equal(rows[:], plain)
    tensors = rows.torch()
    assert (tensors.dtype, tensors.shape, len(tensors)) == (wanted.dtype, wanted.shape, 7)
    for index in ([5, 0, 3], slice(None, None, -2), 4, (..., -1), slice(0, 0)):
        stepped = isinstance(index, slice) and index.step
        expected = wanted[[6, 4, 2, 0]] if stepped else wanted[index]
        found = tensors[index]
        assert found.dtype == wanted.dtype and found.shape == expected.shape
        assert torch.equal(found.float(), expected.float())


def test_tensors_may_be_written_to(folder: Path) -> None:
    rows = hookscope.load(folder)["conv"]
    rows.torch()[2:4].zero_()
    rows[2:4][:] = 0
    assert np.array_equal(rows[:], ramp(*SHAPE).numpy())


def test_numpy_takes_all_rows_and_a_loop_one_after_the_other(folder: Path) -> None:
    rows = hookscope.load(folder)["conv"]
    assert np.array_equal(np.asarray(rows), ramp(*SHAPE).numpy())
    assert np.asarray(rows, np.float64).dtype == np.float64
    assert [row.sum() for row in rows] == [row.sum() for row in ramp(*SHAPE).numpy()]
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(rows, copy=False)


def test_int8_is_multiplied_by_the_scale_of_its_row(tmp_path: Path) -> None:
    values = torch.randint(-127, 128, (5, 3, 2), dtype=torch.int8)
    scale = torch.tensor([0.5, 1e-3, float("nan"), 0.0, 7.0])
    key = "conv/output"
    folder = write_features(tmp_path / "f", {key: values}, 2, scales={key: scale})
    features = hookscope.load(folder)
    wanted = values.numpy() * scale.numpy()[:, None, None]
    assert features.keys == (key,) and features["conv"].dtype == np.float32
    for index in (
        slice(None),
        [4, 0],
        (slice(None), 1),
        (..., 0),
        3,
        np.array([1, 0, 1, 1, 0]) > 0,
    ):
        assert np.array_equal(features["conv"][index], wanted[index], equal_nan=True)
        assert np.array_equal(features["conv"].raw[index], values.numpy()[index])
    assert features["conv"].torch()[1].dtype == torch.float32
    assert pickle.loads(pickle.dumps(features["conv"].raw)).dtype == np.int8


def test_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    folder = write_features(tmp_path / "f", {"fc/output": ramp(6, 4)}, 2)
    (folder / "rows-00000002.safetensors").unlink()
    with (folder / "rows-00000004.safetensors").open("ab") as file:
        file.write(b"more")
    rows = hookscope.load(folder)["fc"]
    assert np.array_equal(rows[:2], ramp(6, 4).numpy()[:2])
    with pytest.raises(StoreError, match=r"rows-00000002.safetensors in .* is missing.\n.*verify"):
        rows[1:3]
    with pytest.raises(
        StoreError, match=r"rows-00000004.safetensors in .* has \d+ bytes instead of \d+"
    ):
        rows[-1]


def test_rows_tell_where_they_came_from(tmp_path: Path) -> None:
    bad = {1: "'photos/1é.jpg' is no image."}
    folder = write_features(tmp_path / "f", {"fc/output": ramp(5, 2)}, 2, skipped=bad)
    inputs = hookscope.load(folder).inputs
    assert len(inputs) == 5
    assert [entry["row"] for entry in inputs] == [inputs[i]["row"] for i in range(5)]
    assert inputs[-1]["path"] == "photos/4é.jpg" == inputs.paths[4]
    assert [entry["row"] for entry in inputs[1::2]] == [1, 3]
    assert inputs.skipped == bad
    with pytest.raises(IndexError):
        inputs[5]
    (folder / "inputs.jsonl").write_text('{"row": 0}\n')
    with pytest.raises(StoreError, match="it has 1 lines for 5 rows"):
        hookscope.load(folder).inputs[0]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_dataloader_gives_rows_and_paths_in_its_order(folder: Path, workers: int) -> None:
    dataset = hookscope.load(folder).dataset("conv", with_path=True)
    assert isinstance(dataset, Dataset) and len(dataset) == 7
    order = [6, 0, 3, 3, 1]
    method = "spawn" if workers else None
    loader = DataLoader(
        dataset, 2, sampler=order, num_workers=workers, multiprocessing_context=method
    )
    batches = list(loader)
    assert torch.equal(torch.cat([rows for rows, _ in batches]), ramp(*SHAPE)[order])
    assert [path for _, paths in batches for path in paths] == [f"photos/{i}é.jpg" for i in order]
    plain = hookscope.load(folder).dataset("bf")
    assert plain[2].dtype == torch.bfloat16
    assert torch.equal(plain[2], ramp(7, 4)[2].bfloat16())
    assert [t.tolist() for t in plain.__getitems__([4, 1])] == ramp(7, 4)[[4, 1]].tolist()


def test_opened_features_travel_to_other_processes(folder: Path) -> None:
    features = hookscope.load(folder)
    rows = features["conv"]
    rows[:]
    for copy in (pickle.loads(pickle.dumps(features))["conv"], pickle.loads(pickle.dumps(rows))):
        assert np.array_equal(copy[2:6], ramp(*SHAPE).numpy()[2:6])
    assert pickle.loads(pickle.dumps(features.inputs))[3]["row"] == 3


def test_an_address_is_read_like_a_folder(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    folder = write_features(tmp_path / "f", {"fc/output": ramp(7, 4, 3)}, 3)
    memory = fsspec.filesystem("memory")
    memory.put(str(folder), "/lab/f", recursive=True)
    for address in ("memory://lab/f", f"file://{folder}"):
        features = hookscope.load(address)
        for index in (slice(None), [6, 1, 2], (slice(None, None, -2), 1), (4, ..., 0), slice(0, 0)):
            assert np.array_equal(features["fc"][index], ramp(7, 4, 3).numpy()[index])
        assert features.inputs[2]["row"] == 2
    with pytest.raises(RequestError, match="contains no features"):
        hookscope.load("memory://lab/none")


def test_what_is_no_finished_folder_says_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="does not exist"):
        hookscope.load(f"{tmp_path}/none/")
    with pytest.raises(ResultsFileError, match="none"):
        hookscope.load(tmp_path / "none")
    with pytest.raises(RequestError, match=r"contains no features: it has no manifest\.json"):
        hookscope.load(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsFileError, match="file"):
        hookscope.load(tmp_path / "file")
    (tmp_path / "manifest.json").write_text('{"name": "a web page"}')
    with pytest.raises(RequestError, match=r"manifest\.json describes none"):
        hookscope.load(tmp_path)
    folder = write_features(tmp_path / "f", {"fc/output": ramp(4, 2)}, 2)
    document = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(document | {"schema": 3}))
    with pytest.raises(StoreError, match="schema 3"):
        hookscope.load(folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(StoreError, match=r"Cannot read manifest.json"):
        hookscope.load(folder)


def test_an_unfinished_folder_says_how_to_finish_it(tmp_path: Path) -> None:
    folder = write_features(tmp_path / "f", {"fc/output": ramp(5, 2)}, 2)
    document = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").unlink()
    write_json(parse_location(folder), ".parts/plan.json", {"rows": 5})
    write_json(
        parse_location(folder), ".parts/00000000.json", {**document["shards"][0], "inputs": []}
    )
    with pytest.raises(StoreError, match=r"incomplete: 2 of 5 rows are finished.\n.* --resume"):
        hookscope.load(folder)


@pytest.mark.slow
def test_reading_with_numpy_needs_no_torch(folder: Path) -> None:
    code = f"import hookscope; hookscope.load({str(folder)!r})['conv'][3:5]"
    assert "torch" not in heavy_after(code)


def test_what_a_run_writes_is_read_back(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (photos / "03.jpg").write_bytes(b"no image")
    model = f"{tmp_path}/small.py:Small"
    more = {"batch": 4, "shard_size": 1, "workers": 0, "skip_bad": True}
    hookscope.extract(model, out, layers=["relu", "head"], input=str(photos), **more)
    features = hookscope.load(out)
    assert features.keys == ("relu/output", "relu:2/output", "head/output")
    files = sorted(str(path) for path in photos.iterdir() if path.suffix != ".txt")
    assert features.inputs.paths == files
    assert list(features.inputs.skipped) == [3]
    assert np.isnan(features["head"][3]).all()
    shot = hookscope.capture(model, layers=["relu", "head"], input=files[4:8])
    assert torch.equal(features["relu:2"].torch()[4:8], shot["relu:2/output"])
    assert re.match(r"<Features in .* 12 rows", repr(features))


@pytest.mark.parametrize("verb", ["show", "plot", "report", "diff", "export", "verify"])
def test_a_shard_by_itself_is_told_to_be_part_of_a_folder(run, folder: Path, verb) -> None:
    shard = folder / "rows-00000003.safetensors"
    words = [shard, shard] if verb == "diff" else [shard, "conv"] if verb == "plot" else [shard]
    done = run(verb, *words)
    assert (done.rc, done.stdout) == (2, "")
    assert "in a features folder" in done.stderr or "part of a features folder" in done.stderr
    named = {"export": f"export {folder}/", "verify": f"Give the folder: {folder}/"}
    assert named.get(verb, f"show {folder}/") in done.stderr
