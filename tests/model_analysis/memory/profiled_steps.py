"""The oracle: the most bytes allocated at one time, as the profiler of PyTorch records them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from tests.zoo import Module

Make = Callable[[], nn.Module]


def profiled_peak(step: Callable[[], Any], held: Iterable[Tensor]) -> int:
    """The peak while ``step`` runs: the storages of ``held`` and what the profiler adds to them."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = profiler.profiler.kineto_results.events()
    changes = sorted(
        ((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"),
        key=lambda change: change[0],
    )
    size = most = sum(storages.values())
    for _, change in changes:
        size += change
        most = max(most, size)
    return most


@dataclass
class PlainStep:
    """A training step, or inference, as a program writes it."""

    model: nn.Module
    value: Tensor | Mapping[str, Tensor]
    optimizer: str | None = None
    autocast: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of the optimizer
    earlier: int = 1  # steps before the one that is measured

    def __post_init__(self) -> None:
        self.model.train(self.optimizer is not None)
        self.target: Tensor | None = None
        self.steps: torch.optim.Optimizer | None = None
        if self.optimizer is not None:
            kind = getattr(torch.optim, self.optimizer)
            self.steps = kind(self.model.parameters(), **self.arguments)

    def peak(self) -> int:
        """The peak of a later step, to which the state of the optimizer belongs."""
        for _ in range(0 if self.steps is None else self.earlier):
            self.step()
        inputs = self.value.values() if isinstance(self.value, Mapping) else [self.value]
        held = [*self.model.parameters(), *self.model.buffers(), *inputs]
        held += [] if self.target is None else [self.target]
        states = () if self.steps is None else self.steps.state.values()
        held += [t for t in chain(*(state.values() for state in states)) if isinstance(t, Tensor)]
        return profiled_peak(self.step, held)

    def step(self) -> None:
        casting = torch.autocast("cpu", torch.bfloat16) if self.autocast else nullcontext()
        if self.steps is None:
            with torch.no_grad(), casting:
                output = self.forward()
            return
        with casting:
            output = self.forward()
            loss = self.loss(output)
        loss.backward()
        self.steps.step()
        self.steps.zero_grad()

    def forward(self) -> Any:
        if isinstance(self.value, Mapping):
            return self.model(**self.value)
        return self.model(self.value)

    def loss(self, output: Any) -> Tensor:
        scores = output if isinstance(output, Tensor) else output.logits.flatten(0, 1)
        if self.target is None:
            shape = (scores.shape[0], *scores.shape[2:])
            self.target = torch.zeros(shape, dtype=torch.long)
        return F.cross_entropy(scores.float(), self.target)


def layers(width: int) -> Make:
    """Matrices of a size, which are large beside a small batch."""
    return lambda: nn.Sequential(
        *(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.GELU()),
        nn.Linear(width, 10),
    )


def attention() -> nn.Module:
    def forward(self: Module, x: Tensor) -> Tensor:
        heads = self.into(x).unflatten(2, (3, 4, 32)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(*heads)
        return self.out(found.transpose(1, 2).flatten(2)[:, 0])

    return Module(forward, into=nn.Linear(128, 3 * 128), out=nn.Linear(128, 10))


def unet(width: int = 16) -> nn.Module:
    def forward(self: Module, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(self.pool(first))
        third = self.middle(self.pool(second))
        second = self.left2(torch.cat([self.up2(third), second], 1))
        first = self.left1(torch.cat([self.up1(second), first], 1))
        return self.head(first)

    return Module(
        forward,
        **{"down1": double(3, width), "down2": double(width, 2 * width)},
        **{"middle": double(2 * width, 4 * width), "pool": nn.MaxPool2d(2)},
        up2=nn.ConvTranspose2d(4 * width, 2 * width, 2, 2),
        up1=nn.ConvTranspose2d(2 * width, width, 2, 2),
        **{"left2": double(4 * width, 2 * width), "left1": double(2 * width, width)},
        head=nn.Conv2d(width, 4, 1),
    )


def double(inputs: int, outputs: int) -> nn.Sequential:
    parts = [
        (nn.Conv2d(size, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())
        for size in (inputs, outputs)
    ]
    return nn.Sequential(*chain(*parts))


def vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(64, 8, 4, 4, 128, 256, num_classes=10)


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=2000, **sizes, **heads))


def resnet() -> nn.Module:
    from torchvision.models import resnet18

    return resnet18(num_classes=10)


def images(batch: int, side: int) -> Tensor:
    return torch.randn(batch, 3, side, side)


def tokens(batch: int, length: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(0, 2000, (batch, length))}
