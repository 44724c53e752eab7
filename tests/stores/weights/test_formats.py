"""Every format gives the tensors that its own library reads, bit for bit."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import safetensors
import torch
from gguf import GGMLQuantizationType as Kind

from hookscope.errors import RequestError, WeightsFileError
from hookscope.stores.weights import quantised_values
from hookscope.stores.weights.open_weights import is_weights, open_weights
from tests.refusals import refused
from tests.stores.weights.saved_weights import (
    EIGHTS,
    FORMATS,
    assert_same,
    repack,
    save_gguf,
    save_safetensors,
    save_set,
    save_torch,
    state,
    views,
)

QUANTISED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
QUANTISED += ("IQ4_NL", "IQ4_XS", "TQ1_0", "MXFP4")


@pytest.mark.parametrize("kind", FORMATS)
def test_a_state_dict_is_read_bit_for_bit(tmp_path: Path, kind: str) -> None:
    saved = state()
    path = FORMATS[kind](saved, tmp_path)
    assert is_weights(str(path))
    assert_same(open_weights(path), saved)


@pytest.mark.parametrize("kind", ["torch", "old torch", "packed torch"])
def test_views_of_a_storage_are_read_with_their_strides(tmp_path: Path, kind: str) -> None:
    saved = views()
    if kind == "old torch":  # torch itself does not read newer dtypes from such a file
        saved = {n: t for n, t in saved.items() if t.dtype not in (*EIGHTS, torch.uint16)}
    path = FORMATS[kind](saved, tmp_path)
    loaded = torch.load(path, weights_only=True)
    assert_same(open_weights(path), loaded)
    assert list(open_weights(path)) == list(loaded)


def test_dtypes_of_safetensors_are_read_as_its_library_reads_them(tmp_path: Path) -> None:
    saved = {name: t for name, t in views().items() if name != "complex128"}
    path = save_safetensors(saved, tmp_path / "a.safetensors")
    with safetensors.safe_open(path, framework="pt") as file:
        weights = open_weights(path)
        assert_same(weights, {name: file.get_tensor(name) for name in weights})


def test_tensors_come_in_the_order_of_the_file_or_of_safetensors_by_name(tmp_path: Path) -> None:
    saved = state()
    weights = open_weights(save_torch(saved, tmp_path / "a.pth"))
    assert list(weights) == list(saved)
    path = save_safetensors(saved, tmp_path / "a.safetensors")
    by_name = ["count", "embed", "empty", "layers.2.bias", "layers.2.weight", "layers.10.weight"]
    assert list(open_weights(path)) == [*by_name, "mask", "small"]
    names = list(open_weights(save_set(saved, tmp_path / "set")))
    assert names.index("layers.2.weight") < names.index("layers.10.weight")


@pytest.mark.parametrize(
    "index", [(0,), (-1, 1), (slice(None, None, -2),), (..., 1), (slice(2, 0, -1), slice(1, 3))]
)
@pytest.mark.parametrize("name", ["transposed", "slice", "channels_last", "expanded"])
def test_a_part_of_a_tensor_is_what_numpy_gives(tmp_path: Path, name: str, index) -> None:
    saved = views()
    weights = open_weights(save_torch(saved, tmp_path / "a.pth"))
    expected = saved[name].numpy()[index]
    assert np.array_equal(weights.tensor(name, index), expected)
    assert weights.tensor(name, index).shape == expected.shape


def test_tied_tensors_are_marked_and_counted_once(tmp_path: Path) -> None:
    weight = torch.randn(4, 5)
    saved = {"embed": weight, "head": weight, "turned": weight.t(), "copy": weight.clone()}
    weights = open_weights(save_torch(saved, tmp_path / "a.pth"))
    tied = {name: tensor.tied_to for name, tensor in weights.tensors.items()}
    assert tied == {"embed": "", "head": "embed", "turned": "", "copy": ""}
    assert (weights.parameters, weights.nbytes) == (60, 240)


def test_npz_lists_no_objects_and_numbers_in_either_byte_order(tmp_path: Path) -> None:
    arrays = {
        "big": np.arange(5, dtype=">f4"),
        "columns": np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)),
        "scalar": np.array(2.5),
        "objects": np.array([{"a": 1}], dtype=object),
        "texts": np.array(["x"]),
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)
        weights = open_weights(tmp_path / "a.npz")
        assert list(weights) == ["big", "columns", "scalar"]
        assert "objects, texts" in weights.notes[0]
        for name in weights:
            assert np.array_equal(weights[name], arrays[name])
            assert np.array_equal(np.concatenate(list(weights.blocks(name))), arrays[name].ravel())


def test_an_npy_file_has_one_array_of_its_name(tmp_path: Path) -> None:
    np.save(tmp_path / "mean.npy", np.arange(6).reshape(2, 3))
    weights = open_weights(tmp_path / "mean.npy")
    assert list(weights) == ["mean"]
    assert weights["mean"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "a.gguf"
    source = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(2048)
    writer.add_array("tokenizer.ggml.tokens", [f"t{n}" for n in range(1000)])
    writer.add_array("scores", [0.5, 1.5])
    for dtype in (np.float32, np.float16, np.float64, np.int8, np.int32):
        values = (source.normal(size=(3, 5)) * 50).astype(dtype)
        writer.add_tensor(f"{np.dtype(dtype)}.weight", values)
    for name in ("BF16", *QUANTISED):
        elements, size = gguf.GGML_QUANT_SIZES[Kind[name]]
        raw = source.integers(0, 256, (6, 4, 512 // elements * size), dtype=np.uint8)
        writer.add_tensor(f"{name.lower()}.weight", raw, raw_dtype=Kind[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gguf_is_read_as_its_package_reads_and_dequantises_it(gguf_file: Path) -> None:
    weights = open_weights(gguf_file)
    reader = gguf.GGUFReader(gguf_file)
    assert list(weights) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        own = weights.tensors[tensor.name]
        assert own.shape == tuple(int(n) for n in tensor.shape[::-1])
        assert own.nbytes == tensor.n_bytes
        plain = tensor.tensor_type.name not in ("BF16", *QUANTISED)
        with np.errstate(all="ignore"):  # random bytes have scales that are infinite
            expected = (
                tensor.data if plain else gguf.dequantize(tensor.data, tensor.tensor_type)
            ).reshape(own.shape)
        assert weights[tensor.name].tobytes() == expected.tobytes(), tensor.name
    assert weights.tensors["q4_k.weight"].dtype == "q4_k"
    assert weights.tensors["bf16.weight"].dtype == "bfloat16"


def test_metadata_of_gguf_are_texts_and_long_lists_are_cut(gguf_file: Path) -> None:
    metadata = open_weights(gguf_file).metadata
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.context_length"] == "2048"
    assert metadata["tokenizer.ggml.tokens"] == "[t0, t1, t2, t3, ...] (1,000 values)"
    assert metadata["scores"] == "[0.5, 1.5] (2 values)"


@pytest.mark.parametrize("name", ["q4_0.weight", "q6_k.weight", "float32.weight"])
def test_quantised_values_come_in_windows_and_in_parts(gguf_file: Path, name, monkeypatch) -> None:
    monkeypatch.setattr(quantised_values, "_DEQUANTISED", 2048)
    weights = open_weights(gguf_file)
    whole = weights[name]
    blocks = [block.copy() for block in weights.blocks(name)]
    assert len(blocks) > 1 or name == "float32.weight"
    assert np.concatenate(blocks).tobytes() == whole.tobytes()
    for index in ((0,), (-1, 2), (slice(2, 0, -1),), (..., 3), (slice(5, 1),), (1, slice(1, 3))):
        assert np.array_equal(weights.tensor(name, index), whole[index], equal_nan=True)


def test_gguf_without_its_package_lists_tensors_and_names_the_extra(gguf_file, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gguf.quants", None)
    weights = open_weights(gguf_file)
    assert weights["float32.weight"].shape == (3, 5)
    with refused(Exception, "needs the package gguf", hint="hookscope[gguf]"):
        weights.tensor("q4_0.weight")
    assert len(b"".join(block.tobytes() for block in weights.stored("q4_0.weight"))) == (
        weights.tensors["q4_0.weight"].nbytes
    )


def test_memory_of_blocks_does_not_grow_with_the_tensor(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_safetensors({"w": torch.zeros(1500, 2000), "t": torch.zeros(2)}, path)
    sizes = {block.nbytes for block in open_weights(path).blocks("w")}
    assert max(sizes) <= 1 << 22
    turned = save_torch({"w": torch.randn(2500, 8000).t()}, tmp_path / "a.pth")
    assert max(block.nbytes for block in open_weights(turned).blocks("w")) <= 1 << 26


def without_a_file(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()


def with_another_name(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("embed", "embedding"))


def with_a_name_twice(folder: Path) -> None:
    save_safetensors(state(), folder / "model-00002-of-00002.safetensors")


@pytest.mark.parametrize(
    ("index", "change", "said"),
    [
        (False, without_a_file, "1 of the 2"),
        (True, with_another_name, "'embedding'"),
        (False, with_a_name_twice, "00001.*00002"),
    ],
)
def test_the_files_of_a_set_belong_together(tmp_path: Path, index, change, said: str) -> None:
    folder = save_set(state(), tmp_path / "set", index=index)
    change(folder)
    with pytest.raises(WeightsFileError, match=said):
        open_weights(folder)


def test_pickled_sets_are_read_by_their_index(tmp_path: Path) -> None:
    saved = state()
    save_torch({"embed": saved["embed"]}, tmp_path / "pytorch_model-1.bin")
    save_torch({"mask": saved["mask"]}, tmp_path / "pytorch_model-2.bin")
    text = '{"weight_map": {"embed": "pytorch_model-1.bin", "mask": "pytorch_model-2.bin"}}'
    (tmp_path / "pytorch_model.bin.index.json").write_text(text)
    weights = open_weights(tmp_path)
    assert weights.kind == "torch.save, 2 files"
    assert_same(weights, {name: saved[name] for name in ("embed", "mask")})


def test_a_folder_with_weights_further_down_says_where(tmp_path: Path) -> None:
    (tmp_path / "unet").mkdir()
    save_safetensors(state(), tmp_path / "unet" / "model.safetensors")
    assert not is_weights(str(tmp_path))
    with refused(RequestError, str(tmp_path), hint=str(tmp_path / "unet")):
        open_weights(tmp_path)


def test_a_compressed_tensor_of_strides_is_read(tmp_path: Path) -> None:
    saved = {"w": torch.randn(300, 200).t(), "v": torch.randn(300)}
    packed = repack(save_torch(saved, tmp_path / "a.pth"), tmp_path / "b.pth")
    assert_same(open_weights(packed), saved)


def test_a_gguf_file_with_an_unknown_type_is_listed(tmp_path: Path) -> None:
    values = np.full((3, 16), 2, np.float32)
    path = save_gguf(tmp_path / "new.gguf", dict.fromkeys(("first", "second", "third"), values))
    data = bytearray(path.read_bytes())
    position = data.index(b"second") + len("second") + 4 + 2 * 8  # its rank, its shape
    assert data[position : position + 4] == bytes(4)
    data[position] = 241
    path.write_bytes(data)

    weights = open_weights(path)
    assert list(weights) == ["first", "second", "third"]
    assert weights.tensors["second"].dtype == "type 241"
    assert weights.tensors["second"].nbytes == 3 * 16 * 4
    [note] = weights.notes
    assert "second" in note and "241" in note
    assert weights["third"].tolist() == np.full((3, 16), 2).tolist()
    with pytest.raises(WeightsFileError, match="type 241"):
        weights["second"]
