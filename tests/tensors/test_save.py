"""Files of results: what goes in comes out, and what is not such a file is refused."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import hookscope
from hookscope.errors import RequestError, ResultsFileError, StoreError
from hookscope.files.atomic_files import replacement_file, write_bytes, write_text
from hookscope.specs.tensor_key import choose_keys, slice_text, split_slice
from hookscope.stores.capture_file import StoredTensor, read_header
from hookscope.tensors import save as store
from hookscope.tensors.nested import bits_of
from hookscope.tensors.tensor_stats import numpy_blocks
from tests.oracle.by_hand import same_bits

Z = torch.complex(torch.arange(6.0).reshape(2, 3), 1 + torch.arange(6.0).reshape(2, 3))
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda z: z,
    "conjugate": lambda z: z.conj(),
    "adjoint": lambda z: z.mH,
    "negative": lambda z: z.conj().imag,
    "real part": lambda z: z.real,
    "row": lambda z: z.conj()[1],
    "transposed": lambda z: z.T,
    "every other": lambda z: z[:, ::2],
}


def values_of(tensor: Tensor) -> np.ndarray[Any, Any]:
    return np.array(tensor.tolist())


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128])
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_stored_by_value(tmp_path: Path, dtype: torch.dtype, view: str) -> None:
    tensor = VIEWS[view](Z.to(dtype))
    store.write_tensors(tmp_path / "a", {"x": tensor}, {"records": []})
    found = store.read_tensors(tmp_path / "a")[0]["x"]
    assert found.dtype == tensor.dtype and found.shape == tensor.shape
    assert np.array_equal(values_of(found), values_of(VIEWS[view](Z)))


@pytest.mark.parametrize("view", VIEWS)
def test_the_bytes_of_a_view_are_those_of_its_values(view: str) -> None:
    tensor = VIEWS[view](Z)
    expected = values_of(tensor).astype(np.complex64 if tensor.is_complex() else np.float32)
    assert bits_of(tensor).numpy().tobytes() == expected.tobytes()
    joined = np.concatenate([block.ravel() for block in numpy_blocks(tensor)])
    assert np.array_equal(joined, values_of(tensor).ravel())


def test_what_is_not_stored_as_it_is_has_a_note(tmp_path: Path) -> None:
    tensors = {
        "plain": torch.ones(2),
        "sparse": torch.eye(2).to_sparse(),
        "wide": Z.to(torch.complex128),
    }
    store.write_tensors(tmp_path / "a", tensors, {"records": [], "more": 1})
    table, metadata = raw(tmp_path / "a")
    assert metadata["stored_as"] == {
        "sparse": "dense, from sparse_coo",
        "wide": "pairs of reals, from complex128",
    }
    assert (metadata["schema"], metadata["more"], table["wide"]["shape"]) == (1, 1, [2, 3, 2])
    read, info = store.read_tensors(tmp_path / "a")
    assert info == {"records": [], "more": 1}
    assert same_bits(read["wide"], tensors["wide"])
    assert torch.equal(read["sparse"], torch.eye(2))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_values_are_stored_as_the_floats_that_they_mean(tmp_path: Path) -> None:
    x = torch.quantize_per_tensor(torch.tensor([0.0, 0.6, 1.4]), 0.5, 0, torch.quint8)
    store.write_tensors(tmp_path / "a", {"x": x}, {"records": []})
    assert raw(tmp_path / "a")[1]["stored_as"] == {"x": "dequantized from quint8"}
    assert store.read_tensors(tmp_path / "a")[0]["x"].tolist() == [0.0, 0.5, 1.5]


def test_nothing_is_noted_where_all_is_stored_as_it_is(tmp_path: Path) -> None:
    size = store.write_tensors(
        tmp_path / "a", {"x": torch.ones(2, requires_grad=True)}, {"records": []}
    )
    assert "stored_as" not in raw(tmp_path / "a")[1]
    assert size == (tmp_path / "a").stat().st_size
    assert not store.read_tensors(tmp_path / "a")[0]["x"].requires_grad


def raw(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The table of a safetensors file and hookscope's own text in it, read by hand."""
    data = path.read_bytes()
    [length] = struct.unpack("<Q", data[:8])
    table = json.loads(data[8 : 8 + length])
    return table, json.loads(table.pop("__metadata__")["hookscope"])


