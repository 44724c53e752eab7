"""``record(..., device=...)`` keeps values on another device, and never shows unfinished ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import EnvironmentFault, HookscopeError, RequestError
from hookscope.hooks import device_copies
from tests.oracle.by_hand import same_bits


class SlowCopies(device_copies.DeviceCopies):
    """Copies as those of a device that computes later: until ``wait``, their values are NaN."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.unfinished: list[tuple[Tensor, Tensor]] = []

    def copy(self, tensor: Tensor) -> Tensor:
        copy = torch.full_like(tensor, torch.nan)
        self.unfinished.append((copy, tensor.clone()))
        return copy

    def wait(self) -> None:
        for copy, values in self.unfinished:
            copy.copy_(values)
        self.unfinished.clear()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))


@pytest.mark.parametrize("slow", [False, True])
def test_the_values_and_gradients_are_those_without_it(
    slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if slow:
        monkeypatch.setattr("hookscope.hooks.tensor_sink.DeviceCopies", SlowCopies)
    model, x = net(), torch.randn(3, 4)

    def recorded(device: str | None) -> hookscope.Capture:
        with hookscope.record(model, what=["input", "output"], grads=True, device=device) as found:
            loss = model(x).sum()
            loss.backward(retain_graph=True)
            loss.backward()  # added to the gradients of the values
        return found

    plain, copied = recorded(None), recorded("cpu")
    assert list(copied) == list(plain)
    for key in plain:
        assert same_bits(copied[key], plain[key]), key


def test_a_value_read_within_the_block_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookscope.hooks.tensor_sink.DeviceCopies", SlowCopies)
    model, x = net(), torch.randn(3, 4)
    with hookscope.record(model, device="cpu") as found:
        output = model(x)
        assert same_bits(found["2"], output.detach())
        assert found.records[-1].stats.mean == pytest.approx(output.mean().item())


NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="there is such a device")


@pytest.mark.parametrize(
    ("device", "kind"),
    [
        ("gpu", RequestError),
        ("meta", RequestError),
        pytest.param("cuda", EnvironmentFault, marks=NO_CUDA),
    ],
)
def test_a_device_that_cannot_be_used_is_refused(device: str, kind: type[HookscopeError]) -> None:
    with pytest.raises(kind, match=device), hookscope.record(net(), device=device):
        pass
    with pytest.raises(RequestError, match="module"), hookscope.record(None, device="cpu"):
        pass
