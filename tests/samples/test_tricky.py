"""The tricky sample does have every trap that its docstring lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

Sample = Callable[[str], ModuleType]


@pytest.fixture
def tricky(sample: Sample) -> nn.Module:
    torch.manual_seed(0)
    return sample("tricky").Tricky().eval()


@pytest.fixture
def x(sample: Sample) -> Tensor:
    return sample("tricky").example_input()


def calls(model: nn.Module, x: Tensor) -> Counter[str]:
    """How often each module was called in one forward pass."""
    executed: Counter[str] = Counter()
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_, name=name: executed.update([name]))
    model(x)
    return executed


def test_the_in_place_activation_is_called_twice(tricky: nn.Module, x: Tensor) -> None:
    assert calls(tricky, x)["act"] == 2


def test_in_place_changes_reach_what_norm_returned(tricky: nn.Module, x: Tensor) -> None:
    kept: list[Tensor] = []
    tricky.norm.register_forward_hook(lambda _, args, out: kept.extend([out, out.clone()]))
    tricky(x)
    assert not torch.equal(*kept)


def test_one_module_has_two_names(tricky: nn.Module) -> None:
    assert tricky.head is tricky.tied
    names = [name for name, _ in tricky.named_modules()]
    assert "head" in names
    assert "tied" not in names


def test_outputs_are_tuples_and_dicts_with_nothing_in_places(tricky: nn.Module, x: Tensor) -> None:
    seen: dict[str, Any] = {}
    for name in ("split", "report"):
        tricky.get_submodule(name).register_forward_hook(
            lambda _, args, out, name=name: seen.update({name: out})
        )
    out = tricky(x)
    _, (second, nothing) = seen["split"]
    assert second.shape == (1, 4, 8, 8)
    assert nothing is None
    assert seen["report"]["mask"] is None
    assert seen["report"]["largest"].dtype == torch.int64
    assert out["logits"].shape == (1, 10)


def test_the_gate_comes_by_keyword(tricky: nn.Module, x: Tensor) -> None:
    keywords: list[str] = []
    tricky.gate.register_forward_pre_hook(
        lambda _, args, kwargs: keywords.extend(kwargs), with_kwargs=True
    )
    tricky(x)
    assert keywords == ["gate"]


def test_some_modules_are_never_called(tricky: nn.Module, x: Tensor) -> None:
    executed = calls(tricky, x)
    not_executed = {name for name, _ in tricky.named_modules()} - set(executed)
    assert not_executed == {"extra", "branches", "branches.1"}


def test_training_moves_the_integer_buffers(tricky: nn.Module, x: Tensor) -> None:
    assert tricky.seen.dtype == torch.int64
    assert "extra" in calls(tricky.train(), x)
    assert int(tricky.seen) == 1
    assert int(tricky.norm.num_batches_tracked) == 1


def test_gradients_reach_every_parameter_but_those_of_the_idle_branch(
    tricky: nn.Module, x: Tensor
) -> None:
    tricky(x)["logits"].sum().backward()
    without = {name for name, p in tricky.named_parameters() if p.grad is None}
    assert without == {"branches.1.weight", "branches.1.bias"}
