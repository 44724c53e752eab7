"""Features of zero, one and very many rows, read by several threads and DataLoader workers."""

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
from torch.utils.data import DataLoader

import hookscope
from hookscope.errors import RequestError
from hookscope.stores.features.features import Features
from hookscope.stores.features.shards import MAX_OPEN

from .handwritten_features import ramp, write_features

MANY = 100_000
READERS = 8


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of three numbers in more shards than are kept open at once."""
    folder = tmp_path_factory.mktemp("many") / "features"
    tensors = {"a/output": ramp(MANY, 3), "i/output": ramp(MANY, dtype=torch.int64)}
    return write_features(folder, tensors, MANY // (MAX_OPEN + 22))


@pytest.fixture(scope="module")
def whole() -> np.ndarray:
    return ramp(MANY, 3).numpy()


def test_a_folder_without_rows_says_so(run, tmp_path: Path) -> None:
    folder = write_features(tmp_path / "f", {"fc/output": ramp(0, 2)}, 2)
    features = hookscope.load(folder)
    assert (len(features), features.keys, list(features.inputs)) == (0, ("fc/output",), [])
    for use in (lambda: features["fc"], lambda: features.dataset("fc")):
        with pytest.raises(RequestError, match="contains no rows"):
            use()
    assert hookscope.verify(folder).ok
    for ending in ("npy", "safetensors", "parquet"):
        with pytest.raises(RequestError, match="contains no rows"):
            hookscope.export(folder, tmp_path / f"a.{ending}")
    done = run("show", folder)
    assert (done.rc, "0 rows" in done.stdout, done.stderr) == (0, True, "")


@pytest.mark.parametrize(
    "index", [0, -1, slice(None), slice(None, None, -1), [0, 0, -1], [True], [False], (..., -1)]
)
def test_one_row_is_indexed_as_an_array_of_one(tmp_path: Path, index: object) -> None:
    folder = write_features(tmp_path / "f", {"fc/output": ramp(1, 2)}, 2)
    found, wanted = hookscope.load(folder)["fc"][index], ramp(1, 2).numpy()[index]
    assert found.shape == wanted.shape and np.array_equal(found, wanted)
    for ending in ("npy", "safetensors", "parquet"):
        assert hookscope.export(folder, tmp_path / f"a.{ending}").rows[0].shape == (1, 2)


def indices() -> dict[str, object]:
    source = np.random.default_rng(0)
    mask = source.random(MANY) < 0.01
    return {
        "all": slice(None),
        "backwards": slice(None, None, -1),
        "every 997th backwards": slice(None, None, -997),
        "from the middle back": slice(MANY // 2, 10, -3),
        "across shards": slice(99, MANY - 99, 4321),
        "mask": mask,
        "mask and a column": (mask, 1),
        "nothing": np.zeros(MANY, bool),
        "all by a mask": np.ones(MANY, bool),
        "mask of every number": source.random((MANY, 3)) < 0.001,
        "at random": source.integers(-MANY, MANY, 500),
        "in two dimensions": source.integers(0, MANY, (5, 4)),
        "backwards in columns": (slice(-1, -2000, -7), slice(None, None, -1)),
        "last": -1,
    }


@pytest.mark.parametrize("name", indices())
def test_of_very_many_rows_each_index_gives_what_numpy_gives(many, whole, name: str) -> None:
    index = indices()[name]
    rows = hookscope.load(many)["a"]
    found, wanted = rows[index], whole[index]
    assert found.shape == wanted.shape and np.array_equal(found, wanted)
    assert np.array_equal(rows.torch()[index].numpy(), wanted)


def test_the_lines_of_very_many_rows_are_found(many: Path) -> None:
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


def test_an_array_on_disk_is_sent_as_its_place_and_not_as_its_values(many, whole) -> None:
    rows = hookscope.load(many)["a"]
    rows[::1000]  # with shards open
    for sent in (rows, rows.torch(), hookscope.load(many).dataset("a", with_path=True)):
        data = pickle.dumps(sent)
        again = pickle.loads(data)
        assert len(again) == MANY
    assert np.array_equal(pickle.loads(pickle.dumps(rows))[5:9], whole[5:9])


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
def test_arrays_on_disk_go_to_workers_of_a_dataloader(many, whole, tmp_path, start: str) -> None:
    (tmp_path / "loading.py").write_text(LOADING)
    words = [sys.executable, "loading.py", str(many), start]
    done = subprocess.run(words, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    taken = whole[::499]
    last = taken[len(taken) // 16 * 16 :] if len(taken) % 16 else taken[-16:]
    count, total = -(-len(taken) // 16), float(last.astype("f8").sum())
    for line in done.stdout.splitlines():
        assert json.loads(line) == [count, pytest.approx(total)]
    assert len(done.stdout.splitlines()) == 2


def test_a_dataloader_reads_every_row_once_in_any_order(many: Path) -> None:
    loader = DataLoader(hookscope.load(many).dataset("i"), batch_size=5000, shuffle=True)
    seen = torch.cat(list(loader))
    assert torch.equal(seen.sort().values, ramp(MANY, dtype=torch.int64))