def rewritten(path: Path, change: Callable[[dict[str, Any]], Any], **tensors: Tensor) -> Path:
    """A file of results whose metadata were changed by hand."""
    info: dict[str, Any] = {"schema": 1, "records": []}
    text = change(info)
    save_file(tensors, path, {"hookscope": json.dumps(info) if text is None else text})
    return path


DAMAGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no JSON": (lambda info: "{", "its metadata is damaged"),
    "too deep": (lambda info: "[" * 100_000, "its metadata is damaged"),
    "a list": (lambda info: "[1]", "its metadata is damaged"),
    "notes in a list": (lambda info: info.update(stored_as=[]), "its metadata is damaged"),
    "a later schema": (
        lambda info: info.update(schema=2),
        "has schema 2, but this version of hookscope reads",
    ),
    "no schema": (lambda info: info.pop("schema") and None, "has schema None"),
    "a note of no tensor": (
        lambda info: info.update(stored_as={"y": "pairs of reals, from complex128"}),
        "its metadata is damaged",
    ),
    "pairs of three": (
        lambda info: info.update(stored_as={"x": "pairs of reals, from complex128"}),
        "its metadata is damaged",
    ),
    "pairs of integers": (
        lambda info: info.update(stored_as={"n": "pairs of reals, from complex128"}),
        "its metadata is damaged",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_metadata_are_refused(tmp_path: Path, damage: str) -> None:
    change, sentence = DAMAGES[damage]
    tensors = {"x": torch.ones(2, 3), "n": torch.ones(3, 2, dtype=torch.int64)}
    path = rewritten(tmp_path / "a", change, **tensors)
    for read in (hookscope.load, store.read_tensors, read_header):
        with pytest.raises(ResultsFileError, match=sentence) as caught:
            read(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_pairs_of_reals_of_any_width_are_one_complex_tensor(tmp_path: Path, dtype: Any) -> None:
    path = rewritten(
        tmp_path / "a",
        lambda info: info.update(stored_as={"x": "pairs of reals, from complex"}),
        x=torch.tensor([[1.0, 2.0]], dtype=dtype),
    )
    assert values_of(store.read_tensors(path)[0]["x"]).tolist() == [1 + 2j]


def test_the_header_says_where_every_tensor_lies(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(3.0), "b": torch.arange(4).reshape(2, 2)}
    store.write_tensors(tmp_path / "file", tensors, {"records": []})
    data = (tmp_path / "file").read_bytes()
    places = read_header(tmp_path / "file").tensors
    assert {key: (place.dtype, place.shape) for key, place in places.items()} == {
        "a": ("F32", (3,)),
        "b": ("I64", (2, 2)),
    }
    for key, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        start = places[key].start
        assert data[start : start + size] == tensor.numpy().tobytes()
    assert isinstance(places["a"], StoredTensor)


def test_what_is_no_file_of_results_is_told_apart(tmp_path: Path) -> None:
    save_file({"x": torch.ones(2)}, tmp_path / "foreign")
    save_file({"x": torch.ones(2)}, tmp_path / "named", {"format": "pt"})
    for name in ("foreign", "named"):
        with pytest.raises(ResultsFileError, match="was not written by hookscope"):
            store.read_tensors(tmp_path / name)
    with pytest.raises(ResultsFileError, match=r"Cannot read .*: it is a folder\.") as caught:
        store.read_tensors(tmp_path)
    assert "hookscope capture" in caught.value.hint
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text("{}")
    with pytest.raises(ResultsFileError, match="a features folder") as caught:
        store.read_tensors(tmp_path / "out")
    assert f"hookscope export {tmp_path / 'out'}" in caught.value.hint


@pytest.mark.parametrize("mark", ["rows", "keys"])
def test_a_shard_is_no_capture(tmp_path: Path, mark: str) -> None:
    def shard(info: dict[str, Any]) -> None:
        del info["records"]
        info[mark] = []

    path = rewritten(tmp_path / "s", shard, x=torch.ones(1))
    with pytest.raises(ResultsFileError, match="part of a features folder") as caught:
        store.read_tensors(path)
    assert f"hookscope show {tmp_path}/" in caught.value.hint
    whole = rewritten(tmp_path / "t", lambda info: info.update({mark: []}), x=torch.ones(1))
    assert list(store.read_tensors(whole)[0]) == ["x"]


def test_saving_to_a_link_writes_the_file_behind_it(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "real.safetensors", tmp_path / "link.safetensors"
    target.write_bytes(b"old")
    link.symlink_to(target)
    store.write_tensors(link, {"x": torch.ones(1)}, {"records": []})
    assert link.is_symlink() and link.resolve() == target
    assert list(store.read_tensors(target)[0]) == ["x"]
    assert [path.name for path in tmp_path.iterdir() if path != target.parent] == [link.name]
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_a_dangling_link_comes_to_point_to_the_new_file(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "later")
    write_text(link, "text")
    assert link.is_symlink() and (tmp_path / "later").read_text() == "text\n"


def test_the_old_file_stands_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with replacement_file(path, "Again.") as scratch:
        assert scratch.parent.parent == tmp_path and scratch.stat().st_size == 0
        own = scratch.parent.name  # a folder: what is written beside the file goes with it
        assert own.startswith(".a.") and own.endswith(".part")
        scratch.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("error", [OSError("disk"), ValueError("value"), RuntimeError("else")])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: Any) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    expected = RuntimeError if isinstance(error, RuntimeError) else StoreError
    with pytest.raises(expected) as caught, replacement_file(path, "Do this."):
        raise error
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]
    if expected is StoreError:
        assert str(error) in str(caught.value) and str(path) in str(caught.value)
        assert caught.value.hint == "Nothing was written. Do this."


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o000])
def test_the_mode_of_a_file_is_that_of_any_new_one(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_text(tmp_path / "a", "")
        (tmp_path / "b").touch()
        assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode
    finally:
        assert os.umask(before) == mask


def test_the_size_in_bytes_is_returned(tmp_path: Path) -> None:
    assert write_text(tmp_path / "a", "é") == 3 == (tmp_path / "a").stat().st_size
    assert write_bytes(tmp_path / "b", b"\0\1") == 2


X = np.arange(60).reshape(3, 4, 5)


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-1",
        "0,1",
        "0,-1,2",
        ":",
        "1:",
        ":2",
        "1:3",
        "::2",
        "1::2",
        ":3:2",
        "-2:",
        "...",
        "...,1",
        "0,...",
        " 1 , 2",
        "0:0",
    ],
)
def test_a_slice_takes_what_numpy_takes(text: str) -> None:
    name, index = split_slice(f"a/output[{text}]")
    assert name == "a/output"
    assert np.array_equal(X[index], eval(f"X[{text}]"))  # numpy itself is the oracle
    assert np.array_equal(X[split_slice(f"a{slice_text(index)}")[1]], X[index])


