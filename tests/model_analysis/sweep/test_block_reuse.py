"""Blocks before the changed layer are not computed again, unless that might change the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from tests.zoo import Module

CALLS: Counter[str] = Counter()


def counted(self: Any, x: Tensor) -> Tensor:
    """A residual block that counts its calls outside of itself."""
    CALLS["block"] += 1
    return x + self.linear(x).tanh()


def chain(
    forward: Callable[..., Tensor] = counted, count: int = 20, end: Any = lambda x: x
) -> Module:
    """Blocks one after the other, which have a buffer and a dict with a list."""

    def run(self: Any, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return end(x)

    blocks = [Module(forward, linear=nn.Linear(4, 4)) for _ in range(count)]
    for block in blocks:
        block.notes, block.last = {"shapes": []}, None
        block.register_buffer("count", torch.zeros(()))
    return Module(run, blocks=nn.ModuleList(blocks))


def keeps_its_output(self: Any, x: Tensor) -> Tensor:
    self.last = counted(self, x)
    return self.last + 0


def appends_to_a_list(self: Any, x: Tensor) -> Tensor:
    self.notes["shapes"].append(len(x))
    return counted(self, x)


def counts_in_a_buffer(self: Any, x: Tensor) -> Tensor:
    self.count += 1
    return counted(self, x)


def returns_what_it_got(self: Any, x: Tensor) -> Tensor:
    counted(self, x)
    return x


X = torch.randn(2, 4, generator=torch.Generator().manual_seed(3))


def swept(model: nn.Module, **options: Any) -> hookscope.Sweep:
    return hookscope.sweep(
        model, edit="scale:1.5", layers="blocks.*", types="Module", input=X, **options
    )


def by_hand(model: Any) -> list[float]:
    """The relative change of the output with each block changed, every block computed."""
    found = []
    for n in range(len(model.blocks)):
        run = hookscope.capture(model, edits=f"blocks.{n}=scale:1.5", layers=".", input=X)
        found.append(run.metadata["effect"]["output"][0]["relative"])
    return found


def test_a_chain_costs_little_more_than_half() -> None:
    model = chain()
    CALLS.clear()
    found = swept(model)

    assert CALLS["block"] <= 0.6 * 20 * 20
    assert "up to 20 blocks" in found.reuse
    assert [cell.output for cell in found.cells] == by_hand(model)
    assert all("forward" not in module.__dict__ for module in model.modules())


def test_a_block_whose_input_is_changed_is_computed() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    found = hookscope.sweep(model, layers="1", heads=2, input=X, metric="output")

    assert "up to 1 block " in found.reuse
    first = hookscope.capture(model, edits="input:1[0-1]=zero", layers=".", input=X)
    assert found.cells[0].output == first.metadata["effect"]["output"][0]["relative"] > 0


def test_blocks_without_a_changed_layer_are_reused_too() -> None:
    model = chain()
    CALLS.clear()
    found = hookscope.sweep(model, layers="blocks.19.linear", input=X)

    assert "up to 19 blocks" in found.reuse
    assert CALLS["block"] <= 2 * 20 + 1 + 1  # clean twice, the check of the last one, the cell


@pytest.mark.parametrize(
    ("forward", "what"),
    [
        (keeps_its_output, "an attribute"),
        (appends_to_a_list, "an attribute"),
        (counts_in_a_buffer, "a buffer"),
        (lambda self, x: counted(self, x) + torch.rand(()), "random"),
        (lambda self, x: counted(self, x.add_(1)), "in place"),
        (returns_what_it_got, "memory"),
    ],
)
def test_a_block_that_does_more_is_always_computed(
    forward: Callable[..., Tensor], what: str
) -> None:
    model = chain(forward, 6)
    CALLS.clear()
    found = swept(model)
    assert "blocks.0" in found.reuse and what in found.reuse
    assert CALLS["block"] == 6 * 8
    assert [cell.output for cell in found.cells] == by_hand(model)


def test_train_mode_computes_everything() -> None:
    assert "train mode" in swept(chain(), train=True).reuse


def test_hooks_of_the_user_run_in_every_run() -> None:
    model, seen = chain(), []
    model.blocks[0].register_forward_hook(lambda *args: seen.append(1))
    found = swept(model)

    assert "blocks.0 has hooks" not in found.reuse  # the other blocks are reused
    assert len(seen) >= 20
    assert [cell.output for cell in found.cells] == by_hand(model)


def test_a_forward_on_the_instance_is_kept() -> None:
    model = chain(count=2)
    block = model.blocks[0]
    own = block.forward
    block.forward = lambda x: own(x)  # type: ignore[method-assign]
    found = hookscope.sweep(model, layers="blocks.0", input=X)

    assert "up to" not in found.reuse
    assert "forward" in block.__dict__


@pytest.mark.parametrize("reader", ["the model", "a later block"])
def test_what_is_read_besides_outputs_is_noticed(reader: str) -> None:
    notes: list[float] = []  # in a closure, which is not searched

    def writing(self: Any, x: Tensor) -> Tensor:
        notes.append(1.0)
        return counted(self, x)

    def read(x: Tensor) -> Tensor:
        factor = 1 + len(notes)
        notes.clear()
        return x * factor

    if reader == "the model":
        model = chain(writing, 3, end=read)
    else:
        model = chain(writing, 3)
        model.blocks[2].function = lambda self, x: read(writing(self, x))
    assert "the output differs" in hookscope.sweep(model, layers="blocks.?", input=X).reuse


def test_a_language_model_runs_without_a_cache_for_it() -> None:
    found = hookscope.sweep(
        "hf:sample_models/capitals", layers="model.layers.?", input="text:the capital of Peru"
    )

    assert "up to 4 blocks" in found.reuse


def test_a_convolutional_network_is_a_chain_too() -> None:
    x = {"input": "random:1x3x32x32"}
    found = hookscope.sweep("resnet18", layers="layer4.1", metric="output", edit="scale:2", **x)
    run = hookscope.capture("resnet18", layers="fc", edits="layer4.1=scale:2", **x)
    assert "up to 8 blocks" in found.reuse
    assert found.cells[-1].output == run.metadata["effect"]["output"][0]["relative"]
