"""The run of a model over a dataset: read ahead, forward, and write in the background.

Three things overlap: worker processes read the next batches, the model runs on the current one, and
a thread writes the previous ones. Every queue is short, so memory does not grow with the dataset.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hookscope.errors import CheckFailed, InputError
from hookscope.execution.forward import forward_error
from hookscope.execution.isolation import gpus_of, preserve_model_state
from hookscope.extraction.row_batches import RowBatch, is_dead_worker, report_dead_workers
from hookscope.extraction.shape_probe import RecordColumn
from hookscope.extraction.shard_writer import BackgroundWriter, PendingBatch, Shard
from hookscope.extraction.sinks import BatchSink, HostCopy
from hookscope.files.signal_safety import signal_safe, signal_safe_contextmanager
from hookscope.hooks.capture import Capture
from hookscope.hooks.early_stop import EarlyStop
from hookscope.hooks.layers import Layer
from hookscope.hooks.recorder import Recorder
from hookscope.stores.features.location import Location
from hookscope.tensors.copy_streams import CopyStreams
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.nested import as_call, map_tensors
from hookscope.tensors.seeding import seeded_throughout

log = logging.getLogger("hookscope")

T = TypeVar("T")
Forward = Callable[[RowBatch], dict[str, Tensor]]


@dataclass
class WaitTimes:
    """Seconds that the run waited for each of its parts."""

    read: float = 0.0
    forward: float = 0.0
    write: float = 0.0

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Add the time spent in the block to one of the parts."""
        begun = time.perf_counter()
        yield
        setattr(self, part, getattr(self, part) + time.perf_counter() - begun)

    def reading(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield the batches; add the time spent waiting for each of them."""
        source = iter(batches)
        while True:
            with self.of("read"):
                batch = next(source, None)
            if batch is None:
                return
            yield batch


@dataclass
class RunProgress:
    """Rows done, bytes written, inputs skipped, and where the time went."""

    total: int
    earlier: int = 0
    rows: int = 0
    bytes: int = 0
    skipped: int = 0
    times: WaitTimes = field(default_factory=WaitTimes)
    begun: float = field(default_factory=time.perf_counter)

    @property
    def done(self) -> int:
        """Rows that are done, those of earlier runs included."""
        return self.earlier + self.rows

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.begun


@dataclass(frozen=True)
class BatchRunner:
    """Runs the model on one batch after another."""

    module: nn.Module
    layers: Sequence[Layer]
    kinds: frozenset[str]
    columns: Mapping[str, RecordColumn]
    last: tuple[str, int] | None
    seed: int
    device: torch.device
    dtype: torch.dtype | None
    autocast: torch.dtype | None = None
    channels_last: bool = False
    skip_bad: bool = False
    copies: CopyStreams = field(default_factory=CopyStreams)

    @signal_safe_contextmanager
    def forward_passes(self) -> Iterator[Forward]:
        """Yield a function that runs the model on a batch and returns its rows by key."""
        early_stop = None
        if self.last is not None:
            name, number = self.last
            layer = next(layer for layer in self.layers if layer.name == name)
            early_stop = EarlyStop(self.module, {layer: number})
        gpus = gpus_of(self.module)

        def forward(batch: RowBatch) -> dict[str, Tensor]:
            self._check_usable(batch)
            # Seeded per batch, so that the values do not depend on the batches before it.
            with seeded_throughout((self.seed + batch.rows[0]) % 2**63, gpus):
                capture = self._record(batch, early_stop)
            return self._rows_of(capture, batch)

        preserved = preserve_model_state(self.module, train=False, seed=self.seed)
        with report_dead_workers(), preserved, grad_mode(False):
            yield forward

    def _check_usable(self, batch: RowBatch) -> None:
        if batch.bad and not self.skip_bad:
            raise InputError(
                batch.entries[batch.bad[0]]["skipped"],
                "Fix the input and run the same command with --resume, or skip such inputs with"
                " --resume --skip-bad.",
            )

    def _record(self, batch: RowBatch, early_stop: EarlyStop | None) -> Capture:
        value = map_tensors(batch.value, lambda path, tensor: self._to_device(tensor))
        args, kwargs = as_call(value)
        recorder = Recorder(self.module, self.layers, self.kinds)
        stopping = early_stop.passing(recorder.calls) if early_stop else nullcontext()
        autocast = (
            signal_safe(torch.autocast(self.device.type, self.autocast))
            if self.autocast
            else nullcontext()
        )
        with recorder as capture, stopping, autocast:
            try:
                self.module(*args, **kwargs)
            except Exception as error:
                if is_dead_worker(error):
                    raise
                raise forward_error(self.module, value, error, capture) from error
        return capture

    def _to_device(self, tensor: Tensor) -> Tensor:
        dtype = self.dtype if tensor.is_floating_point() else None
        moved = self.copies.to_device(tensor, self.device, dtype)
        if self.channels_last and moved.ndim == 4:
            return moved.contiguous(memory_format=torch.channels_last)
        return moved

    def _rows_of(self, capture: Capture, batch: RowBatch) -> dict[str, Tensor]:
        """The recorded tensors with the rows as first dimension, checked against ``columns``."""
        names = batch.numbers
        if list(capture) != list(self.columns):
            odd = next(iter(set(capture) ^ set(self.columns)), "the order of keys")
            raise CheckFailed(
                f"{names} returned other tensors than the rows before: {odd}.",
                "The layers that run depend on the input. Select layers that always run.",
            )
        rows: dict[str, Tensor] = {}
        for key, column in self.columns.items():
            tensor = _rows_first(capture[key], column, len(batch.rows))
            expected = (len(batch.rows), *column.shape_for(batch.tokens))
            if tensor.shape != expected:
                raise CheckFailed(
                    f"{names} returned {key} with shape {tuple(tensor.shape)}, not {expected}.",
                    "The shape depends on the input or on the batch size: give all inputs one"
                    " --size, texts one number of tokens, or use a --batch that divides the number"
                    " of inputs, such as 1.",
                )
            if tensor.dtype != column.dtype:
                raise CheckFailed(
                    f"{names} returned {key} with dtype {str(tensor.dtype)[6:]}, not"
                    f" {str(column.dtype)[6:]}.",
                    "The dtype depends on the input. Leave the layer out.",
                )
            rows[key] = tensor
        return rows


def run_batches(
    runner: BatchRunner,
    location: Location,
    shards: Sequence[Shard],
    batches: Iterable[RowBatch],
    sink: BatchSink,
    progress: Callable[[RunProgress], None],
    earlier: int,
) -> RunProgress:
    """Run the model on the batches of ``shards``, and store the results after ``earlier`` rows."""
    state = RunProgress(earlier + sum(shard.rows for shard in shards), earlier)
    remaining = iter(shards)
    shard, written = next(remaining, None), 0
    with runner.forward_passes() as forward, BackgroundWriter(location, sink.begin) as writer:
        for batch, values in _stored_values(batches, forward, sink, state.times, runner.device):
            assert shard is not None
            rows = zip(batch.rows, batch.entries, strict=True)
            entries = [{"row": row, **entry} for row, entry in rows]
            with state.times.of("write"):
                writer.put(PendingBatch(shard, batch.rows, values, entries))
            state.rows += len(batch.rows)
            written += len(batch.rows)
            state.skipped += len(batch.bad)
            state.bytes = writer.bytes
            progress(state)
            if written == shard.rows:
                log.debug("%d of %d rows are done.", state.done, state.total)
                shard, written = next(remaining, None), 0
    state.bytes = writer.bytes
    return state


def _stored_values(
    batches: Iterable[RowBatch],
    forward: Forward,
    sink: BatchSink,
    times: WaitTimes,
    device: torch.device,
) -> Iterator[tuple[RowBatch, Any]]:
    """Yield batches with their values on the CPU; a GPU gets the next batch before that wait."""
    ahead = int(device.type == "cuda")
    pending: deque[tuple[RowBatch, HostCopy]] = deque()

    def wait() -> tuple[RowBatch, Any]:
        with times.of("forward"):
            batch, copy = pending.popleft()
            return batch, copy.wait()

    for batch in times.reading(batches):
        with times.of("forward"):
            pending.append((batch, sink.values(forward(batch), batch)))
        if len(pending) > ahead:
            yield wait()
    while pending:
        yield wait()


def _rows_first(tensor: Tensor, column: RecordColumn, rows: int) -> Tensor:
    if rows == 1 and tensor.shape == column.shape:  # x.squeeze() has removed the rows' dimension
        return tensor.unsqueeze(0)
    return tensor.movedim(column.dim, 0) if tensor.ndim > column.dim else tensor
