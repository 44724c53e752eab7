"""Files that were made to do harm: a sentence, little work and memory, and no code is run."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hookscope
from hookscope.errors import HookscopeError
from hookscope.files.pickle_scan import DamagedPickle
from hookscope.files.plain_pickle import PlainUnpickler
from hookscope.stores.weights import weight_set
from hookscope.stores.weights.open_weights import is_weights, open_weights
from tests.damage import CountedCalls, few_addresses
from tests.damaged.crafted_weights import CRAFTED, HARM, SLOW, Call, safetensors_file, tensor
from tests.damaged.file_kinds import KINDS
from tests.memory import memory_below

MOST_CALLS = 50_000_000  # of functions
MOST_MEMORY = 80_000_000  # bytes, where the largest file has 27 million


class Net:
    """An object that a pickle builds without a call of a function."""

    def __init__(self, width: int) -> None:
        self.width = width


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.exhaustive if n in SLOW else []) for n in CRAFTED],
)
def test_a_crafted_file_is_refused_after_little_work(tmp_path: Path, monkeypatch, name) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(CRAFTED[name]())
    limit = few_addresses() if name in SLOW else memory_below(MOST_MEMORY)
    with limit, CountedCalls() as calls, pytest.raises(HookscopeError) as caught:
        is_weights(name)
        open_weights(name)
    assert calls.number < MOST_CALLS
    assert caught.value.exit_code == 2
    assert name in caught.value.message
    assert "\n" not in caught.value.message and len(caught.value.message) < 400
    assert not Path(HARM).exists()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("system.pth", r"would call "),
        ("long_bytes.pth", "64 MiB"),
        ("value.pkl", "64 MiB"),
        ("tensors.gguf", "200,000"),
        ("values.gguf", "100,000"),
    ],
)
def test_the_limit_is_named(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / name).write_bytes(CRAFTED[name]())
    with pytest.raises(HookscopeError, match=reason):
        open_weights(tmp_path / name)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x80\x02e.", "instructions"),
        (b"L" + b"9" * 10_000 + b"L\n.", "digits"),
        (b"\x80\x02\xff.", "unknown"),
        (b"\x80\x02}", "early"),
    ],
)
def test_damaged_pickles_are_described_without_words_of_python(data: bytes, reason: str) -> None:
    with pytest.raises(DamagedPickle, match=reason):
        PlainUnpickler(io.BytesIO(data)).load()


@pytest.mark.parametrize("name", ["a.safetensors", "a.pth", "a.npz", "a.gguf"])
def test_too_many_tensors_are_refused_in_every_format(tmp_path: Path, monkeypatch, name) -> None:
    path = KINDS[name].write(tmp_path)
    monkeypatch.setattr(weight_set, "MOST_TENSORS", 1)
    with pytest.raises(HookscopeError, match=r"\d tensors.* 1 "):
        open_weights(path)


def test_trust_is_not_offered_for_a_file_that_runs_commands(tmp_path: Path) -> None:
    path = tmp_path / "evil.pth"
    for value in (Call(os.system, "true"), [Call(eval, "1")]):
        torch.save(value, path)
        with pytest.raises(HookscopeError, match=r"(posix|nt|__builtin__)\.") as caught:
            open_weights(path)
        assert "--trust" not in str(caught.value)
    torch.save([Call(os.system, "true"), Net(3)], path)
    with pytest.raises(HookscopeError, match=r"Net\)"):
        open_weights(path)
    torch.save({"w": torch.ones(2), "run": Call(os.system, "true")}, path)
    [note] = open_weights(path).notes
    assert f"{os.name}.system" in note


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors_file({"w": tensor([4_000_000], 0, 16_000_000)}, bytes(16_000_000)))
    blocks = open_weights(path).blocks("w")
    next(blocks)
    os.truncate(path, 5_000_000)
    with pytest.raises(HookscopeError, match=r"a\.safetensors.*shorter"):
        list(blocks)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_is_never_read(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    os.mkfifo(folder / "model.safetensors")
    os.mkfifo(folder / "model.safetensors.index.json")
    with pytest.raises(HookscopeError):
        open_weights(folder)
    assert not is_weights(str(folder))
    for name in ("model.safetensors", "model.safetensors.index.json"):
        for read in (open_weights, hookscope.tree):
            with pytest.raises(HookscopeError, match="pipe"):
                read(folder / name)
    (folder / "model.safetensors.index.json").unlink()
    index = {"weight_map": {"w": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(HookscopeError, match="pipe"):
        open_weights(folder)


LONG = "\x1b" * 5000 + " " + "n" * 60_000


def long_arrays(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for n in range(3):
            with archive.open(f"{n}{LONG[:20_000]}.npy", "w") as record:
                np.lib.format.write_array(record, np.ones(2, dtype=np.float32))


def long_names(path: Path) -> None:
    names = {f"{n}{LONG}": tensor([1], 4 * n, 4 * n + 4) for n in range(2)}
    path.write_bytes(safetensors_file(names, bytes(8)))


LONG_NAMES: dict[str, Callable[[Path], object]] = {
    "a.npz": long_arrays,
    "a.safetensors": long_names,
    "a.pt": lambda path: torch.save({f"{n}{LONG}": torch.ones(1) for n in range(2)}, path),
    "model.safetensors.index.json": lambda path: path.write_text(
        json.dumps({"weight_map": {LONG: LONG}})
    ),
}


@pytest.mark.parametrize("name", LONG_NAMES)
def test_a_message_quotes_no_long_name_of_a_file_whole(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    LONG_NAMES[name](path)
    calls: list[Callable[[], Any]] = [
        lambda: hookscope.capture(nn.Linear(2, 2), input=path),
        lambda: hookscope.capture(nn.Linear(2, 2), input=f"{path}:x"),
        lambda: hookscope.tree(f"{path}#x"),
        lambda: hookscope.load(path)["x"],
    ]
    for call in calls:
        with pytest.raises(HookscopeError) as caught:
            call()
        assert len(caught.value.message) < 1100
        assert len(caught.value.hint) < 2100
