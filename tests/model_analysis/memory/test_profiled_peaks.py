"""The oracle: the most bytes allocated at one time, as the profiler of PyTorch records them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import chain, product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

import hookscope
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


# What is predicted; in bfloat16, products of matrices need workspaces that depend on the processor


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
