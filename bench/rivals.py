"""The table of the README: the same questions to hookscope, hooks by hand, torchlens and nnsight.

``pip install torchlens nnsight``, then ``python -m bench.rivals`` prints it. Each cell is what a
first try gives; most of the others' answers become right with more code.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from time import process_time
from typing import Any

import nnsight
import torch
import torch.nn.functional as F
import torchlens
import torchvision
from torch import Tensor

import hookscope

X = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
OTHERS = ("torchlens", "nnsight")
TOOLS = ("hookscope", "hooks by hand", *OTHERS)
ROUNDS = 15


def model() -> torchvision.models.ResNet:
    """Return resnet18, whose ReLUs work in place and run twice in a block."""
    torch.manual_seed(0)
    return torchvision.models.resnet18().eval()


def hooked(net: Any, names: set[str], run: Callable[[], object]) -> dict[str, Tensor]:
    """Return what the hook that most pages show stores."""
    kept: dict[str, Tensor] = {}
    handles = [
        module.register_forward_hook(lambda _, args, output, name=name: kept.update({name: output}))
        for name, module in net.named_modules()
        if name in names
    ]
    run()
    for handle in handles:
        handle.remove()
    return kept


def before_an_in_place_layer() -> list[object]:
    """Whether the output of bn1 is what bn1 returned; a ReLU in place follows."""
    net = model()
    expected = F.batch_norm(
        net.conv1(X), net.bn1.running_mean, net.bn1.running_var, net.bn1.weight, net.bn1.bias
    )
    with torch.no_grad():
        by_hand = hooked(net, {"bn1"}, lambda: net(X))["bn1"]
    with hookscope.record(net, layers="bn1") as capture:
        net(X)
    opened = nnsight.NNsight(net)
    with opened.trace(X):
        traced = opened.bn1.output.save()
    found = (capture["bn1"], by_hand, torchlens.trace(net, X)["bn1"].out, traced)
    return [torch.equal(value, expected) for value in found]


def calls_of_a_module() -> list[object]:
    """How many of the two calls of one ReLU are kept."""
    net, name = model(), "layer3.0.relu"
    with hookscope.record(net, layers=name) as capture:
        net(X)
    by_hand = hooked(net, {name}, lambda: net(X))
    log = torchlens.trace(net, X)
    both = [log[f"{name}:{call}"] for call in (1, 2)]
    opened = nnsight.NNsight(net)
    with opened.trace(X):
        traced = opened.layer3[0].relu.output.save()
    return [len(capture), len(by_hand), len(both), len([traced])]


def gradient_at_a_layer() -> list[object]:
    """Whether the gradient at bn1 is right; by hand with ``register_full_backward_hook``."""
    net = model()
    value: Tensor = net.bn1(net.conv1(X)).detach().requires_grad_()
    middle = net.maxpool(F.relu(value))
    for layer in (net.layer1, net.layer2, net.layer3, net.layer4):
        middle = layer(middle)
    [expected] = torch.autograd.grad(net.fc(net.avgpool(middle).flatten(1)).sum(), value)
    with hookscope.record(net, layers="bn1", grads=True) as capture:
        loss = net(X).sum()
        loss.backward()
    handle = net.bn1.register_full_backward_hook(lambda module, before, after: None)
    try:
        by_hand: object = "ran" if net(X).sum().backward() is None else ""
    except RuntimeError:
        by_hand = "raises"
    handle.remove()
    opened = nnsight.NNsight(net)
    with opened.trace(X):
        output = opened.bn1.output
        with opened.output.sum().backward():
            traced = output.grad.save()
    options = torchlens.options.CaptureOptions(save_grads="all", backward_ready=True)
    log = torchlens.trace(net, X, capture=options)
    log.backward(log[log.output_layers[0]].out.sum())
    found = (capture["bn1/output.grad"], log["bn1"].grad, traced)
    ours, lens, sight = (torch.allclose(one, expected, rtol=1e-3, atol=1e-5) for one in found)
    return [ours, by_hand, lens, sight]


def scripted() -> list[object]:
    """Whether a scripted model can be recorded."""
    net = torch.jit.script(model())

    def by_nnsight() -> None:
        opened = nnsight.NNsight(net)
        with opened.trace(X):
            opened.layer4.output.save()

    def by_hookscope() -> None:
        with hookscope.record(net, layers="layer4.1.relu"):
            net(X)

    ways: list[Callable[[], object]] = [
        by_hookscope,
        lambda: hooked(net, {"layer4.1.relu"}, lambda: net(X))["layer4.1.relu"],
        lambda: torchlens.trace(net, X),
        by_nnsight,
    ]
    return [_works(way) for way in ways]


def _works(way: Callable[[], object]) -> object:
    try:
        way()
    except Exception as error:  # each tool raises its own
        return type(error).__name__
    return True


def cost() -> list[object]:
    """The processor time to keep all modules' outputs, as a multiple of the forward pass alone."""
    torch.set_num_threads(1)
    net = model()
    names = {name for name, _ in net.named_modules() if name}

    def by_hookscope() -> None:
        with hookscope.record(net, layers="?*"):
            net(X)

    ways: list[Callable[[], object]] = [
        lambda: net(X),
        by_hookscope,
        lambda: hooked(net, names, lambda: net(X)),
        lambda: torchlens.trace(net, X),
    ]
    best = [float("inf")] * len(ways)
    with torch.no_grad():
        for _ in range(ROUNDS):
            for n, way in enumerate(ways):
                start = process_time()
                way()
                best[n] = min(best[n], process_time() - start)
    return [*(f"{time / best[0]:.2f}" for time in best[1:]), "not measured"]


QUESTIONS: dict[str, Callable[[], list[object]]] = {
    "the value of a layer that an in-place layer follows is right": before_an_in_place_layer,
    "calls kept of a module that runs twice": calls_of_a_module,
    "the gradient there is right": gradient_at_a_layer,
    "a scripted model": scripted,
    "processor time with all layers kept (the forward pass alone: 1)": cost,
}


def main() -> None:
    """Print the table, or one row of it."""
    warnings.simplefilter("ignore")
    if sys.argv[1:]:
        cells = [("no", "yes")[x] if isinstance(x, bool) else x for x in QUESTIONS[sys.argv[1]]()]
        print("|", " | ".join([sys.argv[1], *map(str, cells)]), "|")
        return
    heads = [f"{tool} {version(tool)}" if tool in OTHERS else tool for tool in TOOLS]
    for row in (["resnet18", *heads], ["---"] * 5):
        print("|", " | ".join(row), "|", flush=True)
    for question in QUESTIONS:  # a process for each: torchlens replaces functions of torch
        subprocess.run([sys.executable, "-m", "bench.rivals", question], check=True)


if __name__ == "__main__":
    main()
