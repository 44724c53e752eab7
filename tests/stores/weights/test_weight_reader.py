"""Parts of tensors in files of weights, and which tensors a KEY selects."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from hookscope.errors import RequestError
from hookscope.file_analysis import weight_reader
from hookscope.file_analysis.weight_reader import WeightReader
from hookscope.specs.tensor_key import choose_keys, modules_above
from hookscope.stores.weights.open_weights import open_weights

VALUES = np.random.default_rng(0).standard_normal((9, 4, 5, 3)).astype(np.float32)
S = np.s_


@pytest.fixture
def reader(tmp_path: Path) -> WeightReader:
    save_file({"conv.weight": VALUES}, tmp_path / "a.safetensors")
    return WeightReader(open_weights(tmp_path / "a.safetensors"))


@pytest.mark.parametrize("at_once", [1, 10, 47, 10_000])
@pytest.mark.parametrize(
    "index",
    [
        *(S[3,], S[..., 0], S[::-1,], S[5:, :, ::2, -1], S[8:1:-3, 1], S[:, 1:2, :, ::-2]),
        *(S[...,], S[0, 0, 0, 0], S[3:3,], S[2, ..., 1:], S[::4, ::-3]),
    ],
    ids=str,
)
def test_a_part_is_read_in_rows(
    reader: WeightReader, monkeypatch: pytest.MonkeyPatch, index, at_once: int
) -> None:
    monkeypatch.setattr(weight_reader, "PART_ELEMENTS", at_once)
    blocks = [block.copy() for block in reader.blocks("conv.weight", index)]
    part = np.asarray(VALUES[index])
    got = np.concatenate(blocks) if blocks else np.empty(0, np.float32)
    assert np.array_equal(got, part.ravel())
    assert reader.shape("conv.weight", index) == part.shape
    if index != (...,):
        assert max(map(len, blocks), default=0) <= max(at_once, 1)


def test_a_slice_outside_the_tensor_is_refused(reader: WeightReader) -> None:
    with pytest.raises(RequestError, match="9x4x5x3"):
        reader.shape("conv.weight", (9,))


NAMES = ("bn.weight", "layer1.0.conv1.weight", "layer1.0.conv1.bias", "layer1.1.conv1.weight")


@pytest.mark.parametrize(
    ("key", "chosen"),
    [
        ("bn.weight", [0]),
        ("bn", [0]),
        ("layer1", [1, 2, 3]),
        ("layer1.0", [1, 2]),
        ("layer1.*.conv1", [1, 2, 3]),
        ("*.bias", [2]),
        ("layer1.{0,1}.conv?.weight", [1, 3]),
    ],
)
def test_a_key_is_a_name_a_module_or_a_glob(key: str, chosen: list[int]) -> None:
    found = choose_keys([key], NAMES, "a", holders=modules_above)
    assert found == [(NAMES[n], (...,)) for n in chosen]


def test_names_with_slashes_have_modules_too() -> None:
    [(name, index)] = choose_keys(
        ["params/Dense_0[1]"], ["params/Dense_0/kernel"], "a", "", modules_above
    )
    assert (name, index) == ("params/Dense_0/kernel", (1,))
