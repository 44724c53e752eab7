"""Reading features: arrays on disk behave like arrays in memory, also of zero or very many rows."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
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
from hookscope.stores.features.features import Features
from hookscope.stores.features.folder import write_json
from hookscope.stores.features.location import parse_location
from hookscope.stores.features.shards import MAX_OPEN
from tests.test_architecture import heavy_after

from .conftest import extract_photos
from .handwritten_features import ramp, write_features

SHAPE = (7, 3, 2)
TENSORS = {
    "conv": ramp(*SHAPE),
    "bf": ramp(7, 4, dtype=torch.bfloat16),
    "f8": ramp(7, 2, dtype=torch.float8_e4m3fn),
    "half": ramp(7, 5, dtype=torch.float16),
    "ids": ramp(7, dtype=torch.int64),
    "flags": ramp(7, 2) > 0,
    "fc": ramp(7, 3),
    "fc:2": ramp(7, 3) + 0.5,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven rows in shards of three; the last layer has two calls."""
    tensors = {f"{name}/output": tensor for name, tensor in TENSORS.items()}
    return write_features(tmp_path_factory.mktemp("a") / "features", tensors, 3)


def test_keys_rows_and_shapes_are_told_without_reading_a_shard(folder: Path) -> None:
    features = hookscope.load(folder)
    assert (len(features), features.rows) == (7, 7)
    assert features.keys[0] == "conv/output" and list(features) == list(features.keys)
    assert "conv/output" in features and "conv" not in features
    rows = features["conv"]
    assert (rows.shape, rows.dtype, len(rows), rows.ndim, rows.nbytes) == (SHAPE, "f4", 7, 3, 168)
    assert "conv/output: 7x3x2, float32" in repr(rows)
    assert f"{folder}: 7 rows" in repr(features)


def test_a_layer_or_a_key_names_its_rows(folder: Path) -> None:
    features = hookscope.load(folder)
    assert features["conv"].key == features["conv/output"].key == "conv/output"
    assert features["fc:2"].key == "fc:2/output"
    for wrong, subject in {"cnv": "mean conv", "fc*": "fc:2/output", "conv[0]": "slice"}.items():
        with pytest.raises(RequestError, match=subject):
            features[wrong]


