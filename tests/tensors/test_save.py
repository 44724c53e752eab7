"""Files of results: what goes in comes out, and what is not such a file is refused."""

from __future__ import annotations

import json
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
from hookscope.errors import ResultsFileError
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
    tensors = {"x": torch.ones(2, requires_grad=True)}
    size = store.write_tensors(tmp_path / "a", tensors, {"records": []})
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


def noted(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda info: info.update(stored_as={name: "pairs of reals, from complex128"})


DAMAGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no JSON": lambda info: "{",
    "too deep": lambda info: "[" * 100_000,
    "a list": lambda info: "[1]",
    "notes in a list": lambda info: info.update(stored_as=[]),
    "a later schema": lambda info: info.update(schema=2),
    "no schema": lambda info: info.pop("schema") and None,
    "a note of no tensor": noted("y"),
    "pairs of three": noted("x"),
    "pairs of integers": noted("n"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_metadata_are_refused_with_the_file(tmp_path: Path, damage: str) -> None:
    tensors = {"x": torch.ones(2, 3), "n": torch.ones(3, 2, dtype=torch.int64)}
    path = rewritten(tmp_path / "a", DAMAGES[damage], **tensors)
    reason = {"a later schema": "schema 2", "no schema": "schema None"}.get(damage, "damaged")
    for read in (hookscope.load, store.read_tensors, read_header):
        with pytest.raises(ResultsFileError, match=f"{path}.*{reason}"):
            read(path)


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


def shard(mark: str, records: bool = False) -> Callable[[dict[str, Any]], None]:
    def change(info: dict[str, Any]) -> None:
        info[mark] = []
        if not records:
            del info["records"]

    return change


def test_what_is_no_file_of_results_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text("{}")
    save_file({"x": torch.ones(2)}, tmp_path / "foreign", {"format": "pt"})
    for mark in ("rows", "keys"):
        rewritten(tmp_path / mark, shard(mark), x=torch.ones(1))
    for name, hint in (
        *(("none", ""), ("foreign", ""), (".", "hookscope capture")),
        ("out", f"hookscope export {tmp_path / 'out'}"),
        *((mark, f"hookscope show {tmp_path}/") for mark in ("rows", "keys")),
    ):
        with pytest.raises(ResultsFileError, match=str(tmp_path / name)) as caught:
            store.read_tensors(tmp_path / name)
        assert hint in caught.value.hint
    whole = rewritten(tmp_path / "t", shard("rows", records=True), x=torch.ones(1))
    assert list(store.read_tensors(whole)[0]) == ["x"]


def test_a_shard_in_the_working_folder_is_told_with_that_folder(
    tmp_path: Path, monkeypatch
) -> None:
    rewritten(tmp_path / "s", shard("rows"), x=torch.ones(1))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ResultsFileError) as caught:
        store.read_tensors("s")
    assert "hookscope show ./" in caught.value.hint


def test_the_text_in_a_file_is_in_one_order_whatever_order_it_was_told_in(tmp_path: Path) -> None:
    tensors = {"x": torch.ones(1)}
    store.write_tensors(tmp_path / "a", tensors, {"records": [], "a": {"z": 1, "b": 2}})
    store.write_tensors(tmp_path / "b", tensors, {"a": {"b": 2, "z": 1}, "records": []})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert list(raw(tmp_path / "a")[1]) == ["a", "records", "schema"]
