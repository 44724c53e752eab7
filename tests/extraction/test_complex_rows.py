"""Rows of complex numbers are stored by value, whatever view the tensor is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hookscope


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
