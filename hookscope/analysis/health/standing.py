"""What can be told of parameters and buffers while the model stands still."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from hookscope.hooks.layers import layers_of
from hookscope.tensors.stats import plain


@dataclass(frozen=True)
class Held:
    """A parameter or buffer as it stands.

    Attributes:
        name: dotted name.
        parameter: whether it is a parameter.
        trainable: whether it requires grad.
        dtype: name of its dtype.
        floating: whether it is of a floating-point type.
        nan: how many entries are NaN.
        inf: how many are infinite and positive; for a parameter also those that are negative.
        blank: whether it is a parameter of two dimensions or more that is zero throughout.
    """

    name: str
    parameter: bool
    trainable: bool
    dtype: str
    floating: bool
    nan: int
    inf: int
    blank: bool


@dataclass(frozen=True)
class Standing:
    """What there is to be told of a model that stands still.

    Attributes:
        held: its parameters, then its buffers.
        tied: for each tensor of several names, all of them.
        duplicated: for each set of parameters of equal values, their names.
        never_updated: layers whose running mean is 0 and variance 1 throughout.
        updated: those that have other ones.
        placed: each with the device that it was on when the model was handed over.
        dispatched: whether accelerate has put its parts on their devices.
    """

    held: tuple[Held, ...]
    tied: tuple[tuple[str, ...], ...]
    duplicated: tuple[tuple[str, ...], ...]
    never_updated: tuple[str, ...]
    updated: tuple[str, ...]
    placed: tuple[tuple[str, str], ...]
    dispatched: bool


@torch.no_grad()
def inspect(model: nn.Module, given: nn.Module | None = None) -> Standing:
    """Look at all parameters and buffers of ``model``, one at a time.

    Args:
        model: what runs.
        given: what was handed over, of which ``model`` may be a copy on one device.
    """
    given = given or model
    names: dict[tuple[object, ...], list[str]] = {}
    tensors: dict[tuple[object, ...], nn.Parameter] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        key = _place(parameter)
        names.setdefault(key, []).append(name)
        tensors.setdefault(key, parameter)
    parameters = [(names[key][0], parameter) for key, parameter in tensors.items()]
    fresh, used = _running_statistics(model)
    return Standing(
        tuple(
            chain(
                (_held(name, t, parameter=True) for name, t in parameters),
                (_held(name, t, parameter=False) for name, t in model.named_buffers()),
            )
        ),
        tuple(tuple(found) for found in names.values() if len(found) > 1),
        tuple(_equal(parameters)),
        fresh,
        used,
        tuple(
            (name, str(tensor.device))
            for name, tensor in chain(given.named_parameters(), given.named_buffers())
        ),
        bool(getattr(given, "hf_device_map", None)),
    )


def _place(tensor: Tensor) -> tuple[object, ...]:
    """What two tensors have in common that are one in memory."""
    if tensor.is_meta or tensor.layout is not torch.strided or not tensor.numel():
        return (id(tensor),)
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())


def _held(name: str, tensor: Tensor, *, parameter: bool) -> Held:
    nan = inf = 0
    blank = False
    if (tensor.is_floating_point() or tensor.is_complex()) and not tensor.is_meta:
        values = plain(tensor.detach())
        blank = parameter and tensor.ndim > 1 and not bool(values.any())
        if not bool(torch.isfinite(values).all()):
            nan = int(torch.isnan(values).sum())
            infinite = torch.isinf(values) if parameter else torch.isposinf(values)
            inf = int(infinite.sum())
    return Held(
        name,
        parameter,
        tensor.requires_grad,
        str(tensor.dtype).removeprefix("torch."),
        tensor.is_floating_point(),
        nan,
        inf,
        blank,
    )


def _equal(parameters: Iterable[tuple[str, nn.Parameter]]) -> Iterator[tuple[str, ...]]:
    """Parameters of equal values, but for those of one value throughout, as fresh ones are."""
    alike: dict[tuple[object, ...], list[tuple[str, Tensor]]] = {}
    for name, parameter in parameters:
        if parameter.is_meta or not parameter.is_floating_point() or parameter.numel() < 2:
            continue
        values = plain(parameter.detach())
        low, high = values.aminmax()
        if bool(low == high) or not bool(torch.isfinite(high - low)):
            continue
        key = (values.shape, values.dtype, values.device, float(low), float(high))
        alike.setdefault(key, []).append((name, values))
    for found in alike.values():
        while len(found) > 1:
            (first, values), *others = found
            same = [name for name, other in others if torch.equal(values, other)]
            found = [one for one in others if one[0] not in same]
            if same:
                yield (first, *same)


def _running_statistics(model: nn.Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The layers whose running statistics are as built, and the others."""
    fresh: list[str] = []
    used: list[str] = []
    for layer in layers_of(model):
        buffers = dict(layer.module.named_buffers(recurse=False))
        mean, var = buffers.get("running_mean"), buffers.get("running_var")
        if mean is None or var is None or mean.is_meta or not mean.numel():
            continue
        built = bool((mean == 0).all()) and bool((var == 1).all())
        (fresh if built else used).append(layer.name)
    return tuple(fresh), tuple(used)
