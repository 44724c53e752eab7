"""What changes between calls or fails: state, random numbers, aliases, dtypes, weights, errors."""

from __future__ import annotations

import random
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from tests.zoo.specimen import Module, specimen, tokens, vectors
from tests.zoo.structures import linear


@specimen(vectors, "0 1 2 3")
def dropped() -> nn.Sequential:
    """Batch norm and dropout; in eval mode dropout returns the very tensor that it is given."""
    return nn.Sequential(linear(), nn.BatchNorm1d(4), nn.Dropout(0.5), linear(4, 2))


@specimen(vectors, "inner same outer")
class Alias(nn.Module):
    """Changes what dropout returned, which in eval mode is the output of the layer before."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.same, self.outer = linear(), nn.Dropout(), linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        z = self.same(y)
        z += 1
        return self.outer(y) + z[:, :2]


@specimen(vectors, "first last", in_place=". first")
class WritesInput(nn.Module):
    """Changes the tensor that it was given, itself and by its first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.ReLU(inplace=True), linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x.sub_(0.25)
        return self.last(self.first(x))


@specimen(vectors, "linear halves clip", in_place="clip")
class WritesView(nn.Module):
    """One layer returns a view of its input, and the next one writes into a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.halves = linear(), nn.Unflatten(1, (2, 2))
        self.clip = nn.Hardtanh(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.clip(self.halves(y)[:, 0])
        return y


@specimen(vectors, "inner", stateful=True)
class Remembers(nn.Module):
    """Writes its output into a buffer, makes another buffer anew, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = linear(), 0
        self.register_buffer("kept", torch.zeros(2, 4))
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen = self.seen + 1
        y = self.inner(x) * self.seen
        self.kept.copy_(y.detach())
        return y


@specimen(vectors, "first added added.0 added.1")
class Grows(nn.Module):
    """Makes a module and a parameter when it is first called."""

    def __init__(self) -> None:
        super().__init__()
        self.first = linear()

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "added"):
            self.add_module("added", nn.Sequential(linear(4, 2), nn.Tanh()))
            self.scale = nn.Parameter(torch.full((2,), 3.0))
        return self.added(self.first(x)) * self.scale


@specimen(vectors, "0 1 2")
def lazy() -> nn.Sequential:
    """Gets its shapes from the first batch."""
    return nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyLinear(2))


@specimen(vectors, "linear", random=True)
def noisy() -> Module:
    """Draws from Python's and from torch's random numbers in every mode."""
    return Module(
        lambda self, x: self.linear(x) + random.random() + torch.rand(()), linear=linear()
    )


@specimen(vectors, "linear", stateful=True)
class OwnGenerator(nn.Module):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.generator = linear(), torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + torch.rand(4, generator=self.generator)


@specimen(vectors, "stem body")
def detached() -> Module:
    """No gradient comes to the first layer."""
    return Module(
        lambda self, x: self.body(self.stem(x).detach()), stem=linear(), body=linear(4, 2)
    )


