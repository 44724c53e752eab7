"""Models that are not as most are: rows of one number, random numbers, batches of one, lost readers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hookscope

VALUES = torch.rand(11, 4, generator=torch.Generator().manual_seed(0))


def extract(model: nn.Module, folder: Path, **more):
    more = {"batch": 5, "shard_size": 1, "workers": 0, "layers": "."} | more
    hookscope.extract(model, folder, input=TensorDataset(VALUES), **more)
    features = hookscope.open(folder)
    return features[features.keys[0]].torch()[:]


class First(nn.Module):
    def forward(self, x):
        return x[:, 0]


@pytest.mark.parametrize("batch", [5, 1])
def test_a_strided_number_a_row_is_written_where_a_batch_has_one_row(tmp_path, batch) -> None:
    assert torch.equal(extract(First(), tmp_path / "out", batch=batch), VALUES[:, 0])
