"""Shapes and execution order of the selected layers, determined before the first batch.

The model runs on the meta device, which also shows whether the order of the layers depends on data;
see ``execution/trial_pass.py``. The dimension whose size is the number of rows is the dimension of
the rows. A number that divides no other size shows it in one pass; otherwise two passes do, with
two and with three rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

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
from hookscope.tensors.nested import walk

log = logging.getLogger("hookscope")

FEW, MORE = 2, 3  # numbers of rows of the two passes
ONE_PASS = (7, 11, 13, 17)  # primes: numbers of rows of one pass, if no size is a multiple


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
    with preserve_model_state(module, train=False, seed=seed):
        found = None
        if autocast is None and texts is None:
            with suppress(Exception):
                found = _probe_once(module, layers, kinds, make_inputs, seed)
        if found is None:
            found = _probe_twice(module, layers, kinds, make_inputs, seed, autocast, texts)
    for column in found.columns:
        if column.dim:
            log.info("%s: batch dimension %d moved to the front", column.record.key, column.dim)
    return found


def _probe_twice(
    module: nn.Module,
    layers: Sequence[Layer],
    kinds: Iterable[str],
    make_inputs: Callable[[int], Any],
    seed: int,
    autocast: torch.dtype | None,
    texts: TextLengths | None,
) -> ShapeProbe:
    """Probe with two numbers of rows, and with texts of another length."""
    values = [make_inputs(FEW), make_inputs(MORE), *([texts.other] if texts else [])]
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


def _is_unlike(number: int, module: nn.Module, value: Any) -> bool:
    """Whether no size of a parameter, a buffer or an input is a multiple of a number."""
    tensors = chain(module.parameters(), module.buffers(), (x for _, x in walk(value)))
    return all(size % number for tensor in tensors for size in tensor.shape)


def _probe_once(
    module: nn.Module,
    layers: Sequence[Layer],
    kinds: Iterable[str],
    make_inputs: Callable[[int], Any],
    seed: int,
) -> ShapeProbe | None:
    """Probe with one pass; return None if it leaves a doubt."""
    example = make_inputs(FEW)
    rows = next((n for n in ONE_PASS if _is_unlike(n, module, example)), None)
    if rows is None:
        return None
    found = TrialModel(module, layers, train=False, seed=seed).run(kinds, make_inputs(rows))
    if found.doubt:
        return None
    columns: list[RecordColumn] = []
    for record in found.capture.records:
        tensor = found.capture[record.key]
        dims = [dim for dim, size in enumerate(tensor.shape) if size % rows == 0]
        if len(dims) != 1 or tensor.shape[dims[0]] != rows:
            return None
        columns.append(_column(record, dims[0], tensor))
    last = None if found.order is None else found.order.last
    return ShapeProbe(tuple(columns), last, found.capture.coverage)


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
        yield _column(record, dim, tensor)


def _column(record: Record, dim: int, tensor: Tensor) -> RecordColumn:
    shape = (*tensor.shape[:dim], *tensor.shape[dim + 1 :])
    return RecordColumn(record, dim, tuple(shape), tensor.dtype)


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
