"""What can be told of parameters and buffers while the model stands still."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from hookscope.analysis.health.module_names import group_by_modules, outermost, owner_of
from hookscope.hooks.layers import layers_of
from hookscope.results.health import Finding
from hookscope.specs.health_checks import (
    BATCHNORM,
    DEVICES,
    DTYPES,
    DUPLICATED,
    ERROR,
    INF,
    NAN,
    NOTE,
    TIED,
    WARNING,
)
from hookscope.tensors.tensor_stats import dense_real


@dataclass(frozen=True)
class StateTensor:
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
class ParameterReport:
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

    held: tuple[StateTensor, ...]
    tied: tuple[tuple[str, ...], ...]
    duplicated: tuple[tuple[str, ...], ...]
    never_updated: tuple[str, ...]
    updated: tuple[str, ...]
    placed: tuple[tuple[str, str], ...]
    dispatched: bool


@torch.no_grad()
def inspect_parameters(model: nn.Module, given: nn.Module | None = None) -> ParameterReport:
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
    fresh, used = _layers_with_statistics(model)
    return ParameterReport(
        tuple(
            chain(
                (_describe_tensor(name, t, parameter=True) for name, t in parameters),
                (_describe_tensor(name, t, parameter=False) for name, t in model.named_buffers()),
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


def _describe_tensor(name: str, tensor: Tensor, *, parameter: bool) -> StateTensor:
    nan = inf = 0
    blank = False
    if (tensor.is_floating_point() or tensor.is_complex()) and not tensor.is_meta:
        values = dense_real(tensor.detach())
        blank = parameter and tensor.ndim > 1 and not bool(values.any())
        if not bool(torch.isfinite(values).all()):
            nan = int(torch.isnan(values).sum())
            infinite = torch.isinf(values) if parameter else torch.isposinf(values)
            inf = int(infinite.sum())
    return StateTensor(
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
        values = dense_real(parameter.detach())
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


def _layers_with_statistics(model: nn.Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
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


def parameter_findings(standing: ParameterReport, *, weights_from_file: bool) -> Iterator[Finding]:
    """All that is found of a model that stands still."""
    yield from _not_finite(standing.held)
    yield from _batchnorm_findings(standing, weights_from_file=weights_from_file)
    yield from _same(standing)
    floating = [held for held in standing.held if held.floating]
    yield from _mixed(DTYPES, [(held.name, held.dtype) for held in floating if held.parameter])
    level = NOTE if standing.dispatched else WARNING
    yield from _mixed(DEVICES, standing.placed, level)


def _not_finite(held: Sequence[StateTensor]) -> Iterator[Finding]:
    for one in held:
        for check, count, kind in ((NAN, one.nan, "NaN"), (INF, one.inf, "infinite")):
            if count:
                entries = "entry" if count == 1 else "entries"
                what = "parameter" if one.parameter else "buffer"
                told = f"its {what} {one.name.rpartition('.')[2]} has {count:,} {kind} {entries}"
                hint = "Load weights that are sound; training that diverged leaves such ones."
                yield Finding(check, ERROR, owner_of(one.name), told, count, 0, hint)


def _batchnorm_findings(standing: ParameterReport, *, weights_from_file: bool) -> Iterator[Finding]:
    fresh = standing.never_updated
    if not fresh:
        return
    told = "its running mean is 0 and its variance 1: they were never updated"
    hint = "Run the model in train mode over data, or load weights that hold the buffers too."
    level = WARNING if weights_from_file or standing.updated else NOTE
    yield Finding(BATCHNORM, level, fresh[0], told, len(fresh), 0, hint, fresh[1:])


def _same(standing: ParameterReport) -> Iterator[Finding]:
    """Tied parameters, and those that are copies."""
    for names, count in group_by_modules(standing.tied).items():
        told = f"{_so_many(count)} also {_also(names)}: one tensor"
        yield Finding(TIED, NOTE, names[0], told, len(names) - 1, None, others=names[1:])
    pairs = group_by_modules(standing.duplicated)
    for names in pairs:
        if names[0] in outermost(other[0] for other in pairs):
            told = f"{_so_many(pairs[names])} equal to {_also(names)} in every bit"
            hint = "As after copy.deepcopy: initialise each anew, or share one parameter if meant."
            yield Finding(DUPLICATED, WARNING, names[0], told, pairs[names], 0, hint, names[1:])


def _so_many(count: int) -> str:
    return "its parameter is" if count == 1 else f"{count:,} of its parameters are"


def _also(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3:,} more" if len(names) > 4 else ""
    return f"{', '.join(names[1 : 4 if more else None])}{more}"


def _mixed(check: str, held: Sequence[tuple[str, str]], level: str = WARNING) -> Iterator[Finding]:
    """One finding for each kind but the commonest, at the first that is of it."""
    counts = Counter(kind for _, kind in held)
    common = counts.most_common(1)[0][0] if counts else ""
    for kind in counts:
        if kind != common:
            layers = tuple(dict.fromkeys(owner_of(name) for name, k in held if k == kind))
            what = "parameters" if check == DTYPES else "parameters and buffers"
            told = (
                f"it is {'of' if check == DTYPES else 'on'} {kind}, where {counts[common]:,} of"
                f" {len(held):,} {what} are {common}"
            )
            hint = (
                f"Bring the whole model to one with .to(), unless it is meant so (--skip {check})."
            )
            yield Finding(check, level, layers[0], told, len(counts), 1, hint, layers[1:])
