"""How modules stand in each other, how they call each other, and what they take and return."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.zoo.specimen import Module, images, sequences, specimen, tokens, two_vectors, vectors


def linear(inputs: int = 4, outputs: int = 4, **options: Any) -> nn.Linear:
    """A linear layer, 4 by 4 unless asked otherwise."""
    return nn.Linear(inputs, outputs, **options)


@specimen(vectors, "linear")
class Skip(nn.Module):
    """A residual block of vectors."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(x).relu()


@specimen(images, "conv act fc", in_place="act")
class InPlace(nn.Module):
    """A convolution whose output is overwritten by the activation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.fc = nn.Linear(6 * 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.act(self.conv(x)).flatten(1))


@specimen(vectors, "0 1 2 1", in_place="1", aliases="3")
def sequential() -> nn.Sequential:
    """Two linear layers, and one activation that is called twice in place."""
    act = nn.ReLU(inplace=True)
    return nn.Sequential(linear(), act, linear(), act)


@specimen(vectors, "first act first last")
def twice() -> Module:
    """A layer that is called twice."""
    return Module(
        lambda self, x: self.last(self.first(self.act(self.first(x)))),
        first=linear(),
        act=nn.ReLU(),
        last=linear(4, 2),
    )


@specimen(tokens, "embed mix head", tied="embed.weight head.weight")
class Tied(nn.Module):
    """An embedding that is the weight of the head too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(20, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.mix(self.embed(ids)).tanh())


@specimen(vectors, "one one last", aliases="two", tied="one.weight one.bias two.weight two.bias")
def shared() -> Module:
    """One module under two names."""
    one = linear()
    return Module(
        lambda self, x: self.last(self.two(self.one(x).tanh())), one=one, two=one, last=linear()
    )


@specimen(two_vectors, "branch branch.0 branch.1 branch branch.0 branch.1", in_place="branch.1")
class Siamese(nn.Module):
    """One branch for two inputs, and an output of nested parts."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(linear(), nn.ReLU(inplace=True))

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Any]:
        left, right = self.branch(left), self.branch(right)
        return {"distance": (left - right).square().sum(-1), "both": [left, right]}


@specimen(vectors, "stem body body.0 body.inner body.inner.0 body.inner.1 head")
class Nested(nn.Module):
    """Blocks in blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = linear(), linear(4, 3)
        inner = nn.Sequential(nn.ReLU(), nn.Tanh())
        self.body = nn.Sequential(OrderedDict([("0", linear()), ("inner", inner)]))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)))


@specimen(vectors, "blocks.0 blocks.0.linear blocks.1 blocks.1.linear head")
class Blocks(nn.Module):
    """A list of residual blocks, which are called in turn."""

    def __init__(self, count: int = 2, width: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Skip(width) for _ in range(count))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@specimen(vectors, "table.b table.a-b")
def module_dict() -> Module:
    """Modules by key, called in another order than the model's, and one not at all."""
    table = nn.ModuleDict({name: linear() for name in ("a-b", "b", "never")})
    return Module(lambda self, x: self.table["a-b"](self.table["b"](x).sin()), table=table)


@specimen(vectors, " ".join(map(str, range(50))))
def deep() -> nn.Sequential:
    """Very many very small layers."""
    return nn.Sequential(*(linear() for _ in range(50)))


@specimen(vectors, "aside main")
class Side(nn.Module):
    """A layer whose result nobody uses, and one that is never called."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.main, self.aside, self.never = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        self.aside(x)
        return self.main(x)


@specimen(vectors, "steps.0 steps.1")
def one_by_one() -> Module:
    """A sequential whose parts are called by its parent."""
    steps = nn.Sequential(linear(), nn.Tanh())
    return Module(lambda self, x: self.steps[1](self.steps[0](x)), steps=steps)


@specimen(vectors, "last")
class Direct(nn.Module):
    """Calls the ``forward`` of a layer, and uses the weights of another, past all hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.forwarded, self.borrowed, self.last = linear(), linear(), linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.forwarded.forward(x) @ self.borrowed.weight.T)