FLAGS, LISTS = hnp.arrays(bool, SHAPE[0]), st.lists(st.integers(-3, 2), max_size=4)
TWO = st.lists(st.integers(-3, 2), min_size=2, max_size=2)
ODD = [(), None, ..., (..., ...), (0, 0, 0), (0, 0, 0, 0), 1.5, "a", np.int64(2), np.array(3)]
ODD += [slice(None, None, 0), [[0, 1], [2, 3]], np.array([], float), []]
INDICES = st.one_of(
    hnp.basic_indices(SHAPE, allow_newaxis=True, max_dims=6),
    hnp.integer_array_indices(SHAPE),
    FLAGS,
    hnp.arrays(bool, SHAPE[:2]),
    hnp.arrays(bool, SHAPE),
    st.tuples(FLAGS, st.slices(3), st.integers(-2, 1)),
    st.tuples(st.slices(7), LISTS),
    st.tuples(st.lists(st.integers(-7, 6), max_size=9), st.just(...), st.integers(-2, 1)),
    st.tuples(st.slices(7), TWO, st.just(...), st.just([0])),
    st.lists(st.integers(-9, 8), max_size=5),
    st.tuples(st.integers(-9, 8), st.slices(3)),
    st.tuples(st.booleans(), st.slices(7)),
    st.sampled_from(ODD),
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
    wanted, rows = TENSORS[name], hookscope.load(folder)[name]
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


def test_rows_are_copies_that_numpy_and_a_loop_take(folder: Path) -> None:
    rows, whole = hookscope.load(folder)["conv"], ramp(*SHAPE).numpy()
    rows.torch()[2:4].zero_()
    rows[2:4][:] = 0
    assert np.array_equal(np.asarray(rows), whole)
    assert np.asarray(rows, np.float64).dtype == np.float64
    assert [row.sum() for row in rows] == [row.sum() for row in whole]
    with pytest.raises(ValueError, match="copy"):
        np.asarray(rows, copy=False)


def test_int8_is_multiplied_by_the_scale_of_its_row(tmp_path: Path) -> None:
    values = torch.randint(-127, 128, (5, 3, 2), dtype=torch.int8)
    scale = torch.tensor([0.5, 1e-3, float("nan"), 0.0, 7.0])
    out = write_features(tmp_path / "f", {"conv/output": values}, 2, {"conv/output": scale})
    features = hookscope.load(out)
    wanted = values.numpy() * scale.numpy()[:, None, None]
    assert features.keys == ("conv/output",) and features["conv"].dtype == np.float32
    for index in (slice(None), [4, 0], (slice(None), 1), (..., 0), 3, np.arange(5) % 2 == 0):
        assert np.array_equal(features["conv"][index], wanted[index], equal_nan=True)
        assert np.array_equal(features["conv"].raw[index], values.numpy()[index])
    assert features["conv"].torch()[1].dtype == torch.float32
    assert pickle.loads(pickle.dumps(features["conv"].raw)).dtype == np.int8


def test_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    out = write_features(tmp_path / "f", {"fc/output": ramp(6, 4)}, 2)
    (out / "rows-00000002.safetensors").unlink()
    with (out / "rows-00000004.safetensors").open("ab") as file:
        file.write(b"more")
    rows = hookscope.load(out)["fc"]
    assert np.array_equal(rows[:2], ramp(6, 4).numpy()[:2])
    for index, name in ((slice(1, 3), "rows-00000002"), (-1, "rows-00000004")):
        with pytest.raises(StoreError, match=name):
            rows[index]


def test_rows_tell_where_they_came_from(tmp_path: Path) -> None:
    bad = {1: "'photos/1é.jpg' is no image."}
    out = write_features(tmp_path / "f", {"fc/output": ramp(5, 2)}, 2, skipped=bad)
    inputs = hookscope.load(out).inputs
    assert len(inputs) == 5
    assert [entry["row"] for entry in inputs] == [inputs[i]["row"] for i in range(5)]
    assert inputs[-1]["path"] == "photos/4é.jpg" == inputs.paths[4]
    assert [entry["row"] for entry in inputs[1::2]] == [1, 3]
    assert inputs.skipped == bad
    with pytest.raises(IndexError):
        inputs[5]
    (out / "inputs.jsonl").write_text('{"row": 0}\n')
    with pytest.raises(StoreError, match="1 lines for 5 rows"):
        hookscope.load(out).inputs[0]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.exhaustive)])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_dataloader_gives_rows_and_paths_in_its_order(folder: Path, workers: int) -> None:
    features = pickle.loads(pickle.dumps(hookscope.load(folder)))  # as it goes to a process
    dataset = pickle.loads(pickle.dumps(features.dataset("conv", with_path=True)))
    assert isinstance(dataset, Dataset) and len(dataset) == 7
    order = [6, 0, 3, 3, 1]
    more = {"num_workers": workers, "multiprocessing_context": "spawn" if workers else None}
    batches = list(DataLoader(dataset, 2, sampler=order, **more))
    assert torch.equal(torch.cat([rows for rows, _ in batches]), ramp(*SHAPE)[order])
    assert [path for _, paths in batches for path in paths] == [f"photos/{i}é.jpg" for i in order]
    plain = hookscope.load(folder).dataset("bf")
    assert torch.equal(plain[2], TENSORS["bf"][2]) and plain[2].dtype == torch.bfloat16
    assert [t.tolist() for t in plain.__getitems__([4, 1])] == ramp(7, 4)[[4, 1]].tolist()


