"""Rows of two models are never mixed: a run is resumed only with the model that began it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from hookscope.errors import RequestError

from .conftest import extract_six_rows

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
    return extract_six_rows(out, model=model, **{"layers": "*"} | more)


def net() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))


@pytest.mark.parametrize("name", ["1.weight", "0.running_mean"])
def test_a_module_with_other_values_cannot_go_on(tmp_path, name) -> None:
    model = net()
    before = model.state_dict()[name].clone()
    extract(model, tmp_path / "out")
    (tmp_path / "out" / "rows-00000002.safetensors").unlink()
    model.state_dict()[name].copy_(before + 1)
    with pytest.raises(RequestError, match=": model "):
        extract(model, tmp_path / "out", resume=True)
    model.state_dict()[name].copy_(before)
    assert extract(model, tmp_path / "out", resume=True).resumed == 4


@pytest.mark.parametrize("change", [("fill_(1.0)", "fill_(2.0)"), ("(x) * 1", "(x) * 2")])
def test_a_file_that_was_changed_cannot_go_on(tmp_path, change) -> None:
    file, out = tmp_path / "net.py", tmp_path / "out"
    file.write_text(SOURCE)
    extract(f"{file}:Net", out)
    (out / "rows-00000002.safetensors").unlink()
    file.write_text(SOURCE.replace(*change))
    with pytest.raises(RequestError, match=": model "):
        extract(f"{file}:Net", out, resume=True)
    file.write_text(SOURCE)
    assert extract(f"{file}:Net", out, resume=True).resumed == 4


def test_the_manifest_tells_the_hashes_that_there_are(tmp_path) -> None:
    file, weights = tmp_path / "net.py", tmp_path / "net.pth"
    file.write_text(SOURCE)
    built = extract(f"{file}:Net", tmp_path / "built").manifest["model"]
    assert built["blake3"] is None
    assert len(built["state_blake3"]) == len(built["code_sha256"]) == 64
    torch.save({"head.weight": torch.zeros(2, 4), "head.bias": torch.zeros(2)}, weights)
    loaded = extract(f"{file}:Net", tmp_path / "loaded", weights=str(weights)).manifest["model"]
    assert (len(loaded["blake3"]), loaded["state_blake3"]) == (64, None)
    assert loaded["code_sha256"] == built["code_sha256"]


def test_the_manifest_names_what_the_bytes_depend_on(tmp_path) -> None:
    plain = extract(net(), tmp_path / "plain").manifest
    wide = extract(net(), tmp_path / "wide", dtype="float64", seed=3, layers="0").manifest
    names = ("command", "device", "seed", "dtype", "stopped_after")
    assert [plain[name] for name in names] == ["extract", "cpu", 0, "float32", None]
    assert [wide[name] for name in names] == ["extract", "cpu", 3, "float64", "0"]
    assert plain["model"]["code_sha256"] is None
    assert torch.__version__.startswith(plain["versions"]["torch"])
    assert "workers" not in plain["options"] and plain["options"]["batch"] == 2
