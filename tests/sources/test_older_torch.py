"""With a torch whose reader of pickles has a hole, files of torch.save are not given to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import hookscope
from hookscope.errors import InputError, LossError, ModelError, WeightsFileError
from hookscope.tensors import torch_release
from tests.oracle.by_hand import same_bits


@pytest.fixture(autouse=True)
def older(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the installed torch count as one with the hole; its reader must not run."""
    monkeypatch.setattr(torch_release, "_READS_PICKLES", (99, 0))

    def load(*args: Any, **options: Any) -> Any:
        raise AssertionError("torch.load was called")

    monkeypatch.setattr(torch, "load", load)
    yield


NET = """
from torch import nn
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 2))
"""


@pytest.fixture
def net(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(NET)
    return f"{tmp_path}/net.py:Net"


def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    layers = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 2)
    return nn.Sequential(*layers).state_dict()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("wrapped", [True, False])
def test_weights_have_the_bits_that_were_saved(
    net: str, tmp_path: Path, zipped: bool, wrapped: bool
) -> None:
    saved = state()
    content = {"epoch": 3, "state_dict": saved} if wrapped else saved
    path = f"{tmp_path}/w.pth"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    loaded = hookscope.load_model(net, weights=path).module.state_dict()
    assert list(loaded) == list(saved)
    assert all(same_bits(loaded[name], value) for name, value in saved.items())


def test_weights_of_all_dtypes_have_their_bits(tmp_path: Path) -> None:
    from hookscope.sources.checkpoint import _read_without_torch

    dtypes = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.bool)
    saved = {str(dtype): torch.randn(5, 4).T.to(dtype) for dtype in dtypes}
    saved |= {"scalar": torch.tensor(2), "none": torch.empty(0, 3), "part": torch.ones(9)[2:5]}
    torch.save(saved, tmp_path / "w.pth")
    read = _read_without_torch(str(tmp_path / "w.pth"))
    assert read.keys() == saved.keys()
    for name, value in saved.items():
        assert read[name].dtype == value.dtype and read[name].shape == value.shape
        assert read[name].contiguous().view(-1).tolist() == value.contiguous().view(-1).tolist()


def test_a_pickle_of_python_objects_is_refused(net: str, tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "w.pth")
    with pytest.raises(WeightsFileError):
        hookscope.load_model(net, weights=f"{tmp_path}/w.pth")


def test_inputs_and_targets_of_torch_save_are_refused_with_what_to_do(
    net: str, tmp_path: Path
) -> None:
    batch, path = torch.randn(1, 1, 8, 8), f"{tmp_path}/x.pt"
    torch.save(batch, path)
    np.save(tmp_path / "x.npy", batch.numpy())
    with pytest.raises(InputError, match=r"is not opened: with torch .* could run code") as caught:
        hookscope.capture(net, input=path)
    assert "2.10" in str(caught.value)
    with pytest.raises(LossError, match="is not opened"):
        hookscope.grads(net, input=f"{tmp_path}/x.npy", loss="mse", target=path)
    assert hookscope.capture(net, input=f"{tmp_path}/x.npy").records


def test_a_folder_of_transformers_must_have_safetensors(tmp_path: Path) -> None:
    import transformers

    made = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9
    )
    made.architectures = ["BertModel"]
    made.save_pretrained(tmp_path)
    weights = transformers.BertModel(made).state_dict()
    torch.save(weights, tmp_path / "pytorch_model.bin")
    with pytest.raises(WeightsFileError, match="is not opened"):
        hookscope.load_model(f"hf:{tmp_path}")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == 9
    loaded = hookscope.load_model(f"hf:{tmp_path}").module.state_dict()
    assert all(same_bits(loaded[name], value) for name, value in weights.items())


def test_an_exported_program_needs_trust(tmp_path: Path) -> None:
    program = torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),))
    torch.export.save(program, tmp_path / "net.pt2")
    with pytest.raises(ModelError, match="would run code"):
        hookscope.load_model(f"{tmp_path}/net.pt2")
