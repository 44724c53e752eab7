"""The same weights saved in every format, and what the format's own library reads from them."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from hookscope.stores.weights.weight_set import WeightSet
from tests.archives import rezip

State = Mapping[str, torch.Tensor]
EIGHTS = (
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    torch.float8_e8m0fnu,
)


def state() -> dict[str, torch.Tensor]:
    """Tensors of the dtypes that all formats have, in an order that is not that of their names."""
    return {
        "layers.10.weight": torch.randn(3, 4),
        "layers.2.weight": torch.randn(5, 3, 2).double(),
        "layers.2.bias": torch.randn(5).half(),
        "embed": torch.arange(6, dtype=torch.int64).reshape(2, 3),
        "mask": torch.tensor([True, False]),
        "count": torch.tensor(7, dtype=torch.int32),
        "empty": torch.zeros(0, 3),
        "small": torch.arange(200, dtype=torch.uint8),
    }


def views() -> dict[str, torch.Tensor]:
    """Tensors that ``torch.save`` stores with strides, and dtypes that numpy does not have."""
    base = torch.randn(6, 8)
    return {
        "transposed": base.t(),
        "slice": base[1:4, 2:7:2],
        "row": base[3],
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
        "bfloat16": torch.randn(40).bfloat16(),
        "complex64": torch.randn(3, 2, dtype=torch.complex64),
        "complex128": torch.randn(3, dtype=torch.complex128).reshape(3, 1),
        "uint16": torch.arange(5).to(torch.uint16),
        **{str(d).removeprefix("torch."): torch.arange(-8, 8).float().to(d) for d in EIGHTS},
    }


def save_safetensors(tensors: State, path: Path) -> Path:
    safetensors.torch.save_file({name: t.contiguous() for name, t in tensors.items()}, path)
    return path


def save_set(tensors: State, folder: Path, index: bool = True) -> Path:
    """Two files with an index, or numbered without one."""
    folder.mkdir()
    names = list(tensors)
    listed = {}
    for n, part in enumerate((names[::2], names[1::2]), 1):
        file = folder / f"model-{n:05}-of-00002.safetensors"
        save_safetensors({name: tensors[name] for name in part}, file)
        listed |= dict.fromkeys(part, file.name)
    if index:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    return folder


def save_torch(tensors: State, path: Path, old: bool = False) -> Path:
    torch.save(dict(tensors), path, _use_new_zipfile_serialization=not old)
    return path


def repack(path: Path, packed: Path) -> Path:
    """Write an archive again with compression."""
    return rezip(path, packed, packing=zipfile.ZIP_DEFLATED)


def save_npz(tensors: State, path: Path, compressed: bool = False) -> Path:
    save = np.savez_compressed if compressed else np.savez
    save(path, **{name: tensor.numpy() for name, tensor in tensors.items()})
    return path


def save_gguf(
    path: Path,
    tensors: Mapping[str, np.ndarray],
    lists: Mapping[str, list[Any]] | None = None,
    **kinds: Any,
) -> Path:
    """Write a GGUF file with some metadata; what is quantised already has its ``kinds``."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    for name, entries in (lists or {}).items():
        writer.add_array(name, entries)
    for name, values in tensors.items():
        writer.add_tensor(name, values, raw_dtype=kinds.get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# Writes a state into a folder, and returns the path to open.
FORMATS: dict[str, Callable[[State, Path], Path]] = {
    "safetensors": lambda t, folder: save_safetensors(t, folder / "a.safetensors"),
    "set with an index": lambda t, folder: save_set(t, folder / "set"),
    "index": lambda t, folder: save_set(t, folder / "set") / "model.safetensors.index.json",
    "numbered set": lambda t, folder: save_set(t, folder / "set", index=False),
    "torch": lambda t, folder: save_torch(t, folder / "a.pth"),
    "old torch": lambda t, folder: save_torch(t, folder / "a.pth", old=True),
    "packed torch": lambda t, folder: repack(
        save_torch(t, folder / "plain.pth"), folder / "packed.pth"
    ),
    "npz": lambda t, folder: save_npz(t, folder / "a.npz"),
    "packed npz": lambda t, folder: save_npz(t, folder / "a.npz", compressed=True),
}


def widened(tensor: torch.Tensor) -> np.ndarray:
    """The values as numpy has them: a dtype that it does not have as float32, by torch."""
    wide = tensor.float() if tensor.dtype in (torch.bfloat16, *EIGHTS) else tensor
    return np.array(wide.detach().numpy(), order="C")


def assert_same(weights: WeightSet, expected: State) -> None:
    """Every tensor is there, bit for bit, whole and in blocks."""
    assert set(weights) == set(expected)
    for name, tensor in expected.items():
        found, wanted = weights.tensors[name], widened(tensor)
        assert f"torch.{found.dtype}" == str(tensor.dtype), name
        assert found.shape == tuple(tensor.shape), name
        assert found.nbytes == tensor.numel() * tensor.element_size(), name
        values = weights[name]
        assert (values.dtype, values.shape) == (wanted.dtype, wanted.shape), name
        assert values.tobytes() == wanted.tobytes(), name
        blocks = [block.copy() for block in weights.blocks(name)]
        assert all(block.ndim == 1 for block in blocks), name
        assert b"".join(block.tobytes() for block in blocks) == wanted.tobytes(), name
