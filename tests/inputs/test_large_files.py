"""Files that would take minutes or fill the memory are refused early."""

from __future__ import annotations

import io
import json
import pickle
import struct
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hookscope import load_model as load
from hookscope.errors import (
    HookscopeError,
    InputError,
    LossError,
    RequestError,
    WeightsError,
    WeightsFileError,
)
from hookscope.execution.target import read_target
from hookscope.files import file_types as filekinds
from hookscope.files import pickle_scan as pickles
from hookscope.inputs.batch import build_batch
from hookscope.sources.loaded import TextRecipe, WeightsRequest
from hookscope.sources.model_loader import wrap
from hookscope.sources.weights import load_file_into
from tests.archives import rezip
from tests.memory import memory_below
from tests.refusals import refused
from tests.zoo.specimen import Module

MEBIBYTE = 1 << 20


ANY = wrap(Module(lambda self, *args, **kwargs: None))


def value_of(path: Path) -> object:
    return build_batch(ANY, str(path)).value


def swollen(path: Path) -> None:
    """Let the directory of an archive say that its records unpack to 2 GB each."""
    data = bytearray(path.read_bytes())
    place = data.find(b"PK\x01\x02")
    while place >= 0:
        struct.pack_into("<L", data, place + 24, 2**31)
        place = data.find(b"PK\x01\x02", place + 4)
    path.write_bytes(data)


@pytest.mark.exhaustive
def test_long_cells_that_are_no_numbers_take_no_longer_than_others(tmp_path: Path) -> None:
    # Going over the digits once more for each of them would take an hour of a processor.
    cell = "1" * 130_000 + "x"
    (tmp_path / "t.csv").write_text(f"{','.join([cell] * 90)}\n1\n")
    with pytest.raises(InputError, match=r"1 cells.* 90"):
        value_of(tmp_path / "t.csv")


def test_a_long_table_is_read_as_exactly_as_a_short_one(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(2000, 7)) * 10.0 ** np.arange(-3, 4)
    np.savetxt(tmp_path / "t.csv", rows, delimiter=",", header="a,b,c,d,e,f,g", comments="")
    expected = [[float(cell) for cell in line.split(",")] for line in lines(tmp_path / "t.csv")]
    assert torch.equal(value_of(tmp_path / "t.csv"), torch.tensor(expected))
    # What numpy's reader leaves to the slower one: rows of empty cells, and other columns' texts.
    text = (tmp_path / "t.csv").read_text().replace("\n", ",word\n").replace("g,word", "g,h")
    (tmp_path / "u.csv").write_text(text.replace("\n", "\n,,,,,,,\n"))
    assert torch.equal(value_of(f"{tmp_path}/u.csv:0-6"), torch.tensor(expected))


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()[1:]


@pytest.mark.parametrize(
    ("name", "size", "hint"),
    [("t.csv", 64, "numpy.save"), ("t.json", 16, '"file"'), ("t.txt", 16, "shorter")],
)
def test_text_that_is_too_long_is_not_read(tmp_path: Path, name: str, size: int, hint: str) -> None:
    path = tmp_path / name
    with open(path, "wb") as file:
        file.write(b"1,2\n")
        file.truncate(4 << 30)  # takes no room on the disk
    model = replace(ANY, own_text=TextRecipe(lambda texts: torch.zeros(1), "zeros"))
    with memory_below(3 * size * MEBIBYTE), refused(InputError, f"{size} MiB", hint=hint):
        build_batch(model, str(path))


def test_json_of_many_values_is_refused_and_of_many_numbers_in_a_tensor_is_not(
    tmp_path: Path,
) -> None:
    numbers = list(range(200_000))
    (tmp_path / "a.json").write_text(json.dumps({"x": {"tensor": numbers}}))
    assert torch.equal(value_of(tmp_path / "a.json")["x"], torch.tensor(numbers))
    (tmp_path / "b.json").write_text(json.dumps(numbers))
    with pytest.raises(InputError, match="100,000 values"):
        value_of(tmp_path / "b.json")


def of_zeros(path: Path) -> None:
    """A file of the kind that its ending says."""
    if path.suffix == ".npz":
        np.savez_compressed(path, a=np.zeros(100_000))
    elif path.suffix == ".pt2":
        program = torch.export.export(nn.Linear(2, 2), (torch.zeros(1, 2),))
        torch.export.save(program, path)
    else:
        torch.save({"weight": torch.zeros(300, 300), "bias": torch.zeros(300)}, path)


# What reads an archive, and the error with which it refuses one.
READERS: dict[str, tuple[Callable[[Path], object], type[HookscopeError]]] = {
    "input": (value_of, InputError),
    "weights": (
        lambda path: load_file_into(nn.Linear(300, 300), WeightsRequest(str(path))),
        WeightsFileError,
    ),
    "target": (lambda path: read_target(str(path)), LossError),
    "model": (lambda path: load(str(path)), RequestError),
}


ARCHIVES = [("input", "a.npz"), ("input", "a.pt"), ("weights", "a.pt"), ("target", "a.pt")]
ARCHIVES += [("model", "a.pt2")]


