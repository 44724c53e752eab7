"""How far a run over a dataset is, and where its time went."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hookscope.errors import CheckFailed, InputError
from hookscope.execution.forward import forward_error, gpus_of, preserve_model_state
from hookscope.extraction.row_batches import RowBatch, is_dead_worker, report_dead_workers
from hookscope.extraction.shape_probe import RecordColumn
from hookscope.extraction.shard_writer import BackgroundWriter, PendingBatch
from hookscope.extraction.sharding_plan import Shard
from hookscope.extraction.sinks import BatchSink, HostCopy
from hookscope.hooks.capture import Capture
from hookscope.hooks.layers import Layer, submodule
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.registry import HookSet
from hookscope.results.features.location import Location
from hookscope.sources.wrappers import release_offloaded_weights
from hookscope.tensors.interrupts import signal_safe, signal_safe_contextmanager
from hookscope.tensors.nested import as_call, map_tensors
from hookscope.tensors.seeding import seeded_throughout

T = TypeVar("T")


@dataclass
class WaitTimes:
    """Seconds that the run waited for each of its parts."""

    read: float = 0.0
    forward: float = 0.0
    write: float = 0.0

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Count what passes in the block for one of the parts."""
        begun = time.perf_counter()
        yield
        setattr(self, part, getattr(self, part) + time.perf_counter() - begun)

    def reading(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield the batches; count what passes before each comes."""
        source = iter(batches)
        while True:
            with self.of("read"):
                batch = next(source, None)
            if batch is None:
                return
            yield batch


@dataclass
class RunProgress:
    """How far a run is: rows done of those to be done, bytes written, and where the time went."""

    total: int
    rows: int = 0
    bytes: int = 0
    skipped: int = 0
    times: WaitTimes = field(default_factory=WaitTimes)
    begun: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.begun


class _Enough(BaseException):
    """All that is wanted has been recorded. No Exception: a model may catch those of its own."""


class EarlyStop:
    """Ends each pass of ``model`` within :meth:`passing` after call ``number`` of a module.

    Its hook is to be attached after the recorder's: hooks of one module run in order.
    """

    def __init__(self, model: nn.Module, name: str, number: int) -> None:
        module = submodule(model, name)
        assert module is not None
        self._model, self._module = model, module
        self._hooks = HookSet(model)
        self._number = number
        self._calls = 0

    @signal_safe_contextmanager
    def passing(self) -> Iterator[None]:
        """Let the pass in the block end early."""
        self._calls = 0
        with self._hooks as hooks:
            hooks.after(self._module, self._after)
            with suppress(_Enough):
                yield
                return
        release_offloaded_weights(self._model.modules())

    def _after(self, *_: Any) -> None:
        self._calls += 1
        if self._calls == self._number:
            raise _Enough


log = logging.getLogger("hookscope")


@dataclass(frozen=True)
class BatchRunner:
    """What is done with each batch.

    Attributes:
        module: on its device, in its dtype.
        layers: those to record.
        kinds: ``output``, ``input``.
        columns: what they give, by key.
        last: the call of a module after which a pass ends; None for the whole pass.
        seed: of anything random in the model; each batch begins from it and its own first row.
        device: where the module is.
        dtype: of floating-point inputs; None to leave them.
        autocast: dtype of ``torch.autocast``; None for none.
        skip_bad: go on where an input cannot be used.
    """

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


def run_batches(
    work: BatchRunner,
    place: Location,
    shards: Sequence[Shard],
    batches: Iterable[RowBatch],
    keep: BatchSink,
    progress: Callable[[RunProgress], None],
) -> RunProgress:
    """Run the model on ``batches``, those of ``shards`` in order, and write what is kept of it.

    Raises:
        InputError: an input cannot be used, and ``skip_bad`` is not set.
        ForwardError: the model raised.
        CheckFailed: it gave other tensors than it did without values.
        StoreError: a shard cannot be written.
    """
    state = RunProgress(sum(shard.rows for shard in shards))
    rest = iter(shards)
    shard = next(rest, None)
    with forward_passes(work) as give, BackgroundWriter(place, keep.begin) as writing:
        for batch, values in _landed(batches, give, keep, state.times, work.device):
            assert shard is not None
            lines = [{"row": row, **told} for row, told in zip(batch.rows, batch.told, strict=True)]
            with state.times.of("write"):
                writing.put(PendingBatch(shard, batch.rows.start, values, lines))
            state.rows += len(batch.rows)
            state.skipped += len(batch.bad)
            state.bytes = writing.bytes
            progress(state)
            if batch.rows.stop == shard.last:
                log.debug("%d of %d rows are done.", state.rows, state.total)
                shard = next(rest, None)
    state.bytes = writing.bytes
    return state


def _landed(
    batches: Iterable[RowBatch],
    give: Callable[[RowBatch], dict[str, Tensor]],
    keep: BatchSink,
    times: WaitTimes,
    device: torch.device,
) -> Iterator[tuple[RowBatch, Any]]:
    """Yield the batches with what is kept of each, on the CPU.

    A GPU is given a batch before what it made of the one before is waited for.
    """
    ahead = int(device.type == "cuda")
    flying: deque[tuple[RowBatch, HostCopy]] = deque()

    def land() -> tuple[RowBatch, Any]:
        with times.of("forward"):
            batch, landing = flying.popleft()
            return batch, landing.wait()

    for batch in times.reading(batches):
        with times.of("forward"):
            flying.append((batch, keep.values(give(batch), batch.rows, batch.bad)))
        if len(flying) > ahead:
            yield land()
    while flying:
        yield land()


@signal_safe_contextmanager
def forward_passes(work: BatchRunner) -> Iterator[Callable[[RowBatch], dict[str, Tensor]]]:
    """Yield what runs the model on a batch and returns what its layers give, rows first."""
    stopper = EarlyStop(work.module, *work.last) if work.last else None

    gpus = gpus_of(work.module)

    def give(batch: RowBatch) -> dict[str, Tensor]:
        _refuse_bad(batch, work.skip_bad)
        # So that what a batch gives does not depend on which ran before it in this process.
        with seeded_throughout((work.seed + batch.rows.start) % 2**63, gpus):
            shot = _forward(work, batch, stopper)
        return _rows_of(work, shot, batch)

    still = preserve_model_state(work.module, train=False, seed=work.seed)
    with report_dead_workers(), still, signal_safe(torch.no_grad()):
        yield give


def _refuse_bad(batch: RowBatch, skip: bool) -> None:
    if batch.bad and not skip:
        told = batch.told[batch.bad[0]]
        raise InputError(
            told["skipped"],
            "Mend it and run the same command with --resume, or with --resume --skip-bad to go on"
            " without such inputs.",
        )


def _forward(work: BatchRunner, batch: RowBatch, stopper: EarlyStop | None) -> Capture:
    value = map_tensors(batch.value, lambda path, tensor: _placed(tensor, work))
    args, kwargs = as_call(value)
    recorder = Recorder(work.module, work.layers, work.kinds)
    mixed = torch.autocast(work.device.type, work.autocast) if work.autocast else nullcontext()
    with recorder as shot, stopper.passing() if stopper else nullcontext(), mixed:
        try:
            work.module(*args, **kwargs)
        except Exception as error:
            if is_dead_worker(error):
                raise
            raise forward_error(work.module, value, error, shot) from error
    return shot


def _placed(tensor: Tensor, work: BatchRunner) -> Tensor:
    dtype = work.dtype if tensor.is_floating_point() else None
    moved = tensor.to(work.device, dtype, non_blocking=True)
    if work.channels_last and moved.ndim == 4:
        return moved.contiguous(memory_format=torch.channels_last)
    return moved


def _rows_of(work: BatchRunner, shot: Capture, batch: RowBatch) -> dict[str, Tensor]:
    """What was recorded, rows first."""
    if list(shot) != list(work.columns):
        odd = next(iter(set(shot) ^ set(work.columns)), "the order of keys")
        raise CheckFailed(
            f"Rows {batch.rows.start} to {batch.rows.stop - 1} gave other tensors than the rows"
            f" before: {odd}.",
            "What the model runs depends on its input. Choose layers that always run.",
        )
    rows: dict[str, Tensor] = {}
    for key, column in work.columns.items():
        tensor = _rows_first(shot[key], column, len(batch.rows))
        if tensor.shape != (len(batch.rows), *column.shape):
            raise CheckFailed(
                f"Rows {batch.rows.start} to {batch.rows.stop - 1} gave {key} of shape"
                f" {tuple(tensor.shape)}, not {(len(batch.rows), *column.shape)}.",
                "The shape depends on the input, or on how many inputs run at once: bring inputs to"
                " one --size, or choose a --batch that divides the number of inputs, as 1 does.",
            )
        if tensor.dtype != column.dtype:
            raise CheckFailed(
                f"Rows {batch.rows.start} to {batch.rows.stop - 1} gave {key} of dtype"
                f" {str(tensor.dtype)[6:]}, not {str(column.dtype)[6:]}.",
                "What the model computes depends on its input. Leave the layer out.",
            )
        rows[key] = tensor
    return rows


def _rows_first(tensor: Tensor, column: RecordColumn, rows: int) -> Tensor:
    if rows == 1 and tensor.shape == column.shape:  # x.squeeze() has taken the rows' dimension
        return tensor.unsqueeze(0)
    return tensor.movedim(column.dim, 0) if tensor.ndim > column.dim else tensor
