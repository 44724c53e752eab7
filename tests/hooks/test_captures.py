"""The file of results gives back what went in: any structure and dtype, in the same bytes."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor, nn

import hookscope
from hookscope.errors import StoreError
from hookscope.hooks.capture import Capture
from tests.hooks.recordings import recorded
from tests.oracle.by_hand import same_bits
from tests.zoo import Module, tensors_in

DTYPES = [
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.complex64, torch.complex128, torch.complex32),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]


def tensors() -> st.SearchStrategy[Tensor]:
    shapes = st.lists(st.integers(0, 3), max_size=3)

    def make(dtype: torch.dtype, shape: list[int], seed: int) -> Tensor:
        source = torch.Generator().manual_seed(seed)
        return (torch.randn(shape, generator=source) * 3).to(dtype)

    return st.builds(make, st.sampled_from(DTYPES), shapes, st.integers(0, 99))


def structures() -> st.SearchStrategy[Any]:
    leaves = tensors() | st.none() | st.integers() | st.text(max_size=3)
    keys = st.text(max_size=4) | st.integers(0, 3)
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(keys, inner, max_size=3)
        ),
        max_leaves=8,
    )


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@given(structures())
def test_any_structure_and_dtype_comes_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, value: Any
) -> None:
    with hookscope.record(net := Module(lambda self, x: value)) as capture:
        net(torch.zeros(1))
    path = tmp_path_factory.mktemp("round") / "trip.safetensors"
    capture.save(path)
    again = hookscope.load(path)
    expected = tensors_in(value)
    assert len(again) == len(expected)
    assert list(again) == list(capture)
    assert all(map(same_bits, again.values(), expected))
    assert again.records == capture.records
    assert [r.stats for r in again.records] == [r.stats for r in capture.records]
    assert (again.coverage, again.absent) == (capture.coverage, capture.absent)


def small() -> Capture:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    capture = recorded(net, torch.ones(1, 4), grads=True)
    return capture


def test_a_file_opens_with_safetensors_alone(tmp_path: Path) -> None:
    capture = small()
    capture.save(tmp_path / "a")
    with safe_open(tmp_path / "a", framework="pt") as opened:
        assert list(opened.metadata()) == ["hookscope"]
        info = json.loads(opened.metadata()["hookscope"])
        assert [r["key"] for r in info["records"]] == list(capture)
        assert all(same_bits(opened.get_tensor(key), capture[key]) for key in capture)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_views_conjugates_sparse_and_quantized_tensors_are_stored_by_value(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    kept = {
        "view": base.T[1:],
        "conj": torch.tensor([1 + 2j]).conj(),
        "neg": torch.tensor([1 + 2j]).conj().imag,
        "expanded": base[:1].expand(3, 4),
        "sparse": base.to_sparse(),
        "quantized": torch.quantize_per_tensor(base, 0.5, 0, torch.quint8),
    }
    with hookscope.record(net := Module(lambda self, x: kept)) as capture:
        net(torch.zeros(1))
    capture.save(tmp_path / "a")
    again = hookscope.load(tmp_path / "a")
    plain = {**kept, "sparse": base, "quantized": kept["quantized"].dequantize()}
    for name, tensor in plain.items():
        value = tensor.resolve_conj().resolve_neg()
        assert torch.equal(again[f"./output.{name}"], value), name
        if name not in ("sparse", "quantized"):
            assert torch.equal(capture[f"./output.{name}"], value), name
    assert again.records[-1].dtype == "quint8"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on file sizes")
def test_a_full_disk_leaves_the_older_file_and_no_part_of_the_new(tmp_path: Path) -> None:
    import resource  # which Windows does not have

    path = tmp_path / "a.safetensors"
    small().save(path)
    before = path.read_bytes()
    with hookscope.record(net := nn.Linear(64, 4096)) as capture:
        net(torch.ones(64, 64))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StoreError, match="Cannot write"):
            capture.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.safetensors"]


def test_a_folder_that_is_missing_or_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "no" / "a", tmp_path / "file" / "a", tmp_path):
        with pytest.raises(StoreError, match="Cannot write"):
            small().save(path)


def test_readers_never_see_a_part_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    capture = small()
    capture.save(path)
    stop = threading.Event()

    def rewrite() -> None:
        while not stop.is_set():
            capture.save(path)

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        for _ in range(50):
            assert list(hookscope.load(path)) == list(capture)
    finally:
        stop.set()
        writer.join()