@specimen(vectors)
class Parameters(nn.Module):
    """Parameters of its own, in a list and in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.arange(1.0, 5.0))
        self.scales = nn.ParameterList(nn.Parameter(torch.full((4,), n)) for n in (0.5, 2.0))
        self.shifts = nn.ParameterDict({"a": nn.Parameter(torch.ones(4))})

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain * self.scales[0] * self.scales[1] + self.shifts["a"]


@specimen(images)
class Functional(nn.Module):
    """A convolution and a linear layer without modules of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(4, 3, 3, 3) / 5)
        self.weight = nn.Parameter(torch.randn(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.relu(F.conv2d(x, self.kernel)).mean((2, 3)), self.weight)


@specimen(vectors, "act", trains=False)
def no_parameters() -> Module:
    """Nothing to learn."""
    return Module(lambda self, x: self.act(x * 3) + 1, act=nn.Tanh())


@specimen(vectors, "linear linear linear")
class Recursive(nn.Module):
    """Calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()

    def forward(self, x: Tensor, depth: int = 2) -> Tensor:
        x = self.linear(x)
        return self(x, depth - 1) if depth else x


@specimen(lambda: (torch.tensor([[2.5, 0.0, 0.0, 0.0]]),), "step step step head")
class Loop(nn.Module):
    """As many calls as the first value of the input says, rounded up."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.head = linear(), linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        left = x[0, 0].item()
        while left > 0:
            x, left = self.step(x).tanh(), left - 1
        return self.head(x)


@specimen(lambda: (torch.full((2, 4), -1.0),), "first exit")
class EarlyExit(nn.Module):
    """Leaves after the first layer when the sum of the input is not positive."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.exit, self.head = (linear() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.head(self.second(y)) if x.sum() > 0 else self.exit(y)


_ONCE = "block block.0 block.1"


@specimen(vectors, f"stem {_ONCE} {_ONCE} head")
@specimen(vectors, f"stem {_ONCE} {_ONCE} head", "reentrant", make=lambda own: own(reentrant=True))
class Checkpointed(nn.Module):
    """A block that is called twice, and run once more for each in the backward pass."""

    def __init__(self, reentrant: bool = False) -> None:
        super().__init__()
        self.stem, self.block, self.head = linear(), nn.Sequential(linear(), nn.GELU()), linear()
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for _ in range(2):
            x = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return self.head(x)


@specimen(vectors, "left right")
class Threads(nn.Module):
    """Calls each of its two layers in a thread, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = linear(), linear()

    def forward(self, x: Tensor) -> Tensor:
        results: list[Tensor] = []
        for layer in (self.left, self.right):
            thread = threading.Thread(target=lambda layer=layer: results.append(layer(x)))
            thread.start()
            thread.join()
        return results[0] + results[1]


@specimen(lambda: {"x": vectors()[0], "mask": torch.tensor([1.0, 0, 1, 1]), "scale": 2.0}, "inner")
class Keywords(nn.Module):
    """Takes a tensor and a number by name, and hands them on by name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Module(lambda self, x, *, mask, scale: x * mask * scale)
        self.gain = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor, *, mask: Tensor, scale: float = 1.0) -> Tensor:
        return self.inner(x * self.gain, mask=mask, scale=scale)


class Pair(NamedTuple):
    """Two parts of an output, by name."""

    left: Any
    right: Any


@dataclass
class Answer:
    """An output with a part that may be missing."""

    logits: Tensor
    extra: Any = None


@specimen(vectors, "inner inner.linear")
def nested_outputs() -> Module:
    """Returns a named tuple of tuples, dicts, lists, a dataclass, a text and None."""

    def outputs(self: Module, x: Tensor) -> Pair:
        y = self.linear(x)
        answer = Answer(y, {"deep": [y + 1, None, "text"]})
        return Pair(y * 2, (x > 0, {"answer": answer, 3: y - 1}))

    return Module(lambda self, x: self.inner(x), inner=Module(outputs, linear=linear()))


@specimen(sequences, "head")
class Outputs(nn.Module):
    """Returns a loss, scores, and None in place of what it does not compute."""

    def __init__(self) -> None:
        super().__init__()
        self.head = linear()

    def forward(self, x: Tensor) -> dict[str, Tensor | None]:
        score = self.head(x)
        return {"loss": score.square().mean(), "score": score.relu(), "attentions": None}


@specimen(vectors, "inner", trains=False)
def no_tensor() -> Module:
    """Returns texts."""
    return Module(lambda self, x: list(map(str, self.inner(x)[0].tolist())), inner=linear())
