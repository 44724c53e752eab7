"""Runs of a model over a user's Dataset or DataLoader."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

import hookscope
from hookscope.errors import HookscopeError, InputError, RequestError
from tests.refusals import refused

from .conftest import contents, entries, joined

DATA = """
import random
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from helper import image

class Photos(Dataset):
    def __len__(self):
        return 10
    def __getitem__(self, i):
        return image(i), f"label {i}"

class Noisy(Dataset):
    def __len__(self):
        return 10
    def __getitem__(self, i):
        if i == 6:
            raise OSError("the disk is on fire")
        return torch.rand(3, 16, 16) + random.random(), i

def photos():
    return Photos()

noisy = Noisy()

def collate(pairs):
    assert all(isinstance(label, int) for _, label in pairs)
    return torch.stack([image.flip(0) for image, _ in pairs]), [label for _, label in pairs]

own = DataLoader([(torch.full((3, 16, 16), i / 10), i) for i in range(6)], 4, collate_fn=collate)
shuffled = DataLoader(Noisy(), shuffle=True)

class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(3, 16, 16)

stream = Stream()

def batches():
    yield torch.zeros(1, 3, 16, 16)
"""
HELPER = """
from PIL import Image

def image(i):
    return Image.new("RGB", (40, 30), (i * 20, 255 - i * 20, 7))
