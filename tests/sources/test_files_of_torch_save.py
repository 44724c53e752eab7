"""Files of torch.save: whole models are opened with ``trust``, and with a torch whose reader of
pickles has a hole, weights are not given to it.
"""

from __future__ import annotations

import json
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
from tests.refusals import refused

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def saved(folder: Path, wrapped: bool) -> tuple[nn.Module, Path]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    torch.save({"epoch": 3, "net": model} if wrapped else model, folder / "whole.pt")
    return model, folder / "whole.pt"


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_trusted_file_is_a_model(tmp_path: Path, wrapped: bool) -> None:
    model, path = saved(tmp_path, wrapped)
    capture = hookscope.capture(path, input=X, trust=True)
    torch.testing.assert_close(capture["0"], model[0](X), rtol=0, atol=0)


def test_without_trust_or_without_a_model_a_file_is_refused(tmp_path: Path) -> None:
    _, path = saved(tmp_path, wrapped=False)
    with refused(ModelError, hint="author"):
        hookscope.capture(path, input=X)
    torch.save({"a": Path("x"), "b": torch.ones(2)}, path)
    with pytest.raises(ModelError, match="a dict"):
        hookscope.capture(path, input=X, trust=True)


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the installed torch count as one with the hole; its reader must not run."""
    monkeypatch.setattr(torch_release, "_READS_PICKLES", (99, 0))

    def load(*args: Any, **options: Any) -> Any:
        raise AssertionError("torch.load was called")

    monkeypatch.setattr(torch, "load", load)


LAYERS = "nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 2)"


@pytest.fixture
def net(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(f"from torch import nn\nnet = nn.Sequential({LAYERS})\n")
    return f"{tmp_path}/net.py:net"


@pytest.mark.usefixtures("older")
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("wrapped", [True, False])
def test_weights_have_the_bits_that_were_saved(
    net: str, tmp_path: Path, zipped: bool, wrapped: bool
) -> None:
    saved = hookscope.load_model(net, seed=1).module.state_dict()
    content = {"epoch": 3, "state_dict": saved} if wrapped else saved
    path = f"{tmp_path}/w.pth"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    loaded = hookscope.load_model(net, weights=path).module.state_dict()
    assert list(loaded) == list(saved)
    assert all(same_bits(loaded[name], value) for name, value in saved.items())


@pytest.mark.usefixtures("older")
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


@pytest.mark.usefixtures("older")
def test_a_pickle_of_python_objects_is_refused(net: str, tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "w.pth")
    with pytest.raises(WeightsFileError):
        hookscope.load_model(net, weights=f"{tmp_path}/w.pth")


@pytest.mark.usefixtures("older")
def test_inputs_and_targets_of_torch_save_are_refused_with_what_to_do(
    net: str, tmp_path: Path
) -> None:
    batch, path = torch.randn(1, 1, 8, 8), f"{tmp_path}/x.pt"
    torch.save(batch, path)
    np.save(tmp_path / "x.npy", batch.numpy())
    with pytest.raises(InputError, match=r"2\.10"):
        hookscope.capture(net, input=path)
    with pytest.raises(LossError):
        hookscope.grads(net, input=f"{tmp_path}/x.npy", loss="mse", target=path)
    assert hookscope.capture(net, input=f"{tmp_path}/x.npy").records


@pytest.mark.usefixtures("older")
def test_a_folder_of_transformers_must_have_safetensors(tmp_path: Path) -> None:
    import transformers

    made = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9
    )
    made.architectures = ["BertModel"]
    made.save_pretrained(tmp_path)
    weights = transformers.BertModel(made).state_dict()
    torch.save(weights, tmp_path / "pytorch_model.bin")
    with pytest.raises(WeightsFileError):
        hookscope.load_model(f"hf:{tmp_path}")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == 9
    loaded = hookscope.load_model(f"hf:{tmp_path}").module.state_dict()
    assert all(same_bits(loaded[name], value) for name, value in weights.items())


@pytest.mark.usefixtures("older")
def test_an_exported_program_needs_trust(repo: Path) -> None:
    with pytest.raises(ModelError, match="would run code"):
        hookscope.load_model(repo / "sample_models" / "digits_exported.pt2")
