"""What a model gives for each row, found out before the first: shapes, order, where it can stop.

The model runs on the meta device with two and with three rows. Values do not exist there, so code
that looks at them raises: a pass that succeeds shows that which modules run, and in which order,
does not depend on data. The dimension that grows with the rows is that of the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hookscope.errors import HookscopeError, InputError, LayerError
from hookscope.execution.forward import forward_error, preserve_model_state
from hookscope.hooks.capture import Capture
from hookscope.hooks.layers import Layer, layers_of
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.tensor_sink import ShapeSink
from hookscope.results.records import Record
from hookscope.sources.meta import meta_copy
from hookscope.sources.wrappers import dispatch_device
from hookscope.tensors.interrupts import signal_safe
from hookscope.tensors.nested import as_call, map_tensors

log = logging.getLogger("hookscope")

FEW, MORE = 2, 3  # rows of the two passes


@dataclass(frozen=True)
class RecordColumn:
    """What is kept of each row under one key.

    Attributes:
        record: the tensor's origin; its shape is that of two rows.
        dim: the dimension along which the rows lie.
        shape: lengths of one row's tensor.
        dtype: of its values.
    """

    record: Record
    dim: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Size of one row."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True)
class ShapeProbe:
    """What a model gives.

    Attributes:
        columns: in execution order.
        last: the last of the chosen calls of a module, name and number; None where the order may
            depend on data.
        coverage: which of the chosen modules ran, ``fired``, and which did not, ``silent``.
    """

    columns: tuple[RecordColumn, ...]
    last: tuple[str, int] | None
    coverage: dict[str, list[dict[str, Any]]]


def probe_shapes(
    module: nn.Module,
    layers: Sequence[Layer],
    kinds: Iterable[str],
    call_of: Callable[[int], Any],
    *,
    seed: int = 0,
    autocast: torch.dtype | None = None,
) -> ShapeProbe:
    """Run ``module`` without values, or truly where it cannot run without, and tell what came.

    It runs as it will over the dataset, in eval mode, and is left as it was.

    Args:
        module: on its device.
        layers: those to record.
        kinds: ``output``, ``input``.
        layer_call: takes a number of rows, returns a call value of so many, in the model's dtype.
        seed: of anything random in the model.
        autocast: dtype of ``torch.autocast``; None for none.

    Raises:
        ForwardError: the model raised.
        InputError: it takes one input at a time.
        LayerError: what a layer gives cannot be told apart by rows.
    """
    with preserve_model_state(module, train=False, seed=seed):
        truly = autocast is not None  # which dtypes it gives shows only where there are values
        stop = None
        try:
            ghost = meta_copy(module)
            names = {layer.name for layer in layers}
            own = [layer for layer in layers_of(ghost) if layer.name in names]
            few, more = (_record(ghost, own, kinds, call_of(n), "meta") for n in (FEW, MORE))
            last = few.records[-1] if few.records else None
            stop = (last.module, last.call) if last else None
        except Exception as error:
            why = _short(error)
            log.info("order: it may depend on data (%s), so every pass runs to its end", why)
            truly = True
        if truly:
            few, more = (_truly(module, layers, kinds, call_of(n), autocast) for n in (FEW, MORE))
    coverage = {
        "fired": [vars(one) for one in few.coverage.executed],
        "silent": [vars(one) for one in few.coverage.not_executed],
    }
    return ShapeProbe(tuple(_columns(few, more)), stop, coverage)


def _truly(
    module: nn.Module,
    layers: Sequence[Layer],
    kinds: Iterable[str],
    value: Any,
    autocast: torch.dtype | None,
) -> Capture:
    first = next((p.device for p in module.parameters()), torch.device("cpu"))
    device = dispatch_device(module.modules()) or first
    try:
        with torch.autocast(device.type, autocast) if autocast else nullcontext():
            return _record(module, layers, kinds, value, device)
    except InputError as error:  # of an exported program
        raise InputError(
            error.message,
            "A run over a dataset gives it several inputs at once: export the model anew with"
            " dynamic_shapes, or capture files one by one.",
        ) from error
    except HookscopeError:
        raise
    except Exception as error:
        raise forward_error(module, value, error) from error


def _record(
    module: nn.Module,
    layers: Sequence[Layer],
    kinds: Iterable[str],
    value: Any,
    device: torch.device | str,
) -> Capture:
    moved = map_tensors(value, lambda path, tensor: tensor.to(device))
    args, kwargs = as_call(moved)
    kept = Recorder(module, layers, kinds, sink=ShapeSink)
    with signal_safe(torch.no_grad()), kept as capture:
        module(*args, **kwargs)
    return capture


def _columns(few: Capture, more: Capture) -> Iterable[RecordColumn]:
    for record in few.records:
        tensor, other = few[record.key], more.get(record.key)
        if other is None or other.ndim != tensor.ndim:
            raise LayerError(
                f"{record.key} is there or not, depending on how many inputs run at once.",
                f"Leave it out: --layer '!{record.module}'",
            )
        pairs = enumerate(zip(tensor.shape, other.shape, strict=True))
        grown = [dim for dim, (a, b) in pairs if a != b]
        if len(grown) != 1 or (tensor.shape[grown[0]], other.shape[grown[0]]) != (FEW, MORE):
            raise LayerError(
                f"{record.key} has no dimension for the inputs: of {FEW} inputs it is of shape"
                f" {_text(tensor.shape)}, of {MORE} of {_text(other.shape)}.",
                f"Leave it out with --layer '!{record.module}', or capture files one by one.",
            )
        [dim] = grown
        if dim:
            log.info("%s: its inputs lie along dimension %d, moved to the front", record.key, dim)
        shape = (*tensor.shape[:dim], *tensor.shape[dim + 1 :])
        yield RecordColumn(record, dim, tuple(shape), tensor.dtype)


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "one number"


def _short(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:100]
