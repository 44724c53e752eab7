"""Blocks before the changed layer are not computed again, unless that might change the result."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope

CALLS: Counter[str] = Counter()


class Block(nn.Module):
    """A residual block that counts its calls outside of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        CALLS["block"] += 1
        return x + self.linear(x).tanh()


class Chain(nn.Module):
    kind: type[nn.Module] = Block

    def __init__(self, kind: type[nn.Module] = Block, count: int = 20) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(kind() for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Stateful(Block):
    """Keeps its last output, which another block might read."""

    last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.last = super().forward(x)
        return self.last + 0


class Nested(Block):
    """Appends to a list in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: dict[str, list[int]] = {"shapes": []}

    def forward(self, x: Tensor) -> Tensor:
        self.notes["shapes"].append(len(x))
        return super().forward(x)


class Buffered(Block):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return super().forward(x)


class Random(Block):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.rand(())


class InPlace(Block):
    def forward(self, x: Tensor) -> Tensor:
        x += 1
        return super().forward(x)


class Alias(Block):
    """Returns what it got."""

    def forward(self, x: Tensor) -> Tensor:
        super().forward(x)
        return x


X = torch.randn(2, 4, generator=torch.Generator().manual_seed(3))


def swept(model: nn.Module, **options: Any) -> hookscope.Sweep:
    return hookscope.sweep(
        model, edit="scale:1.5", layers=["blocks.?", "blocks.1?"], input=X, **options
    )


def by_hand(model: nn.Module) -> list[float]:
    """The relative change of the output with each block changed, every block computed."""
    found = []
    for n in range(20):
        run = hookscope.capture(model, edits=f"blocks.{n}=scale:1.5", layers=".", input=X)
        found.append(run.metadata["effect"]["output"][0]["relative"])
    return found


def test_a_chain_costs_little_more_than_half() -> None:
    model = Chain()
    CALLS.clear()
    found = swept(model)

    assert CALLS["block"] <= 0.6 * 20 * 20
    assert found.reuse.startswith("The stored outputs of up to 20 blocks")
    assert [cell.output for cell in found.cells] == by_hand(model)
    assert all("forward" not in module.__dict__ for module in model.modules())


def test_a_block_whose_input_is_changed_is_computed() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    found = hookscope.sweep(model, layers="1", heads=2, input=X, metric="output")

    assert "up to 1 block " in found.reuse
    first = hookscope.capture(model, edits="input:1[0-1]=zero", layers=".", input=X)
    assert found.cells[0].output == first.metadata["effect"]["output"][0]["relative"] > 0


def test_blocks_without_a_changed_layer_are_reused_too() -> None:
    model = Chain()
    CALLS.clear()
    found = hookscope.sweep(model, layers="blocks.19.linear", input=X)

    assert "up to 19 blocks" in found.reuse
    assert CALLS["block"] <= 2 * 20 + 1 + 1  # clean twice, the check of the last one, the cell


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Stateful, "blocks.0 changes an attribute"),
        (Nested, "blocks.0 changes an attribute"),
        (Buffered, "blocks.0 changes a buffer"),
        (Random, "blocks.0 draws random numbers"),
        (InPlace, "blocks.0 changes its input in place"),
        (Alias, "blocks.0 returns memory that it got or owns"),
    ],
)
def test_a_block_that_does_more_is_always_computed(kind: type[nn.Module], reason: str) -> None:
    model = Chain(kind)
    CALLS.clear()
    found = swept(model)

    assert found.reuse == f"Every run was computed from the start: {reason}."
    assert CALLS["block"] == 20 * 22
    assert [cell.output for cell in found.cells] == by_hand(model)


def test_train_mode_computes_everything() -> None:
    assert "train mode" in swept(Chain(), train=True).reuse


def test_hooks_of_the_user_run_in_every_run() -> None:
    model, seen = Chain(), []
    model.blocks[0].register_forward_hook(lambda *args: seen.append(1))
    found = swept(model)

    assert "blocks.0 has hooks" not in found.reuse  # the other blocks are reused
    assert len(seen) >= 20
    assert [cell.output for cell in found.cells] == by_hand(model)


def test_a_forward_on_the_instance_is_kept() -> None:
    model = Chain(count=2)
    block = model.blocks[0]
    own = block.forward
    block.forward = lambda x: own(x)  # type: ignore[method-assign]
    found = hookscope.sweep(model, layers="blocks.0", input=X)

    assert "Every run was computed" in found.reuse
    assert "forward" in block.__dict__


class SharedList(nn.Module):
    """A model whose blocks write to a list that the model reads at the end."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        notes: list[float] = []
        self.blocks = nn.ModuleList(Writing(notes) for _ in range(3))
        self.notes = notes

    def forward(self, x: Tensor) -> Tensor:
        self.notes.clear()
        for block in self.blocks:
            x = block(x)
        return x * (1 + len(self.notes))


class Writing(Block):
    def __init__(self, notes: list[float]) -> None:
        super().__init__()
        self.write = lambda: notes.append(1.0)  # in a closure, which is not searched

    def forward(self, x: Tensor) -> Tensor:
        self.write()
        return super().forward(x)


def test_what_the_model_reads_besides_outputs_is_noticed() -> None:
    found = hookscope.sweep(SharedList(), layers="blocks.?", input=X)

    assert found.reuse.endswith("the output differs if its blocks are not computed.")


def test_what_a_later_block_reads_besides_outputs_is_noticed() -> None:
    notes: list[float] = []

    class Reading(Writing):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * len(notes)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Writing(notes), Writing(notes), Reading(notes)])

        def forward(self, x: Tensor) -> Tensor:
            notes.clear()
            for block in self.blocks:
                x = block(x)
            return x

    assert "the output differs" in hookscope.sweep(Model(), layers="blocks.?", input=X).reuse


def test_a_language_model_runs_without_a_cache_for_it() -> None:
    found = hookscope.sweep(
        "hf:sample_models/capitals", layers="model.layers.?", input="text:the capital of Peru is"
    )

    assert "up to 4 blocks" in found.reuse


def test_a_convolutional_network_is_a_chain_too() -> None:
    found = hookscope.sweep(
        "resnet18",
        layers=["layer4.1"],
        input="random:1x3x32x32",
        metric="output",
        edit="scale:2",
    )
    run = hookscope.capture(
        "resnet18", layers="fc", edits="layer4.1=scale:2", input="random:1x3x32x32"
    )

    assert "up to 8 blocks" in found.reuse
    assert found.cells[-1].output == run.metadata["effect"]["output"][0]["relative"]