def test_the_text_in_a_file_is_in_one_order_whatever_order_it_was_told_in(tmp_path: Path) -> None:
    store.write_tensors(
        tmp_path / "a", {"x": torch.ones(1)}, {"records": [], "a": {"z": 1, "b": 2}}
    )
    store.write_tensors(
        tmp_path / "b", {"x": torch.ones(1)}, {"a": {"b": 2, "z": 1}, "records": []}
    )
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert list(raw(tmp_path / "a")[1]) == ["a", "records", "schema"]


def test_a_module_with_a_slash_in_its_name_is_chosen_by_all_of_it(tmp_path: Path) -> None:
    keys = ["a/b/output", "a/c/output"]
    assert [key for key, _ in choose_keys(["a/b"], keys, "f")] == ["a/b/output"]
    with pytest.raises(RequestError) as caught:
        choose_keys(["a/bb"], keys, "f")
    assert "a/b" in caught.value.hint


def test_a_missing_file_is_told_with_the_systems_reason(tmp_path: Path) -> None:
    with pytest.raises(ResultsFileError, match=r"Cannot read .*none: .*[Nn]o such file"):
        store.read_tensors(tmp_path / "none")


def test_a_shard_in_the_working_folder_is_told_with_that_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shard(info: dict[str, Any]) -> None:
        del info["records"]
        info["rows"] = [0, 1]

    rewritten(tmp_path / "s", shard, x=torch.ones(1))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ResultsFileError) as caught:
        store.read_tensors("s")
    assert "hookscope show ./" in caught.value.hint