"""
VALUES = torch.rand(10, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def home(photos, tmp_path, monkeypatch):
    (tmp_path / "data.py").write_text(DATA)
    (tmp_path / "helper.py").write_text(HELPER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def extract(given, folder, **more):
    more = {"layers": "head", "batch": 4, "shard_size": 1, "workers": 0} | more
    return hookscope.extract("small.py:Small", folder, input=given, **more)


class Tensors(Dataset):
    def __init__(self, values) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, i):
        return self.values[i]


GIVEN = {
    "plain": Tensors(VALUES),
    "pairs": Tensors([(value, "a label") for value in VALUES]),
    "arrays": Tensors(VALUES.numpy()),
    "torch": TensorDataset(VALUES),
    "named": Tensors([{"x": value} for value in VALUES]),
    "loader": DataLoader(TensorDataset(VALUES), batch_size=4),
}


@pytest.mark.parametrize("name", GIVEN)
def test_items_of_a_dataset_are_rows_in_their_order(home, name: str) -> None:
    extract(GIVEN[name], "out", batch=None if name == "loader" else 4)
    for first in range(0, 10, 4):
        values = VALUES[first : first + 4]
        shot = hookscope.capture("small.py:Small", layers="head", input=values)
        found = joined(home / "out", "head/output")[first : first + 4]
        assert torch.equal(found, shot["head/output"])
    label = {"label": "a label"} if name == "pairs" else {}
    assert entries(home / "out") == [{"row": i, "item": i} | label for i in range(10)]


def test_images_of_a_dataset_become_what_images_in_files_become(home) -> None:
    extract("data.py:photos", "items", size=24)
    (home / "files").mkdir()
    for i in range(10):
        pixels = Image.new("RGB", (40, 30), (i * 20, 255 - i * 20, 7))
        pixels.save(home / "files" / f"{i}.png")
    extract("files", "images", size=24)
    items, images = (joined(home / name, "head/output") for name in ("items", "images"))
    assert torch.equal(items, images)


def test_a_loader_puts_items_together_in_its_own_way(home) -> None:
    done = extract("data.py:own", "out", batch=None)
    assert done.manifest["batch"] == 4
    values = torch.stack([torch.full((3, 16, 16), i / 10) for i in range(4)])
    shot = hookscope.capture("small.py:Small", layers="head", input=values)
    assert torch.equal(joined(home / "out", "head/output")[:4], shot["head/output"])


def test_what_items_draw_depends_neither_on_processes_nor_on_interruptions(home) -> None:
    given = {"skip_bad": True, "seed": 3}
    extract("data.py:noisy", "one", **given)
    extract("data.py:noisy", "two", **given, workers=2)
    assert contents(home / "one") == contents(home / "two")
    (home / "two" / "rows-00000008.safetensors").unlink()
    extract("data.py:noisy", "two", **given, resume=True)
    assert contents(home / "one") == contents(home / "two")
    found = hookscope.load("one")
    assert list(found.inputs.skipped) == [6]
    assert "the disk is on fire" in found.inputs.skipped[6]
    assert torch.isnan(found["head"].torch()[:]).all(1).nonzero().tolist() == [[6]]
    assert found.inputs.paths == [None] * 10
    with pytest.raises(RequestError, match="path"):
        found.dataset("head", with_path=True)


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(3, 16, 16)


@pytest.mark.parametrize(
    ("given", "subject"),
    [
        ("data.py:shuffled", "RandomSampler"),
        ("data.py:stream", "indices"),
        (DataLoader(Stream()), "indices"),
        ("data.py:batches", "a generator"),
        (torch.zeros(4, 3, 16, 16), "Tensor"),
        (Tensors([]), "empty"),
        (DataLoader(Tensors([torch.zeros(3)]), batch_size=None), "batch_size"),
        (["data.py:noisy", "photos"], "only input"),
        ("data.py:noisy", "the disk is on fire"),
        (Tensors([torch.zeros(3, 16, 16), torch.zeros(3, 8, 8)]), "collated"),
    ],
)
def test_what_gives_no_rows_is_refused(home, given, subject) -> None:
    with pytest.raises(InputError, match=subject):
        extract(given, "out")


def test_choices_for_images_are_refused_where_there_are_none(home) -> None:
    for name, value in {"size": 8, "decode": "fast"}.items():
        with pytest.raises(RequestError, match=f"{name} is for"):
            extract("data.py:own", "out", **{name: value})


class Holes(Tensors):
    def __getitem__(self, i):
        return None if i == 3 else super().__getitem__(i)


def test_an_item_that_is_none_cannot_be_used(home) -> None:
    with pytest.raises(InputError, match="Item 3 of Holes"):
        extract(Holes(VALUES), "out")
    assert extract(Holes(VALUES), "out", resume=True, skip_bad=True).state.skipped == 1


class Deadly(Tensors):
    def __getitem__(self, i):
        if i == 6 and get_worker_info():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(i)


def test_a_process_that_dies_while_it_reads_is_told_of(home) -> None:
    with refused(HookscopeError, "worker process", hint="workers"):
        extract(Deadly(VALUES), "out", workers=1)
    for _ in range(3):  # torch asks after the workers that it knows whenever a child process ends
        subprocess.run([sys.executable, "-c", ""], check=True)
    extract(Deadly(VALUES), "out", resume=True)
    extract(Tensors(VALUES), "whole")
    found, expected = (hookscope.load(home / name)["head"][:] for name in ("out", "whole"))
    assert (found == expected).all()


class WorkersOfItems(Tensors):
    """Items that tell how many workers read them."""

    def __getitem__(self, i: int) -> torch.Tensor:
        workers = get_worker_info()
        return torch.tensor([float(workers.num_workers if workers else 0)])


@pytest.mark.parametrize("workers", [0, 2, None])
def test_as_many_workers_read_as_are_asked_for(tmp_path, workers: int | None) -> None:
    given = {"layers": ".", "input": WorkersOfItems(VALUES[:6]), "workers": workers}
    hookscope.extract(torch.nn.Identity(), tmp_path / "out", **given)
    found = hookscope.load(tmp_path / "out")["."][:]
    assert (found == workers).all() if workers is not None else found.min() >= 1


class Drawing(Tensors):
    """Only one item is random, and it draws from numpy."""

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((3, 16, 16), float(np.random.rand()) if i == 7 else i / 10)


def test_what_a_single_item_draws_does_not_depend_on_its_batch(home) -> None:
    found = []
    for batch in (1, 4, 10):
        extract(Drawing(VALUES), f"batch{batch}", batch=batch, layers="relu")
        found.append(joined(home / f"batch{batch}", "relu/output"))
    assert torch.allclose(found[0], found[1], atol=1e-6)
    assert torch.allclose(found[0], found[2], atol=1e-6)