@pytest.mark.parametrize(("reader", "name"), ARCHIVES)
def test_an_archive_that_unpacks_to_gigabytes_is_refused_wherever_one_is_read(
    tmp_path: Path, reader: str, name: str
) -> None:
    (read, error), path = READERS[reader], tmp_path / name
    of_zeros(path)
    if reader != "target":  # which is a single tensor
        read(path)
    swollen(path)
    with refused(error, "1 GB", status=2):
        read(path)
    if reader == "input":
        (tmp_path / "a.json").write_text(f'{{"x": {{"file": "{name}"}}}}')
        with refused(error, "1 GB", hint="compression"):
            read(tmp_path / "a.json")


@pytest.mark.exhaustive  # the directory of those above says that they are large, and this one is
@pytest.mark.slow
def test_a_real_bomb_takes_no_memory(tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("a.npy", "w", force_zip64=True) as record,
    ):
        header = {"descr": "<f4", "fortran_order": False, "shape": (300 * MEBIBYTE,)}
        np.lib.format.write_array_header_1_0(record, header)
        for _ in range(1200):
            record.write(bytes(MEBIBYTE))
    resource = pytest.importorskip("resource")
    unit = 1 if sys.platform == "darwin" else 1024  # bytes
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match="1 GB"):
        value_of(tmp_path / "a.npz")
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit < 200_000_000


def test_a_compressed_checkpoint_gives_the_weights_that_were_saved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    source, target = nn.Linear(50, 50), nn.Linear(50, 50)
    torch.save(source.state_dict(), tmp_path / "w.pth")
    rezip(tmp_path / "w.pth", tmp_path / "w.pth", packing=zipfile.ZIP_DEFLATED)
    load_file_into(target, WeightsRequest(str(tmp_path / "w.pth")))
    assert torch.equal(target.weight, source.weight)
    assert torch.equal(target.bias, source.bias)


def test_an_archive_of_a_million_records_is_not_listed(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save(torch.zeros(2), path)
    data = bytearray(path.read_bytes())
    end = data.rfind(b"PK\x05\x06")
    large = data.rfind(b"PK\x06\x06")  # PyTorch writes it in small archives too
    struct.pack_into("<L", data, end + 12, 2**26)
    if large >= 0:
        struct.pack_into("<Q", data, large + 40, 2**26)
    path.write_bytes(data)
    for name in ("input", "weights"):
        with pytest.raises((InputError, WeightsError), match="32 MiB"):
            READERS[name][0](path)


class Counting(io.BytesIO):
    """Counts the bytes that are read of it."""

    taken = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.taken += len(data)
        return data


def test_a_pickle_is_looked_at_as_far_as_it_may_be_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "MOST_INSTRUCTIONS", 1000)
    file = Counting(b"\x80\x02" + b"N0" * 100_000 + b"N.")
    with pytest.raises(pickles.LongPickle):
        pickles.list_globals(file)
    assert file.taken < 3000


def test_a_pickle_of_too_many_instructions_is_refused_wherever_one_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.pt"
    torch.save({"weight": torch.zeros(1)}, path)
    numbers = pickle.dumps([None] * 4000, 2)  # in place of its own

    def change(name: str, data: bytes) -> bytes:
        return numbers if name.endswith("data.pkl") else data

    rezip(path, path, change, packing=zipfile.ZIP_DEFLATED)
    monkeypatch.setattr(pickles, "MOST_INSTRUCTIONS", 1000)
    assert filekinds.describe_file(str(path))[0] == filekinds.LONG_PICKLE
    for read, error in READERS.values():
        with refused(error, "instructions", status=2):
            read(path)


def test_a_tensor_that_is_small_in_its_file_alone_is_refused(tmp_path: Path) -> None:
    torch.save(torch.ones(1).expand(10**6, 10**6), tmp_path / "a.pt")
    with pytest.raises(InputError, match="1 GB"):
        value_of(tmp_path / "a.pt")
    torch.save(torch.ones(1).expand(1000, 1000), tmp_path / "a.pt")
    found = value_of(tmp_path / "a.pt")
    assert isinstance(found, Tensor)
    assert found.shape == (1000, 1000)


def test_the_header_of_safetensors_is_not_read_beyond_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with open(path, "wb") as file:
        file.write((3 << 30).to_bytes(8, "little") + b"{")
        file.truncate(4 << 30)
    with memory_below(50 * MEBIBYTE):
        assert filekinds.describe_file(str(path))[0] == filekinds.TRUNCATED_SAFETENSORS
        with pytest.raises(InputError):
            value_of(path)


def test_a_target_of_an_absurd_shape_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    with open(path, "wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (10**8, 3)}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(bytes(80))
    with memory_below(50 * MEBIBYTE), pytest.raises(LossError, match="read"):
        read_target(str(path))
    np.save(path, np.arange(6.0).reshape(2, 3))
    assert torch.equal(read_target(str(path)), torch.arange(6.0, dtype=torch.float64).reshape(2, 3))
