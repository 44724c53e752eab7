"""The cost of watching a training: the same steps with and without ``hookscope.watch``.

``python -m bench.training MODEL EVERY STEPS PAIRS [AGAINST]`` prints the seconds of each pair,
watched and ``bare``, one pair a line. ``AGAINST`` may also be ``histograms``, which are taken of
every output and gradient by hooks written by hand, or ``torchlens``, which records each step and of
whose tensors the same statistics are taken; ``stop`` watches with ``--stop-on nan,inf`` against
``bare``. ``MODEL`` is ``resnet18`` (8 images of 224 pixels) or ``mlp`` (40 layers of
256 units, a batch of 128). With ``EVERY`` 0 the default steps are sampled, from step 50 on. The two
of a pair change places from pair to pair, and both are made to give the same losses.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from time import perf_counter

import torch
import torchvision
from torch import Tensor, nn

import hookscope

START = 50  # steps before those that are timed: the default sampling is denser there


def mlp() -> tuple[nn.Module, Tensor]:
    """Return a network of 40 linear layers, and a batch."""
    layers = [layer for _ in range(39) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(256, 10)), torch.randn(128, 256)


def resnet18() -> tuple[nn.Module, Tensor]:
    """Return resnet18, and a batch of images."""
    return torchvision.models.resnet18(num_classes=10), torch.randn(8, 3, 224, 224)


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {"mlp": mlp, "resnet18": resnet18}


@contextmanager
def histograms(model: nn.Module) -> Iterator[list[list[float]]]:
    """Yield the histograms of all outputs of layers and of all gradients, as they come."""
    found: list[list[float]] = []

    def add(tensor: Tensor) -> None:
        values = tensor.detach().flatten()
        low, high = values.min().item(), values.max().item()
        found.append([low, high, *torch.histc(values, 64, low, high).tolist()])

    def after(module: nn.Module, inputs: object, output: Tensor) -> None:
        add(output)
        output.register_hook(add)

    leaves = (module for module in model.modules() if not list(module.children()))
    handles = [module.register_forward_hook(after) for module in leaves]
    handles += [weight.register_hook(add) for weight in model.parameters()]
    yield found
    for handle in handles:
        handle.remove()


def statistics(values: Tensor) -> Tensor:
    """Return mean, standard deviation, root mean square, largest magnitude and share of zeros."""
    values = values.detach().float()
    largest, zeros = values.abs().amax(), (values == 0).float().mean()
    return torch.stack([values.mean(), values.std(), values.square().mean().sqrt(), largest, zeros])


def backward_by_torchlens(
    model: nn.Module, batch: Tensor, target: Tensor, found: list[list[list[float]]]
) -> Tensor:
    """Return the loss of a step whose outputs and gradients torchlens records and keeps.

    torchlens follows neither parameters nor optimizers; norms of gradients are taken beside it.
    """
    import torchlens

    capture = torchlens.options.CaptureOptions(save_grads="all", backward_ready=True)
    trace = torchlens.trace(model, batch, capture=capture)
    loss = nn.functional.cross_entropy(trace[trace.output_layers[0]].out, target)
    trace.backward(loss)
    outputs = [op for op in trace.layer_list if op.grad is not None]
    tensors = [tensor for op in outputs for tensor in (op.out, op.grad)]
    tensors += [weight.grad for weight in model.parameters()]
    found.append(torch.stack([statistics(tensor) for tensor in tensors]).tolist())
    trace.cleanup()
    return loss


def train(name: str, every: int, steps: int, how: str) -> tuple[float, list[float]]:
    """Return the seconds of some steps of a training, and all losses.

    ``how`` is ``watched``, ``stop`` (watched, too), ``bare``, ``histograms`` or ``torchlens``.
    """
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    target = torch.randint(10, (len(batch),))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses: list[float] = []
    recorded: list[list[list[float]]] = []
    start = 2 if every else START

    def step() -> None:
        optimizer.zero_grad()
        if how == "torchlens":
            loss = backward_by_torchlens(model, batch, target, recorded)
        else:
            loss = nn.functional.cross_entropy(model(batch), target)
            loss.backward()
        optimizer.step()
        losses.append(loss.item())

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        around: AbstractContextManager[object] = nullcontext()
        if how == "histograms":
            around = histograms(model)
        elif how in ("watched", "stop"):
            stop_on = "nan,inf" if how == "stop" else ()
            around = hookscope.watch(
                model, optimizer, every=every or None, stop_on=stop_on, folder=path
            )
        with around:
            for _ in range(start):
                step()
            began = perf_counter()
            for _ in range(steps):
                step()
            seconds = perf_counter() - began
    return seconds, losses


def main() -> None:
    """Print the pairs."""
    name, every, steps, pairs = sys.argv[1], *map(int, sys.argv[2:5])
    against = sys.argv[5] if len(sys.argv) > 5 else "bare"
    ours, plain = ("stop", "bare") if against == "stop" else ("watched", against)
    train(name, every, 2, ours)  # what is imported or compiled once
    for pair in range(pairs):
        order = (ours, plain) if pair % 2 else (plain, ours)
        times = {how: train(name, every, steps, how) for how in order}
        assert times[ours][1] == times[plain][1], "watching changed the losses"
        print(times[ours][0], times[plain][0])


if __name__ == "__main__":
    main()
