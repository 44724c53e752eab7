"""``diff`` of a model in training mode with itself in evaluation mode."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import hookscope
from hookscope.model_analysis.diff.batch_statistics import statistic_distances


def test_the_distance_in_standard_errors_is_that_of_numpy() -> None:
    values = torch.randn(7, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    mean, var = torch.tensor([0.0, 0.5, -1.0]), torch.tensor([1.0, 2.0, 0.5])
    x = values.double().numpy().reshape(7, 3, 20)
    center = x.mean(axis=(0, 2))
    rows = {"mean": x.mean(2), "variance": ((x - center[:, None]) ** 2).mean(2)}
    found = statistic_distances(values, mean, var)
    for (name, samples), running in zip(rows.items(), (mean, var), strict=True):
        error = samples.std(0, ddof=1) / np.sqrt(7)
        expected = np.median(np.abs(samples.mean(0) - running.numpy()) / error)
        assert found[name] == pytest.approx(expected, rel=1e-6)


def _model(shift: float) -> tuple[nn.Module, torch.Tensor]:
    """A batch norm whose running statistics are those of the input, but for a shift of the mean."""
    torch.manual_seed(0)
    x = torch.randn(64, 6)
    norm = nn.BatchNorm1d(6)
    assert norm.running_mean is not None and norm.running_var is not None
    norm.running_mean.copy_(x.mean(0) + shift)
    norm.running_var.copy_(x.var(0, correction=0))
    return nn.Sequential(norm, nn.ReLU()).eval(), x


@pytest.mark.parametrize(("shift", "is_far"), [(0.0, False), (3.0, True)])
def test_a_batch_norm_with_other_statistics_than_the_batch_is_said(
    shift: float, is_far: bool
) -> None:
    (a, x), (b, _) = _model(shift), _model(shift)
    for options in ({}, {"floor": "float64"}):
        found = hookscope.diff(a, b, input=x, train_a=True, **options)
        document = found.to_json()
        notes = [row["reason"] for row in document["rows"]]
        assert found.same is not is_far
        assert ("mean" in notes[0]) is is_far
        assert notes[1:] == ["", ""]
    assert not a.training and not b.training


def test_each_side_has_its_mode() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5))

    def same(**modes: bool) -> bool:
        return hookscope.diff(net, copy.deepcopy(net), input=torch.ones(8, 4), **modes).same

    assert same() and same(train=True) and same(train_a=True, train_b=True)
    assert not same(train_a=True, train_b=False) and not same(train=True, train_a=False)
    assert same(train=True, train_a=False, train_b=False)