@specimen(vectors, "back head")
def no_grad() -> Module:
    """Runs its first layer without gradients."""

    def forward(self: Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.back(x)
        return self.head(y)

    return Module(forward, back=linear(), head=linear(4, 2))


@specimen(vectors, "0 1 2")
def frozen() -> nn.Sequential:
    """The parameters of its first layer get no gradient; what passes does."""
    return nn.Sequential(linear().requires_grad_(False), nn.ReLU(), linear(4, 2))


@specimen(vectors, "inner last")
def autocast() -> Module:
    """One layer runs in bfloat16."""

    def forward(self: Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.inner(x)
        return self.last(y.float())

    return Module(forward, inner=linear(), last=linear(4, 2))


@specimen(vectors, "inner", "half", make=lambda own: own(torch.float16))
@specimen(vectors, "inner", "bfloat16", make=lambda own: own(torch.bfloat16))
@specimen(vectors, "inner", "float64", make=lambda own: own(torch.float64))
@specimen(vectors, "inner", "complex", make=lambda own: own(torch.complex64))
class OtherDtype(nn.Module):
    """Computes in another dtype than that of its input; returns that, and a conjugate view."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.inner, self.dtype = linear(4, 3, dtype=dtype), dtype

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.inner(x.to(self.dtype)).tanh()
        return y * 2, y.conj()


@specimen(tokens, "table")
def sparse_table() -> Module:
    """An embedding whose gradient is sparse."""
    table = nn.Embedding(20, 4, sparse=True)
    return Module(lambda self, ids: self.table(ids).sum(1), table=table)


class Times(torch.autograd.Function):
    """The product of two tensors, with a gradient for the first alone: None for the second."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Multiply."""
        ctx.save_for_backward(weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Scale the gradient, for the first factor."""
        (weight,) = ctx.saved_tensors
        return grad * weight, None


@specimen(vectors, "linear")
class OwnFunction(nn.Module):
    """A function with a backward pass of its own, which gives the parameter no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.weight = linear(), nn.Parameter(torch.full((4,), 3.0))

    def forward(self, x: Tensor) -> Tensor:
        return Times.apply(self.linear(x), self.weight)


_COMPUTED = "0 0.parametrizations.weight 0.parametrizations.weight.0"


@specimen(vectors, _COMPUTED)
def parametrized() -> nn.Sequential:
    """A weight that is computed each time by a module of its own."""
    net = nn.Sequential(linear())
    square = Module(lambda self, weight: weight.square())
    parametrize.register_parametrization(net[0], "weight", square)
    return net


@specimen(vectors, _COMPUTED)
def weight_norm() -> nn.Sequential:
    """A weight in two parts: length and direction."""
    return nn.Sequential(parametrizations.weight_norm(linear()))


@specimen(vectors, "inner")
class Hooked(nn.Module):
    """Comes with hooks of its own, one of which changes an output; ``moments`` is what happened."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.moments = linear(), list[str]()
        self.inner.register_forward_pre_hook(lambda module, args: self.moments.append("before"))
        self.inner.register_forward_hook(self._after)

    def _after(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        self.moments.append("after")
        return output * 2

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@specimen(vectors, "0 1", trains=False)
def quantized() -> nn.Module:
    """A linear layer that is quantized as it runs."""
    from torch.ao import quantization

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = nn.Sequential(linear(), nn.ReLU()).eval()
        return quantization.quantize_dynamic(net, {nn.Linear}, dtype=torch.qint8)


class Scriptable(nn.Module):
    """A model that can be scripted: a branch that depends on data, and a number with a default."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = linear(), linear(4, 2)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        if x.sum() > 1e9:
            x = -x
        return self.last(torch.relu(self.first(x))) * scale


@specimen(vectors)
def scripted() -> nn.Module:
    """``Scriptable``, scripted: its modules are called where no hook of Python's sees it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(Scriptable())


@specimen(vectors, "first bad", raises=ValueError, make=lambda own: own(ValueError("no")))
class Fails(nn.Module):
    """Raises an error between two layers, while ``bad.error`` is not None."""

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__()
        self.first, self.bad, self.last = linear(), Module(self._raise), linear(4, 2)
        self.bad.error = error

    @staticmethod
    def _raise(bad: Any, x: Tensor) -> Tensor:
        if bad.error is not None:
            raise bad.error
        return x * 2

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.bad(self.first(x)))


@specimen(vectors, "0 1", raises=RuntimeError)
def broken() -> nn.Sequential:
    """The second layer does not fit the first."""
    return nn.Sequential(linear(4, 6), linear(5, 2))


@specimen(vectors, "linear", raises=KeyboardInterrupt, stateful=True)
class Interrupted(nn.Module):
    """Is interrupted in its first call, and runs in later ones."""

    due = True

    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if self.due:
            self.due = False
            raise KeyboardInterrupt
        return y * 2


@specimen(vectors, "first last")
class Picky(nn.Module):
    """Raises when the output of its first layer is zero everywhere, as an ablation makes it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = linear(), linear()

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        if not bool(y.any()):
            raise RuntimeError("all is zero")
        return self.last(y)


class FailsInBackward(torch.autograd.Function):
    """A copy whose backward pass raises."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Copy."""
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Raise."""
        raise ArithmeticError("in the backward pass")


@specimen(vectors, "0 1 2", raises_backward=ArithmeticError)
def fails_backward() -> nn.Sequential:
    """The backward pass comes through the last layer, and not to the first."""
    bad = Module(lambda self, x: FailsInBackward.apply(x))
    return nn.Sequential(linear(), bad, linear(4, 2))


@specimen(vectors, "0 1 2")
def makes_nan() -> nn.Sequential:
    """Takes the logarithm of what may be negative."""
    return nn.Sequential(linear(), Module(lambda self, x: x.log()), linear(4, 2))


@specimen(vectors, "fc")
def nan_gradient() -> Module:
    """A finite output whose gradient is not a number."""
    return Module(lambda self, x: (self.fc(x) * 0).square().sum(1).sqrt(), fc=linear())
