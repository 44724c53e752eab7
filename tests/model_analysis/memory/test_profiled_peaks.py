"""The peak that ``memory`` predicts is that of the allocations that PyTorch's profiler records.

Convolutions of the CPU allocate workspaces, which depend on the threads and are not counted.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import hookscope
from tests.model_analysis.memory.profiled_steps import (
    PlainStep,
    UNet,
    images,
    llama,
    resnet,
    tokens,
    vit,
)

QUICK = [
    pytest.param(UNet, images(2, 64), "SGD", False, id="unet"),
    pytest.param(vit, images(2, 64), "AdamW", False, id="vit"),
    pytest.param(llama, tokens(2, 64), "AdamW", True, id="language-model-autocast"),
    pytest.param(llama, tokens(2, 64), None, False, id="language-model-inference"),
]
# Convolutions in bfloat16 unfold their input on a CPU without instructions for it.
SETTINGS = [
    *((resnet, images(4, 128), name, False) for name in ("SGD", "AdamW", "RMSprop")),
    *((resnet, images(8, 224), name, False) for name in ("SGD", "AdamW")),
    *((UNet, images(size, 64), name, False) for size in (2, 4, 8) for name in ("SGD", "AdamW")),
    *((vit, images(4, 64), name, cast) for name in ("SGD", "AdamW", None) for cast in (0, 1)),
    *((vit, images(16, 64), name, False) for name in ("SGD", "Adamax")),
    *((llama, tokens(4, 64), name, cast) for name in ("SGD", "AdamW", None) for cast in (0, 1)),
    *((llama, tokens(8, 128), name, False) for name in ("SGD", "AdamW", "Adadelta")),
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
def test_errors_over_thirty_settings_are_small() -> None:
    errors = [error(*setting) for setting in SETTINGS]
    errors += [checkpointed_error(optimizer) for optimizer in ("SGD", "AdamW")]
    assert len(errors) == 30
    assert statistics.median(errors) <= 0.03
    assert sorted(errors)[int(0.95 * len(errors))] <= 0.10


class Checkpointed(nn.Module):
    """Blocks that a program checkpoints itself."""

    def __init__(self, checkpoints: bool = True) -> None:
        super().__init__()
        block = (nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
        self.blocks = nn.ModuleList(nn.Sequential(*block) for _ in range(6))
        self.checkpoints = checkpoints

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + (checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x))
        return x


def checkpointed_error(optimizer: str) -> float:
    return error(Checkpointed, torch.randn(512, 64), optimizer, False)


def test_what_a_program_checkpoints_itself_is_not_counted_as_saved() -> None:
    assert checkpointed_error("SGD") < 0.03
    value = torch.randn(512, 64)
    peaks = [
        hookscope.memory(Checkpointed(chosen), input=value, optimizer="sgd").peak
        for chosen in (True, False)
    ]
    assert peaks[0] < 0.5 * peaks[1]
