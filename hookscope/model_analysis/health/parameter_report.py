"""The parameters and buffers of a model, and the findings from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from hookscope.hooks.layers import layers_of
from hookscope.results.health import Finding
from hookscope.specs.checks import (
    BATCHNORM,
    DEVICES,
    DTYPES,
    DUPLICATED,
    ERROR,
    INF,
    NAN,
    NOTE,
    TIED,
    UNREAD,
    WARNING,
)
from hookscope.specs.module_names import group_by_modules, outermost, parent_of
from hookscope.tensors.grad_mode import without_grad
from hookscope.tensors.nested import unreadable_reason
from hookscope.tensors.tensor_stats import dense_real, real_blocks


@dataclass(frozen=True)
class StateTensor:
    """A parameter or buffer."""

    name: str
    parameter: bool
    trainable: bool
    dtype: str
    floating: bool
    nan: int
    inf: int
    all_zero: bool
    unread: str = ""


@dataclass(frozen=True)
class ParameterReport:
    """The parameters and buffers of a model."""

    tensors: tuple[StateTensor, ...]
    tied: tuple[tuple[str, ...], ...]
    duplicated: tuple[tuple[str, ...], ...]
    never_updated: tuple[str, ...]
    updated: tuple[str, ...]
    devices: tuple[tuple[str, str], ...]
    dispatched: bool


@without_grad
def inspect_parameters(model: nn.Module, original: nn.Module | None = None) -> ParameterReport:
    """Inspect all parameters and buffers of ``model``, one at a time."""
    original = original or model
    names: dict[tuple[object, ...], list[str]] = {}
    tensors: dict[tuple[object, ...], nn.Parameter] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        key = _storage_key(parameter)
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
        tuple(tuple(group) for group in names.values() if len(group) > 1),
        tuple(_equal_parameters(parameters)),
        fresh,
        used,
        tuple(
            (name, str(tensor.device))
            for name, tensor in chain(original.named_parameters(), original.named_buffers())
        ),
        bool(getattr(original, "hf_device_map", None)),
    )


def _storage_key(tensor: Tensor) -> tuple[object, ...]:
    """A key that two tensors share if they are the same memory."""
    if tensor.is_meta or tensor.layout is not torch.strided or not tensor.numel():
        return (id(tensor),)
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())


def _describe_tensor(name: str, tensor: Tensor, *, parameter: bool) -> StateTensor:
    nan = inf = 0
    unread = "" if tensor.is_meta else unreadable_reason(tensor)
    is_numeric = tensor.is_floating_point() or tensor.is_complex()
    has_values = is_numeric and not tensor.is_meta and not unread
    all_zero = has_values and parameter and tensor.ndim > 1
    for values in real_blocks(tensor) if has_values else ():
        all_zero = all_zero and not bool(values.any())
        if not bool(torch.isfinite(values).all()):
            nan += int(torch.isnan(values).sum())
            infinite = torch.isinf(values) if parameter else torch.isposinf(values)
            inf += int(infinite.sum())
    return StateTensor(
        name,
        parameter,
        tensor.requires_grad,
        str(tensor.dtype).removeprefix("torch."),
        tensor.is_floating_point(),
        nan,
        inf,
        all_zero,
        unread,
    )


def _equal_parameters(parameters: Iterable[tuple[str, nn.Parameter]]) -> Iterator[tuple[str, ...]]:
    """The names of parameters of equal values. Constant ones, as initialised, are left out."""
    candidates: dict[tuple[object, ...], list[tuple[str, Tensor]]] = {}
    for name, parameter in parameters:
        if not parameter.is_floating_point() or parameter.numel() < 2:
            continue
        if unreadable_reason(parameter):  # also on the meta device
            continue
        values = dense_real(parameter.detach())
        low, high = values.aminmax()
        if bool(low == high) or not bool(torch.isfinite(high - low)):
            continue
        key = (values.shape, values.dtype, values.device, float(low), float(high))
        candidates.setdefault(key, []).append((name, values))
    for group in candidates.values():
        while len(group) > 1:
            (first, values), *others = group
            equal = [name for name, other in others if torch.equal(values, other)]
            group = [entry for entry in others if entry[0] not in equal]
            if equal:
                yield (first, *equal)


def _layers_with_statistics(model: nn.Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The layers whose running statistics are those of a new layer, and the other layers."""
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


