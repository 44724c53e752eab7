"""Random small models: tensors with many uses, changes in place, losses kept aside, dead ends."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

WIDTH = 5


class Gated(nn.Module):
    """Uses its input four times, also through modules of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(x) * torch.sigmoid(self.gate(x)) + x * x.tanh()


class Aside(nn.Module):
    """Keeps a loss on itself that its output does not depend on."""

    loss: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(x)
        self.loss = (x * out.detach()).square().mean()
        return out


class DeadEnd(nn.Module):
    """Computes something that nothing depends on."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if (x * 3).sum().item() > 1e9 else x.sin() + x


class Pair(nn.Module):
    """Takes two tensors, the second by name, and returns both mixed."""

    def forward(self, a: Tensor, *, b: Tensor) -> tuple[Tensor, Tensor]:
        return a * b + a, b - a.cos() * 0.3


class RandomGraph(nn.Module):
    """A model whose forward pass takes ``steps`` steps, which ``seed`` chooses."""

    def __init__(self, seed: int, steps: int = 14) -> None:
        super().__init__()
        draw = random.Random(seed)
        torch.manual_seed(seed)
        kinds = (nn.Linear, Gated, Aside, DeadEnd, Pair, nn.Identity, nn.Dropout, nn.ReLU, None)
        self.plan: list[tuple[str, int, int]] = []
        for step in range(steps):
            kind: Any = draw.choice(kinds)
            name = ""
            if kind is not None:
                name = f"m{step}"
                args = {nn.Linear: (WIDTH, WIDTH), nn.ReLU: (True,)}.get(kind, ())
                self.add_module(name, kind(*args))
            self.plan.append((name, draw.randrange(99), draw.randrange(99)))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Every tensor may be used by any later step."""
        known = [x * 1.5, x - 0.25]
        for name, first, second in self.plan:
            a, b = known[first % len(known)], known[second % len(known)]
            module = self._modules.get(name)
            if module is None:
                known.append(a + b * 0.5)
            elif isinstance(module, Pair):
                known += module(a, b=b)
            elif isinstance(module, nn.ReLU):  # in place, on a tensor that nothing else needs
                known.append(module(a * 0.7 + b))
            else:
                known.append(module(a))
        return torch.stack(known).mul(torch.linspace(0.3, 1.7, len(known))[:, None, None]).sum(0)

    def total(self, output: Tensor) -> Tensor:
        """A loss on the output and on all that is kept aside."""
        aside = [m.loss for m in self.modules() if isinstance(m, Aside)]
        return output.square().mean() + sum(aside, torch.zeros(()))


def edges_at_outputs(model: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, GradientEdge]]:
    """Run a model bare, but for hooks that note where in the graph each output stands."""
    edges: dict[str, GradientEdge] = {}
    handles = []
    for name, module in model.named_modules():

        def note(module: nn.Module, args: Any, output: Any, name: str = name or ".") -> None:
            several = output if isinstance(output, tuple) else (output,)
            for i, tensor in enumerate(several):
                what = f"output.{i}" if isinstance(output, tuple) else "output"
                edges[f"{name}/{what}.grad"] = get_gradient_edge(tensor)

        handles.append(module.register_forward_hook(note))
    output = model(x)
    for handle in handles:
        handle.remove()
    return output, edges


def share_by_clone(model: Any, x: Tensor, layer: str, what: str) -> Tensor:
    """The gradient at a clone that one module alone is given in place of one of its inputs."""
    kept: list[Tensor] = []

    def lend(module: nn.Module, args: Any, kwargs: Any) -> Any:
        source = kwargs["b"] if what == "b" else args[0]
        kept.append(source.clone())
        own = kept[0].clone()  # the module may change it in place
        return (args, {"b": own}) if what == "b" else ((own, *args[1:]), kwargs)

    handle = model.get_submodule(layer).register_forward_pre_hook(lend, with_kwargs=True)
    loss = model.total(model(x))
    handle.remove()
    (grad,) = torch.autograd.grad(loss, kept, allow_unused=True)
    return grad
