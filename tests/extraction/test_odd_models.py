"""Unusual models: batches of one row, random numbers."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hookscope
from hookscope.errors import CheckFailed, HookscopeError
from tests.refusals import refused

from .conftest import contents

VALUES = torch.rand(11, 4, generator=torch.Generator().manual_seed(0))


def extract(model: nn.Module, folder: Path, **more):
    more = {"batch": 5, "shard_size": 1, "workers": 0, "layers": "."} | more
    hookscope.extract(model, folder, input=TensorDataset(VALUES), **more)
    features = hookscope.load(folder)
    return features[features.keys[0]].torch()[:]


class First(nn.Module):
    def forward(self, x):
        return x[:, 0]


@pytest.mark.parametrize("batch", [5, 1])
def test_a_strided_number_a_row_is_written_where_a_batch_has_one_row(tmp_path, batch) -> None:
    assert torch.equal(extract(First(), tmp_path / "out", batch=batch), VALUES[:, 0])


class Squeezed(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x):
        return x[:, None, : self.count].squeeze()


@pytest.mark.parametrize("batch", [5, 1])
@pytest.mark.parametrize("count", [1, 3])
def test_a_squeezed_batch_of_one_row_is_still_a_row(tmp_path, batch, count) -> None:
    found = extract(Squeezed(count), tmp_path / "out", batch=batch)
    assert torch.equal(found, VALUES[:, :count].squeeze(1))


class Pairs(nn.Module):
    def forward(self, x):
        return x if len(x) > 1 else x[:, :2]


def test_a_shape_that_depends_on_the_batch_is_told_so(tmp_path) -> None:
    with pytest.raises(CheckFailed, match="Rows 10 to 10 returned") as caught:
        extract(Pairs(), tmp_path / "out")
    assert "on the batch size" in caught.value.hint
    assert "batch" in caught.value.hint


class Whole(nn.Module):
    """A model that returns one number for the whole batch if it likes an input of it."""

    def forward(self, x):
        return x[:, 0] if bool((x < 5).all()) else x.sum()


def test_a_single_number_in_place_of_rows_is_told_so(tmp_path) -> None:
    large = torch.cat([VALUES, torch.full((2, 4), 9.0)])
    options = {"batch": 4, "workers": 0, "layers": "."}
    with pytest.raises(CheckFailed, match=r"Rows 8 to 11 returned \./output with shape \(\)"):
        hookscope.extract(Whole(), tmp_path / "out", input=TensorDataset(large), **options)


class Drawing(nn.Module):
    """A model that draws from every random generator."""

    def forward(self, x):
        return x + random.random() + np.random.rand() + torch.rand(())


def test_what_a_model_draws_does_not_depend_on_interruptions(tmp_path) -> None:
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    extract(Drawing(), tmp_path / "whole")
    extract(Drawing(), tmp_path / "resumed")
    (tmp_path / "resumed" / "rows-00000005.safetensors").unlink()
    extract(Drawing(), tmp_path / "resumed", resume=True)
    assert contents(tmp_path / "whole") == contents(tmp_path / "resumed")
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])


class Deadly(nn.Module):
    """A model that kills the worker process while it runs."""

    def forward(self, x):
        for process in multiprocessing.active_children():
            os.kill(process.pid, signal.SIGKILL)
            time.sleep(300)  # interrupted by the error of the dead worker
        return x * 1


def test_a_reader_that_dies_while_the_model_runs_is_no_fault_of_the_model(tmp_path) -> None:
    with refused(HookscopeError, "A worker process that reads inputs has died", hint="workers"):
        extract(Deadly(), tmp_path / "out", batch=1, workers=1)


class Views(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        z = torch.complex(x, x.flip(1) + 1)
        return {"conj": z.conj(), "imag": z.conj().imag, "plain": z}


@pytest.mark.parametrize("batch", [1, 4])
def test_conjugate_and_negative_views_are_stored_by_value(tmp_path, batch: int) -> None:
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    hookscope.extract(
        Views(), tmp_path / "out", input=TensorDataset(x), batch=batch, layers=".", workers=0
    )
    stored = hookscope.load(tmp_path / "out")
    z = torch.complex(x, x.flip(1) + 1)
    expected = {"conj": torch.complex(z.real, -z.imag), "imag": -z.imag, "plain": z}
    for name, value in expected.items():
        assert torch.equal(stored[f"./output.{name}"].torch()[:], value), name
