"""Runs of a model over a user's Dataset or DataLoader."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    get_worker_info,
)

import hookscope
from hookscope.errors import HookscopeError, InputError, RequestError
from tests.refusals import refused

from .conftest import contents
from .test_extract import joined

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


def test_items_of_a_dataset_are_rows_in_their_order(home, caplog) -> None:
    values = torch.rand(10, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    for name, given in {
        "plain": Tensors(values),
        "pairs": Tensors([(value, "a label") for value in values]),
        "arrays": Tensors(values.numpy()),
        "torch": TensorDataset(values),
        "named": Tensors([{"x": value} for value in values]),
        "loader": DataLoader(TensorDataset(values), batch_size=4),
    }.items():
        extract(given, name, batch=None if name == "loader" else 4)
        for first in range(0, 10, 4):
            shot = hookscope.capture(
                "small.py:Small", layers="head", input=values[first : first + 4]
            )
            theirs = shot["head/output"]
            assert torch.equal(joined(home / name, "head/output")[first : first + 4], theirs), name
    lines = (home / "pairs" / "inputs.jsonl").read_text().splitlines()
    wanted = [{"row": i, "item": i, "label": "a label"} for i in range(10)]
    assert [json.loads(line) for line in lines] == wanted


def test_images_of_a_dataset_become_what_images_in_files_become(home, caplog) -> None:
    with caplog.at_level(logging.INFO, "hookscope"):
        extract("data.py:photos", "items", size=24)
    assert "the second element of each pair is stored as its label" in caplog.text
    (home / "files").mkdir()
    for i in range(10):
        pixels = Image.new("RGB", (40, 30), (i * 20, 255 - i * 20, 7))
        pixels.save(home / "files" / f"{i}.png")
    extract("files", "images", size=24)
    assert torch.equal(
        joined(home / "items", "head/output"), joined(home / "images", "head/output")
    )


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
    with pytest.raises(RequestError, match="have no path"):
        found.dataset("head", with_path=True)


def test_every_third_item(home) -> None:
    values = torch.rand(10, 3, 16, 16)
    extract(Tensors(values), "out", every=3, batch=1)
    extract(Tensors(values[::3]), "third", batch=1)
    ours, theirs = (joined(home / name, "head/output") for name in ("out", "third"))
    assert torch.equal(ours, theirs)
    lines = (home / "out" / "inputs.jsonl").read_text().splitlines()
    assert [json.loads(line)["item"] for line in lines] == [0, 3, 6, 9]


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(3, 16, 16)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("data.py:shuffled", "RandomSampler"),
        ("data.py:stream", "has no indices or no length"),
        (DataLoader(Stream()), "has no indices or no length"),
        ("data.py:batches", "a generator, is not a file"),
        (torch.zeros(4, 3, 16, 16), "Tensor is not a file"),
        (Tensors([]), "is empty"),
        (DataLoader(Tensors([torch.zeros(3)]), batch_size=None), "or no batch_size"),
        (["data.py:noisy", "photos"], "only input"),
        ("data.py:noisy", "the disk is on fire"),
        (Tensors([torch.zeros(3, 16, 16), torch.zeros(3, 8, 8)]), "cannot be collated"),
    ],
)
def test_what_gives_no_rows_is_refused(home, given, said) -> None:
    with pytest.raises(InputError, match=said):
        extract(given, "out")


def test_choices_for_images_are_refused_where_there_are_none(home) -> None:
    with pytest.raises(InputError, match="size is for images"):
        extract("data.py:own", "out", size=8)
    with pytest.raises(RequestError, match="decode is for image files"):
        extract("data.py:own", "out", decode="fast")


def test_a_dataset_of_another_length_is_no_resumption(home) -> None:
    extract(Tensors(torch.zeros(6, 3, 16, 16)), "out")
    with pytest.raises(RequestError, match="inputs rows was 6, and is 7 now"):
        extract(Tensors(torch.zeros(7, 3, 16, 16)), "out", resume=True)


VALUES = torch.rand(10, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Holes(Tensors):
    def __getitem__(self, i):
        return None if i == 3 else super().__getitem__(i)


def test_an_item_that_is_none_cannot_be_used(home, tmp_path) -> None:
    with pytest.raises(InputError, match="Item 3 of Holes cannot be used: it is None"):
        extract(Holes(VALUES), tmp_path / "out")
    done = extract(Holes(VALUES), tmp_path / "out", resume=True, skip_bad=True)
    assert done.state.skipped == 1


class Deadly(Tensors):
    def __getitem__(self, i):
        if i == 6 and get_worker_info():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(i)


def test_a_process_that_dies_while_it_reads_is_told_of(home, tmp_path) -> None:
    with refused(HookscopeError, "A worker process that reads inputs has died", hint="workers"):
        extract(Deadly(VALUES), tmp_path / "out", workers=1)
    for _ in range(3):  # torch asks after the workers that it knows whenever a child process ends
        subprocess.run([sys.executable, "-c", ""], check=True)
    extract(Deadly(VALUES), tmp_path / "out", resume=True)
    extract(Tensors(VALUES), tmp_path / "whole")
    found, expected = (hookscope.load(tmp_path / name)["head"][:] for name in ("out", "whole"))
    assert (found == expected).all()


@pytest.mark.slow
def test_the_command_takes_a_dataset(run, home) -> None:
    words = ("extract", "small.py:Small", "--layer", "head", "-i", "data.py:photos")
    done = run(*words, "-o", "out/", "--batch", "4", cwd=home)
    assert done.rc == 0, done.stderr
    assert "10 rows of 1 tensor" in done.stdout
    assert "stored as its label" in done.stderr
    done = run(*words[:-1], "data.py:shuffled", "-o", "other/", cwd=home)
    assert (done.rc, done.stdout) == (2, "")
    assert "shuffle=False" in done.stderr
    assert not (home / "other").exists() or not any((home / "other").iterdir())


class WorkersOfItems(Dataset):
    """Items that tell how many workers read them."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, position: int) -> torch.Tensor:
        workers = torch.utils.data.get_worker_info()
        return torch.tensor([float(workers.num_workers if workers else 0)])


@pytest.mark.parametrize("workers", [0, 2])
def test_as_many_workers_read_as_are_asked_for(tmp_path, workers: int) -> None:
    out = tmp_path / "out"
    hookscope.extract(torch.nn.Identity(), out, layers=".", input=WorkersOfItems(), workers=workers)
    assert hookscope.load(out)["."][:].tolist() == [[float(workers)]] * 6


def test_without_a_number_some_workers_read(tmp_path) -> None:
    out = tmp_path / "out"
    hookscope.extract(torch.nn.Identity(), out, layers=".", input=WorkersOfItems())
    assert hookscope.load(out)["."][:].min() >= 1


class Drawing(Dataset):
    """Only one item is random, and it draws from numpy."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((3, 16, 16), float(np.random.rand()) if i == 7 else i / 10)


def test_what_a_single_item_draws_does_not_depend_on_its_batch(home) -> None:
    found = []
    for batch in (1, 4, 10):
        extract(Drawing(), f"batch{batch}", batch=batch, layers="relu")
        found.append(joined(home / f"batch{batch}", "relu/output"))
    assert torch.allclose(found[0], found[1], atol=1e-6)
    assert torch.allclose(found[0], found[2], atol=1e-6)
