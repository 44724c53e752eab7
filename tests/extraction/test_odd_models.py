"""Unusual models: batches of one row, random numbers, shapes that depend on the batch."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import hookscope
from hookscope.errors import CheckFailed, HookscopeError
from tests.refusals import refused
from tests.zoo.specimen import Module

from .conftest import contents

VALUES = torch.rand(11, 4, generator=torch.Generator().manual_seed(0))


def extract(
    function: Callable[[Tensor], Any], folder: Path, values: Tensor = VALUES, **more
) -> Any:
    more = {"batch": 5, "shard_size": 1, "workers": 0, "layers": "."} | more
    model = Module(lambda self, x: function(x))
    hookscope.extract(model, folder, input=TensorDataset(values), **more)
    return hookscope.load(folder)


# Strided numbers, and rows that a batch of one row loses.
SQUEEZED = {
    "strided": (lambda x: x[:, 0], VALUES[:, 0]),
    "one": (lambda x: x[:, None, :1].squeeze(), VALUES[:, 0]),
    "three": (lambda x: x[:, None, :3].squeeze(), VALUES[:, :3]),
}


@pytest.mark.parametrize("batch", [5, 1])
@pytest.mark.parametrize("name", SQUEEZED)
def test_a_batch_of_one_row_is_still_a_row(tmp_path, batch: int, name: str) -> None:
    function, expected = SQUEEZED[name]
    found = extract(function, tmp_path / "out", batch=batch)["."]
    assert torch.equal(found.torch()[:], expected)


def test_a_shape_that_depends_on_the_batch_is_told_so(tmp_path) -> None:
    with refused(CheckFailed, "10 to 10", hint="batch size"):
        extract(lambda x: x if len(x) > 1 else x[:, :2], tmp_path / "out")


def test_a_single_number_in_place_of_rows_is_told_so(tmp_path) -> None:
    large = torch.cat([VALUES, torch.full((2, 4), 9.0)])
    with pytest.raises(CheckFailed, match=r"8 to 11 .*\./output.*\(\)"):
        extract(
            lambda x: x[:, 0] if bool((x < 5).all()) else x.sum(), tmp_path / "out", large, batch=4
        )


def test_what_a_model_draws_does_not_depend_on_interruptions(tmp_path) -> None:
    def draw(x: Tensor) -> Tensor:  # from every random generator
        return x + random.random() + np.random.rand() + torch.rand(())

    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    extract(draw, tmp_path / "whole")
    extract(draw, tmp_path / "resumed")
    (tmp_path / "resumed" / "rows-00000005.safetensors").unlink()
    extract(draw, tmp_path / "resumed", resume=True)
    assert contents(tmp_path / "whole") == contents(tmp_path / "resumed")
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[:2]
    assert torch.equal(torch.get_rng_state(), states[2])


def test_a_reader_that_dies_while_the_model_runs_is_no_fault_of_the_model(tmp_path) -> None:
    def kill(x: Tensor) -> Tensor:
        for process in multiprocessing.active_children():
            os.kill(process.pid, signal.SIGKILL)
            time.sleep(300)  # interrupted by the error of the dead worker
        return x * 1

    with refused(HookscopeError, "worker process", hint="workers"):
        extract(kill, tmp_path / "out", batch=1, workers=1)


def views(x: Tensor) -> dict[str, Tensor]:
    z = torch.complex(x, x.flip(1) + 1)
    return {"conj": z.conj(), "imag": z.conj().imag, "plain": z}


@pytest.mark.parametrize("batch", [1, 4])
def test_conjugate_and_negative_views_are_stored_by_value(tmp_path, batch: int) -> None:
    stored = extract(views, tmp_path / "out", batch=batch)
    z = torch.complex(VALUES, VALUES.flip(1) + 1)
    expected = {"conj": torch.complex(z.real, -z.imag), "imag": -z.imag, "plain": z}
    for name, value in expected.items():
        assert torch.equal(stored[f"./output.{name}"].torch()[:], value), name
