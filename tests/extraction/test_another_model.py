"""Rows of two models are never mixed: a run is resumed only with the model that began it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hookscope
from hookscope.errors import RequestError

VALUES = TensorDataset(torch.rand(6, 4, generator=torch.Generator().manual_seed(0)))

SOURCE = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 2)
        with torch.no_grad():
            self.head.weight.fill_(1.0)
    def forward(self, x):
        return self.head(x) * 1
"""


def extract(model: nn.Module | str, out: Path, **more):
    more = {"layers": "*", "batch": 2, "shard_size": 1, "workers": 0} | more
    return hookscope.extract(model, out, input=VALUES, **more)


def cut_short(out: Path) -> None:
    (out / "rows-00000002.safetensors").unlink()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.norm(x))


@pytest.mark.parametrize("name", ["head.weight", "norm.running_mean"])
def test_a_module_with_other_values_cannot_go_on(tmp_path, name) -> None:
    net = Net()
    before = net.state_dict()[name].clone()
    extract(net, tmp_path / "out")
    cut_short(tmp_path / "out")
    net.state_dict()[name].copy_(before + 1)
    with pytest.raises(RequestError, match=": model "):
        extract(net, tmp_path / "out", resume=True)
    net.state_dict()[name].copy_(before)
    extract(net, tmp_path / "out", resume=True)


@pytest.mark.parametrize("change", [("fill_(1.0)", "fill_(2.0)"), ("(x) * 1", "(x) * 2")])
def test_a_file_that_was_changed_cannot_go_on(tmp_path, change) -> None:
    file, out = tmp_path / "net.py", tmp_path / "out"
    file.write_text(SOURCE)
    extract(f"{file}:Net", out)
    cut_short(out)
    file.write_text(SOURCE.replace(*change))
    with pytest.raises(RequestError, match=": model "):
        extract(f"{file}:Net", out, resume=True)
    file.write_text(SOURCE)
    extract(f"{file}:Net", out, resume=True)


def test_the_manifest_tells_the_hashes_that_there_are(tmp_path) -> None:
    file, weights = tmp_path / "net.py", tmp_path / "net.pth"
    file.write_text(SOURCE)
    built = extract(f"{file}:Net", tmp_path / "built").manifest["model"]
    assert built["blake3"] is None
    assert len(built["state_blake3"]) == len(built["code_sha256"]) == 64
    torch.save({"head.weight": torch.zeros(2, 4), "head.bias": torch.zeros(2)}, weights)
    loaded = extract(f"{file}:Net", tmp_path / "loaded", weights=str(weights)).manifest["model"]
    assert len(loaded["blake3"]) == 64
    assert loaded["state_blake3"] is None
    assert loaded["code_sha256"] == built["code_sha256"]
    assert extract(Net(), tmp_path / "live").manifest["model"]["code_sha256"] is None


def test_the_manifest_names_what_the_bytes_depend_on(tmp_path) -> None:
    plain = extract(Net(), tmp_path / "plain").manifest
    wide = extract(Net(), tmp_path / "wide", dtype="float64", seed=3, layers="norm").manifest
    assert (plain["command"], wide["command"]) == ("extract", "extract")
    assert (plain["seed"], wide["seed"]) == (0, 3)
    assert (plain["dtype"], wide["dtype"]) == ("float32", "float64")
    assert (plain["device"], wide["device"]) == ("cpu", "cpu")
    assert (plain["stopped_after"], wide["stopped_after"]) == (None, "norm")
    assert torch.__version__.startswith(plain["versions"]["torch"])
    assert "workers" not in plain["options"] and plain["options"]["batch"] == 2
