"""Shapes and execution order of the selected layers, determined before the first batch.

The model runs on the meta device with two and with three rows, which also shows whether the order
of the layers depends on data; see ``execution/trial_pass.py``. The dimension whose size is the
number of rows is the dimension of the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from hookscope.errors import HookscopeError, InputError, LayerError
from hookscope.execution.forward import forward_error
from hookscope.execution.isolation import preserve_model_state
from hookscope.execution.trial_pass import TrialModel, record_shapes
from hookscope.files.shell_words import quote_word
from hookscope.files.signal_safety import signal_safe
from hookscope.hooks.capture import Capture
from hookscope.hooks.layers import Layer
from hookscope.results.records import Coverage, Record
from hookscope.sources.wrappers import dispatch_device

log = logging.getLogger("hookscope")

FEW, MORE = 2, 3  # numbers of rows of the two passes


@dataclass(frozen=True)
class RecordColumn:
    """What is recorded of each row under one key."""

    record: Record
    dim: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    tokens: int | None = None

    def shape_for(self, tokens: int | None) -> tuple[int, ...]:
        """The shape of one row in a batch whose texts have that many tokens, with padding."""
        if self.tokens is None or tokens is None:
            return self.shape
        return (*self.shape[: self.tokens], tokens, *self.shape[self.tokens + 1 :])

    def bytes_for(self, tokens: int) -> int:
        """Bytes of one row; for texts of different length, of a row with ``tokens`` tokens."""
        return torch.Size(self.shape_for(tokens)).numel() * self.dtype.itemsize


@dataclass(frozen=True)
class TextLengths:
    """Texts of two lengths, which show the dimension of the tokens."""

    tokens: int
    other: Any
    other_tokens: int


@dataclass(frozen=True)
class ShapeProbe:
    """What a model returns for each row."""

    columns: tuple[RecordColumn, ...]
    last: tuple[str, int] | None
    coverage: Coverage


def probe_shapes(
    module: nn.Module,
    layers: Sequence[Layer],
    kinds: Iterable[str],
    make_inputs: Callable[[int], Any],
    *,
    seed: int = 0,
    autocast: torch.dtype | None = None,
    texts: TextLengths | None = None,
) -> ShapeProbe:
    """Run ``module`` in eval mode on the meta device, or with real values if that fails."""
    values = [make_inputs(FEW), make_inputs(MORE), *([texts.other] if texts else [])]
    with preserve_model_state(module, train=False, seed=seed):
        with_values = autocast is not None  # autocast's dtypes are known only with real values
        last = None
        try:
            model = TrialModel(module, layers, train=False, seed=seed)
            passes = [model.run(kinds, each) for each in values]
            doubt = next((each.doubt for each in passes if each.doubt), "")
            last = None if doubt or passes[0].order is None else passes[0].order.last
            few, more, *other = (each.capture for each in passes)
        except Exception as error:
            doubt = _first_line(error)
        if doubt:
            with_values = True  # which may show other calls
            log.info("order of layers: may depend on data (%s), no early stop", doubt)
        if with_values:
            few, more, *other = (
                _record_with_values(module, layers, kinds, each, autocast) for each in values
            )
    columns = tuple(_columns(few, more))
    if texts:
        columns = tuple(_text_column(column, other[0], texts) for column in columns)
    return ShapeProbe(columns, last, few.coverage)


def _record_with_values(
    module: nn.Module,
    layers: Sequence[Layer],
    kinds: Iterable[str],
    value: Any,
    autocast: torch.dtype | None,
) -> Capture:
    first = next((p.device for p in module.parameters()), torch.device("cpu"))
    device = dispatch_device(module.modules()) or first
    try:
        with signal_safe(torch.autocast(device.type, autocast)) if autocast else nullcontext():
            return record_shapes(module, layers, kinds, value, device)
    except InputError as error:  # from an exported program
        raise InputError(
            error.message,
            "extract runs several inputs at once: export the model again with dynamic_shapes, or"
            " capture the files one by one.",
        ) from error
    except HookscopeError:
        raise
    except Exception as error:
        raise forward_error(module, value, error) from error


def _columns(few: Capture, more: Capture) -> Iterable[RecordColumn]:
    for record in few.records:
        tensor, other = few[record.key], more.get(record.key)
        if other is None or other.ndim != tensor.ndim:
            raise LayerError(
                f"Whether {record.key} exists depends on the batch size.",
                f"Leave it out: --layer {quote_word(f'!{record.module}')}",
            )
        pairs = enumerate(zip(tensor.shape, other.shape, strict=True))
        changed = [dim for dim, (a, b) in pairs if a != b]
        if len(changed) != 1 or (tensor.shape[changed[0]], other.shape[changed[0]]) != (FEW, MORE):
            raise LayerError(
                f"{record.key} has no batch dimension: its shape is {_shape_text(tensor.shape)} for"
                f" {FEW} inputs and {_shape_text(other.shape)} for {MORE}.",
                f"Leave it out with --layer {quote_word(f'!{record.module}')}, or capture the files"
                " one by one.",
            )
        [dim] = changed
        if dim:
            log.info("%s: batch dimension %d moved to the front", record.key, dim)
        shape = (*tensor.shape[:dim], *tensor.shape[dim + 1 :])
        yield RecordColumn(record, dim, tuple(shape), tensor.dtype)


def _text_column(column: RecordColumn, other: Capture, texts: TextLengths) -> RecordColumn:
    """The column with the dimension of the tokens."""
    record = column.record
    tensor = other.get(record.key)
    shape: list[int] = [] if tensor is None else list(tensor.shape)
    if tensor is not None:
        del shape[column.dim]
    if tuple(shape) == column.shape:
        return column
    same = len(shape) == len(column.shape) == 2
    changed = [dim for dim in range(2) if same and shape[dim] != column.shape[dim]]
    sizes = (texts.tokens, texts.other_tokens)
    if len(changed) == 1 and (column.shape[changed[0]], shape[changed[0]]) == sizes:
        return replace(column, tokens=changed[0])
    raise LayerError(
        f"{record.key} has no rows of one vector for each token: the shape of a row is"
        f" {_shape_text(column.shape)} for {sizes[0]} tokens and {_shape_text(shape)} for"
        f" {sizes[1]}.",
        f"Leave it out: --layer {quote_word(f'!{record.module}')}",
    )


def _shape_text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "one number"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:100]