def test_an_address_is_read_like_a_folder(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    out = write_features(tmp_path / "f", {"fc/output": ramp(7, 4, 3)}, 3)
    fsspec.filesystem("memory").put(str(out), "/lab/f", recursive=True)
    for address in ("memory://lab/f", f"file://{out}"):
        features = hookscope.load(address)
        for index in (slice(None), [6, 1, 2], (slice(None, None, -2), 1), (4, ..., 0), slice(0, 0)):
            assert np.array_equal(features["fc"][index], ramp(7, 4, 3).numpy()[index])
        assert features.inputs[2]["row"] == 2
    with pytest.raises(RequestError, match="memory://lab/none"):
        hookscope.load("memory://lab/none")


def test_what_is_no_finished_folder_says_what_it_is(tmp_path: Path) -> None:
    def said(path: object) -> str:
        with pytest.raises((RequestError, ResultsFileError)) as caught:
            hookscope.load(path)
        return str(caught.value)

    (tmp_path / "file").write_text("")
    for name in ("none/", "none", "file"):
        assert name in said(f"{tmp_path}/{name}")
    assert "manifest.json" in said(tmp_path)
    (tmp_path / "manifest.json").write_text('{"name": "a web page"}')
    assert "manifest.json" in said(tmp_path)
    out = write_features(tmp_path / "f", {"fc/output": ramp(5, 2)}, 2)
    document = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps(document | {"schema": 3}))
    assert "schema 3" in said(out)
    (out / "manifest.json").write_text("{")
    assert "manifest.json" in said(out)


def test_an_unfinished_folder_says_how_to_finish_it(tmp_path: Path) -> None:
    out = write_features(tmp_path / "f", {"fc/output": ramp(5, 2)}, 2)
    shard = json.loads((out / "manifest.json").read_text())["shards"][0]
    (out / "manifest.json").unlink()
    write_json(parse_location(out), ".parts/plan.json", {"rows": 5})
    write_json(parse_location(out), ".parts/00000000.json", {**shard, "inputs": []})
    with pytest.raises(StoreError, match=r"2 of 5 rows .*\n.* --resume"):
        hookscope.load(out)


@pytest.mark.slow
def test_reading_with_numpy_needs_no_torch(folder: Path) -> None:
    code = f"import hookscope; hookscope.load({str(folder)!r})['conv'][3:5]"
    assert "torch" not in heavy_after(code)


def test_what_a_run_writes_is_read_back(photos: Path, tmp_path: Path) -> None:
    (photos / "03.jpg").write_bytes(b"no image")
    extract_photos(photos, tmp_path / "out", skip_bad=True)
    features = hookscope.load(tmp_path / "out")
    assert features.keys == ("relu/output", "relu:2/output", "head/output")
    files = sorted(str(path) for path in photos.iterdir() if path.suffix != ".txt")
    assert features.inputs.paths == files
    assert list(features.inputs.skipped) == [3]
    assert np.isnan(features["head"][3]).all()
    model = f"{tmp_path}/small.py:Small"
    shot = hookscope.capture(model, layers=["relu", "head"], input=files[4:8])
    assert torch.equal(features["relu:2"].torch()[4:8], shot["relu:2/output"])


@pytest.mark.parametrize("rows", [0, 1])
def test_folders_of_one_row_or_none(tmp_path: Path, rows: int) -> None:
    out = write_features(tmp_path / "f", {"fc/output": ramp(rows, 2)}, 2)
    features = hookscope.load(out)
    assert (len(features), features.keys, len(list(features.inputs))) == (
        rows,
        ("fc/output",),
        rows,
    )
    assert hookscope.verify(out).ok
    uses = [lambda: features["fc"].shape, lambda: features.dataset("fc")[0][None].shape]
    for ending in ("npy", "safetensors", "parquet"):
        path = tmp_path / f"a.{ending}"
        uses.append(lambda path=path: hookscope.export(out, path).rows[0].shape)
    for use in uses:
        if rows:
            assert use() == (1, 2)
        else:
            with pytest.raises(RequestError, match="no rows"):
                use()


# Very many rows, and several readers.

