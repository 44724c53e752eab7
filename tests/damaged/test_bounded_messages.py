"""Messages about files whose names are far too long stay short."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import hookscope
from hookscope.errors import HookscopeError

LONG = "\x1b" * 5000 + " " + "n" * 60_000


def arrays(folder: Path) -> Path:
    path = folder / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for n in range(3):
            with archive.open(f"{n}{LONG[:20_000]}.npy", "w") as record:
                np.lib.format.write_array(record, np.ones(2, dtype=np.float32))
    return path


def safetensors(folder: Path) -> Path:
    path = folder / "a.safetensors"
    names = {
        f"{n}{LONG}": {"dtype": "F32", "shape": [1], "data_offsets": [4 * n, 4 * n + 4]}
        for n in range(2)
    }
    header = json.dumps(names).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    return path


def pickled(folder: Path) -> Path:
    path = folder / "a.pt"
    torch.save({f"{n}{LONG}": torch.ones(1) for n in range(2)}, path)
    return path


def saved_index(folder: Path) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {LONG: LONG}}))
    return path


def errors_of(path: Path) -> list[HookscopeError]:
    calls: list[Callable[[], object]] = [
        lambda: hookscope.capture(nn.Linear(2, 2), input=path),
        lambda: hookscope.capture(nn.Linear(2, 2), input=f"{path}:x"),
        lambda: hookscope.tree(path),
        lambda: hookscope.tree(f"{path}#x"),
        lambda: hookscope.load(path)["x"],
    ]
    caught = []
    for call in calls:
        try:
            call()
        except HookscopeError as error:
            caught.append(error)
    return caught


@pytest.mark.parametrize("make", [arrays, safetensors, pickled, saved_index])
def test_a_message_quotes_no_long_name_of_a_file_whole(tmp_path: Path, make) -> None:
    errors = errors_of(make(tmp_path))
    assert errors
    for error in errors:
        assert len(error.message) < 1100
        assert len(error.hint) < 2100


def test_damage_in_the_directory_of_arrays_gives_short_messages(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **{f"array{n}": np.ones(3) for n in range(40)})
    data = path.read_bytes()
    start = data.index(b"PK\x01\x02")
    for position in range(start, len(data), 37):
        path.write_bytes(data[:position] + b"\xff\xff" + data[position + 2 :])
        for error in errors_of(path):
            assert len(error.message) < 1100
            assert len(error.hint) < 2100
