"""Whole models saved by torch.save, opened as models with ``trust``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import hookscope
from hookscope.errors import ModelError
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


def test_the_refusal_of_a_pickled_model_names_trust(tmp_path: Path) -> None:
    _, path = saved(tmp_path, wrapped=False)
    with refused(ModelError, hint="author"):
        hookscope.capture(path, input=X)


def test_a_trusted_file_without_a_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.pt"
    torch.save({"a": Path("x"), "b": torch.ones(2)}, path)
    with pytest.raises(ModelError, match="dict"):
        hookscope.capture(path, input=X, trust=True)


@pytest.mark.slow
def test_the_command_opens_a_trusted_model(run, tmp_path: Path) -> None:
    _, path = saved(tmp_path, wrapped=False)
    done = run("capture", path, "--trust", "--shape", "2x4", "--no-output")
    assert done.rc == 0
    assert "Linear" in done.stdout