def parameter_findings(report: ParameterReport, *, weights_from_file: bool) -> Iterator[Finding]:
    """The findings that need no run of the model."""
    yield from _nonfinite_findings(report.tensors)
    yield from _unread_findings(report.tensors)
    yield from _batchnorm_findings(report, weights_from_file=weights_from_file)
    yield from _sharing_findings(report)
    floating = [tensor for tensor in report.tensors if tensor.floating and tensor.parameter]
    yield from _mixed_findings(DTYPES, [(tensor.name, tensor.dtype) for tensor in floating])
    level = NOTE if report.dispatched else WARNING
    yield from _mixed_findings(DEVICES, report.devices, level)


def _nonfinite_findings(tensors: Sequence[StateTensor]) -> Iterator[Finding]:
    for tensor in tensors:
        for check, count, kind in ((NAN, tensor.nan, "NaN"), (INF, tensor.inf, "infinite")):
            if count:
                entries = "entry" if count == 1 else "entries"
                what = "parameter" if tensor.parameter else "buffer"
                name = tensor.name.rpartition(".")[2]
                message = f"{what} {name} has {count:,} {kind} {entries}"
                hint = "Load weights that are finite; training that diverged produces such values."
                yield Finding(check, ERROR, parent_of(tensor.name), message, count, 0, hint)


def _unread_findings(tensors: Sequence[StateTensor]) -> Iterator[Finding]:
    """The tensors whose values cannot be read, those with one name and reason together."""
    owners: dict[str, list[str]] = {}
    for tensor in tensors:
        if tensor.unread:
            what = "parameter" if tensor.parameter else "buffer"
            name = tensor.name.rpartition(".")[2]
            message = f"{what} {name} was not checked: it is {tensor.unread}"
            owners.setdefault(message, []).append(parent_of(tensor.name))
    for message, (first, *others) in owners.items():
        yield Finding(UNREAD, NOTE, first, message, 1 + len(others), others=tuple(others))


def _batchnorm_findings(report: ParameterReport, *, weights_from_file: bool) -> Iterator[Finding]:
    fresh = report.never_updated
    if not fresh:
        return
    message = "the running mean is 0 and the running variance is 1: they were never updated"
    hint = "Run the model on data in train mode, or load weights that include the buffers."
    level = WARNING if weights_from_file or report.updated else NOTE
    yield Finding(BATCHNORM, level, fresh[0], message, len(fresh), 0, hint, fresh[1:])


def _sharing_findings(report: ParameterReport) -> Iterator[Finding]:
    """Tied parameters, and copies of parameters."""
    for names, count in group_by_modules(report.tied).items():
        message = f"{_count_text(count)} shared with {_names_text(names)}"
        yield Finding(TIED, NOTE, names[0], message, len(names) - 1, None, others=names[1:])
    pairs = group_by_modules(report.duplicated)
    for names in pairs:
        if names[0] in outermost(other[0] for other in pairs):
            message = (
                f"{_count_text(pairs[names])} bit-identical to {_names_text(names)}, not shared"
            )
            hint = "copy.deepcopy leaves such copies: initialise each, or share one parameter."
            yield Finding(DUPLICATED, WARNING, names[0], message, pairs[names], 0, hint, names[1:])


def _count_text(count: int) -> str:
    return "its parameter is" if count == 1 else f"{count:,} of its parameters are"


def _names_text(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3:,} more" if len(names) > 4 else ""
    return f"{', '.join(names[1 : 4 if more else None])}{more}"


def _mixed_findings(
    check: str, tensors: Sequence[tuple[str, str]], level: str = WARNING
) -> Iterator[Finding]:
    """One finding for each value but the most common, at the first tensor that has it."""
    counts = Counter(kind for _, kind in tensors)
    common = counts.most_common(1)[0][0] if counts else ""
    for kind in counts:
        if kind != common:
            layers = tuple(dict.fromkeys(parent_of(name) for name, k in tensors if k == kind))
            what = "parameters" if check == DTYPES else "parameters or buffers"
            place = "" if check == DTYPES else "on "
            message = (
                f"{what} here are {place}{kind}, and {counts[common]:,} of the model's"
                f" {len(tensors):,} are {place}{common}"
            )
            hint = f"Convert the whole model with .to(), or add --skip {check} if intended."
            yield Finding(check, level, layers[0], message, len(counts), 1, hint, layers[1:])
