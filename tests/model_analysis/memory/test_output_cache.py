"""Outputs that are made from earlier ones are those that the operators return."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import hookscope
from hookscope.errors import RequestError
from hookscope.model_analysis.memory import output_cache
from hookscope.model_analysis.memory.output_cache import OutputCache
from tests.model_analysis.memory.profiled_steps import images, llama, resnet, tokens, unet, vit
from tests.zoo import Module


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("make", "value", "optimizer"),
    [
        (resnet, images(2, 64), "adamw"),
        (unet, images(2, 64), "rmsprop"),
        (vit, images(2, 64), "adadelta"),
        (llama, tokens(2, 64), "sgd"),
        (llama, tokens(2, 64), None),
    ],
)
def test_the_answer_is_the_same_without_the_cache(make, value, optimizer, monkeypatch) -> None:
    with_cache = hookscope.memory(make(), input=value, optimizer=optimizer)
    monkeypatch.setattr(OutputCache, "run", lambda self, func, args, kwargs: func(*args, **kwargs))
    assert hookscope.memory(make(), input=value, optimizer=optimizer) == with_cache


@pytest.mark.parametrize(
    "names", [{}, {"FakeTensor": lambda mode, values: values, "in_kernel_invocation_manager": None}]
)
def test_the_answer_is_the_same_where_private_names_are_missing_or_other(
    names: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    value = images(2, 64)
    expected = hookscope.memory(resnet(), input=value, optimizer="adamw")
    monkeypatch.setattr(output_cache, "fake_tensors", lambda: SimpleNamespace(**names))
    assert hookscope.memory(resnet(), input=value, optimizer="adamw") == expected


def test_integers_are_not_taken_for_floats() -> None:
    def both(self: Module, x: torch.Tensor) -> torch.Tensor:
        whole = torch.arange(4)
        assert (whole * 1).dtype is torch.int64 and (whole * 1.0).dtype is torch.float32
        assert (whole * 1).dtype is torch.int64 and (whole + True).dtype is torch.int64
        return x

    hookscope.memory(Module(both), input=torch.ones(2, 3))


def test_a_view_shares_the_storage_of_its_argument() -> None:
    views = Module(lambda self, x: sum(x.t().reshape(64, 1024).t() for _ in range(4)))
    copies = Module(lambda self, x: sum(x.t().clone().t() for _ in range(4)))
    peaks = [hookscope.memory(one, input=torch.ones(1024, 64)).peak for one in (views, copies)]
    assert peaks[0] < peaks[1]


def test_an_optimizer_that_reads_a_norm_has_a_peak() -> None:
    found = hookscope.memory("resnet18", shape=(2, 3, 64, 64), optimizer="adafactor")
    model, state = resnet(), 0
    optimizer = torch.optim.Adafactor(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for one in optimizer.state.values():
        state += sum(t.untyped_storage().nbytes() for t in one.values() if torch.is_tensor(t))
    wide = hookscope.memory(model, input=images(2, 64), optimizer="adafactor")
    assert wide.parts.optimizer == state < found.parts.optimizer


def test_an_exported_program_in_its_mode_is_not_trained(tmp_path) -> None:
    program = torch.export.export(nn.Linear(8, 4).eval(), (torch.ones(2, 8),))
    torch.export.save(program, tmp_path / "net.pt2")
    assert hookscope.memory(tmp_path / "net.pt2", shape=(2, 8)).parts.parameters == 144
    with pytest.raises(RequestError, match="optimizer"):
        hookscope.memory(tmp_path / "net.pt2", shape=(2, 8), optimizer="sgd")
