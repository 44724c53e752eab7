"""The peak that ``memory`` predicts is that of the allocations that PyTorch's profiler records.

In bfloat16, the products of matrices need workspaces that depend on the processor.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import hookscope
from tests.model_analysis.memory.profiled_steps import (
    PlainStep,
    attention,
    images,
    layers,
    llama,
    resnet,
    tokens,
    unet,
    vit,
)
from tests.zoo import Module

QUICK = [
    pytest.param(unet, images(2, 64), "SGD", False, id="unet"),
    pytest.param(vit, images(2, 64), "AdamW", False, id="vit"),
    pytest.param(llama, tokens(2, 64), "AdamW", True, id="language-model-autocast"),
    pytest.param(llama, tokens(2, 64), None, False, id="language-model-inference"),
    pytest.param(attention, torch.randn(2, 512, 128), "SGD", True, id="attention-autocast"),
    pytest.param(unet, images(2, 64), None, False, id="unet-inference"),
]
# Convolutions in bfloat16 unfold their input on a CPU without instructions for it.
SETTINGS = [
    *((resnet, images(4, 128), name, False) for name in ("SGD", "AdamW", "RMSprop")),
    *((resnet, images(8, 224), name, False) for name in ("SGD", "AdamW")),
    *((unet, images(size, 64), name, False) for size in (2, 4, 8) for name in ("SGD", "AdamW")),
    *((vit, images(4, 64), name, cast) for name in ("SGD", "AdamW", None) for cast in (0, 1)),
    *((vit, images(16, 64), name, False) for name in ("SGD", "Adamax")),
    *((llama, tokens(4, 64), name, cast) for name in ("SGD", "AdamW", None) for cast in (0, 1)),
    *((llama, tokens(8, 128), name, False) for name in ("SGD", "AdamW", "Adadelta")),
    *((attention, torch.randn(2, 512, 128), name, True) for name in ("SGD", "AdamW")),
    *((resnet, images(1, 64), name, False) for name in ("SGD", "AdamW", None)),
    *((resnet, images(4, 64), name, False) for name in ("AdamW", None)),
    *((unet, images(size, 64), None, False) for size in (2, 4, 8)),
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Workspaces of convolutions grow with the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def error(make: Callable[[], nn.Module], value: Any, optimizer: str | None, cast: bool) -> float:
    found = hookscope.memory(
        make(),
        input=value,
        optimizer=optimizer and optimizer.lower(),
        autocast="bfloat16" if cast else None,
    )
    assert found.parts.total == found.peak
    wanted = PlainStep(make(), value, optimizer, bool(cast)).peak()
    return abs(found.peak / wanted - 1)


@pytest.mark.parametrize(("make", "value", "optimizer", "cast"), QUICK)
def test_the_peak_is_that_of_the_profiler(make, value, optimizer, cast) -> None:
    assert error(make, value, optimizer, cast) < 0.03


@pytest.mark.exhaustive
def test_errors_over_forty_settings_are_small() -> None:
    errors = [error(*setting) for setting in SETTINGS]
    errors += [checkpointed_error(optimizer) for optimizer in ("SGD", "AdamW")]
    assert len(errors) == 40
    assert statistics.median(errors) <= 0.01
    assert max(errors) <= 0.05


OPTIMIZERS = (
    *("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Adafactor", "ASGD"),
    *("NAdam", "RAdam", "Rprop"),
)
WAYS: list[tuple[str, dict[str, Any]]] = [
    *product(OPTIMIZERS, ({}, {"foreach": True})),
    *product(("SGD", "Adam", "AdamW", "Adagrad"), ({"fused": True},)),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("Adam", {"amsgrad": True, "weight_decay": 0.1}),
]
# Large weights with a small batch, and the reverse.
STEPS = [
    pytest.param(size, batch, *way, id="-".join([f"{size}x{batch}", way[0], *way[1]]))
    for size, batch in ((256, 4), (32, 2048))
    for way in WAYS
]


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("size", "batch", "optimizer", "arguments"), STEPS)
def test_a_later_step_of_each_optimizer_is_that_of_the_profiler(
    size: int, batch: int, optimizer: str, arguments: Mapping[str, Any]
) -> None:
    make, value = layers(size), torch.randn(batch, 64)
    found = hookscope.memory(
        make(), input=value, optimizer=optimizer.lower(), opt_args=arguments or None
    )
    wanted = PlainStep(make(), value, optimizer, False, arguments, earlier=6).peak()
    assert abs(found.peak / wanted - 1) < 0.001
    assert found.parts.total == found.peak


def test_the_step_of_adam_has_what_is_computed_by_hand() -> None:
    model = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 10))
    found = hookscope.memory(model, input=torch.randn(64, 512), optimizer="adam")
    sizes = [4 * parameter.numel() for parameter in model.parameters()]
    parts = found.parts
    assert found.moment.phase == "step"
    assert parts.gradients == parts.parameters == sum(sizes)
    assert parts.optimizer == 2 * sum(sizes) + 4 * len(sizes)  # two averages, and the counts
    assert parts.temporary == 2 * max(sizes)  # a root, and its quotient
    assert parts.inputs == 4 * 64 * 512 + 8 * 64
    assert parts.saved == 4 * 64 * 10 + 4  # the output and the loss, which the program still holds


def test_a_parameter_without_a_gradient_has_no_state() -> None:
    """A layer that gets no gradient is beside one that does."""

    def unused() -> Module:
        parts = {"used": nn.Linear(8, 8), "unused": nn.Linear(512, 1024)}
        return Module(lambda self, x: self.used(x), **parts)

    value = torch.randn(4, 8)
    found = hookscope.memory(unused(), input=value, optimizer="adam", limit=3 * 10**6)
    assert found.parts.gradients == 4 * 72
    assert found.parts.optimizer == 2 * 4 * 72 + 2 * 4
    assert found.limit is not None and found.limit.batch > 4
    for name in ("Adam", "Adagrad"):  # Adagrad makes the state of all parameters beforehand
        assert error(unused, value, name, False) < 0.001


def checkpointed(checkpoints: bool = True, reentrant: bool = False) -> Module:
    """Blocks that a program checkpoints itself."""

    def forward(self: Module, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            again = checkpoint(block, x, use_reentrant=reentrant) if checkpoints else None
            x = x + (block(x) if again is None else again)
        return x

    block = (nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    return Module(forward, blocks=nn.ModuleList(nn.Sequential(*block) for _ in range(6)))


def checkpointed_error(optimizer: str) -> float:
    return error(checkpointed, torch.randn(512, 64), optimizer, False)


def test_what_a_program_checkpoints_itself_is_not_counted_as_saved() -> None:
    assert checkpointed_error("SGD") < 0.03
    value = torch.randn(512, 64)
    peaks = [
        hookscope.memory(checkpointed(chosen), input=value, optimizer="sgd").peak
        for chosen in (True, False)
    ]
    assert peaks[0] < 0.5 * peaks[1]


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_an_input_that_requires_grad_reaches_reentrant_checkpoints(optimizer: str) -> None:
    value = torch.randn(512, 64, requires_grad=True)
    assert error(lambda: checkpointed(reentrant=True), value, optimizer, False) < 0.03


def test_the_gradient_of_an_input_is_among_the_gradients() -> None:
    value = torch.randn(4, 64, requires_grad=True)
    found = hookscope.memory(layers(256)(), input=value, optimizer="adam").parts
    assert found.gradients == found.parameters + 4 * value.numel()


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_a_layer_below_the_depth_is_added_to_the_nearest_one_above(depth: int) -> None:
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    net = nn.Sequential(nn.Sequential(block), nn.Linear(4, 2))
    found = hookscope.memory(net, shape=(1, 4), depth=depth)
    held = {row.name: row.parts.parameters for row in found.layers if row.parts.parameters}
    layer, last = 4 * (4 * 4 + 4), 4 * (4 * 2 + 2)
    expected = {
        0: {".": 2 * layer + last},
        1: {"0": 2 * layer, "1": last},
        2: {"0.0": 2 * layer, "1": last},
        3: {"0.0.0": layer, "0.0.2": layer, "1": last},
    }
    assert held == expected[depth]