MANY = 100_000
READERS = 8


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of three numbers in more shards than are kept open at once."""
    out = tmp_path_factory.mktemp("many") / "features"
    tensors = {"a/output": ramp(MANY, 3), "i/output": ramp(MANY, dtype=torch.int64)}
    return write_features(out, tensors, MANY // (MAX_OPEN + 22))


def indices() -> dict[str, object]:
    source = np.random.default_rng(0)
    mask = source.random(MANY) < 0.01
    return {
        "backwards": slice(None, None, -1),
        "from the middle back": slice(MANY // 2, 10, -3),
        "across shards": slice(99, MANY - 99, 4321),
        "mask and a column": (mask, 1),
        "nothing": np.zeros(MANY, bool),
        "all by a mask": np.ones(MANY, bool),
        "mask of every number": source.random((MANY, 3)) < 0.001,
        "in two dimensions": source.integers(-MANY, MANY, (5, 4)),
        "backwards in columns": (slice(-1, -2000, -7), slice(None, None, -1)),
    }


def test_of_very_many_rows_each_index_gives_what_numpy_gives(many) -> None:
    whole, rows = ramp(MANY, 3).numpy(), hookscope.load(many)["a"]
    for name, index in indices().items():
        found, wanted = rows[index], whole[index]
        assert found.shape == wanted.shape and np.array_equal(found, wanted), name
        assert np.array_equal(rows.torch()[index].numpy(), wanted), name
    inputs = hookscope.load(many).inputs
    assert [inputs[row]["row"] for row in (0, 1, 54_321, -1)] == [0, 1, 54_321, MANY - 1]
    assert [entry["row"] for entry in inputs[99_990::3]] == [99_990, 99_993, 99_996, 99_999]
    assert hookscope.verify(many).ok


def read_at_random(rows: object, seed: int) -> bool:
    """Whether a reader gets the right values; ``rows`` is an array on disk, or a folder."""
    array = rows if not isinstance(rows, str) else hookscope.load(rows)["a"]
    source, expected = np.random.default_rng(seed), ramp(MANY, 3).numpy()
    for _ in range(20):
        index = source.integers(0, MANY, 50)
        if not np.array_equal(array[index], expected[index]):
            return False
    return True


@pytest.mark.parametrize("sums", [False, True])
def test_eight_threads_read_one_array_at_once(many: Path, sums: bool) -> None:
    rows = Features(many, sums=sums)["a"]
    with ThreadPoolExecutor(READERS) as pool:
        assert all(pool.map(read_at_random, [rows] * READERS, range(READERS)))


@pytest.mark.slow
@pytest.mark.parametrize("sent", ["array", "folder"])
def test_eight_processes_read_one_folder_at_once(many: Path, sent: str) -> None:
    what = hookscope.load(many)["a"] if sent == "array" else str(many)
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(READERS, mp_context=context) as pool:
        assert all(pool.map(read_at_random, [what] * READERS, range(READERS)))


LOADING = """
import json, sys
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

class Mine(Dataset):
    '''A Dataset of the user's own that holds arrays on disk.'''
    def __init__(self, features):
        self.features, self.rows, self.tensors = features, features["a"], features["i"].torch()
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, row):
        return self.rows[row].sum(), self.tensors[row], self.features.inputs[row]["row"]

if __name__ == "__main__":
    import hookscope
    features = hookscope.load(sys.argv[1])
    features["a"][::500]  # with shards open
    for dataset in (Mine(features), features.dataset("a", with_path=True)):
        part = torch.utils.data.Subset(dataset, range(0, len(dataset), 499))
        loader = DataLoader(part, batch_size=16, num_workers=2, multiprocessing_context=sys.argv[2])
        batches = list(loader)
        print(json.dumps([len(batches), float(batches[-1][0].double().sum())]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.exhaustive)])
def test_arrays_on_disk_go_to_workers_of_a_dataloader(many, tmp_path, start: str) -> None:
    (tmp_path / "loading.py").write_text(LOADING)
    words = [sys.executable, "loading.py", str(many), start]
    done = subprocess.run(words, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    taken = ramp(MANY, 3).numpy()[::499]
    last = taken[(len(taken) - 1) // 16 * 16 :]
    expected = [-(-len(taken) // 16), pytest.approx(float(last.astype("f8").sum()))]
    assert [json.loads(line) for line in done.stdout.splitlines()] == [expected] * 2
