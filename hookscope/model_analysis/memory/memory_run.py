"""The memory of a request: its model and input without values, and the search for its limit."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hookscope.errors import RequestError
from hookscope.execution.optimizer_step import resolve_optimizer
from hookscope.execution.prepare import Prepared
from hookscope.execution.provenance import describe_run
from hookscope.files.signal_safety import signal_safe
from hookscope.files.words import bytes_text
from hookscope.hooks.layers import Layer
from hookscope.inputs.batch import build_batch
from hookscope.inputs.input_reader import Batch
from hookscope.model_analysis.memory.batch_search import find_batch
from hookscope.model_analysis.memory.checkpoint_search import plan_checkpoints
from hookscope.model_analysis.memory.fake_step import FakeStep, StepRun, without_log_lines
from hookscope.model_analysis.memory.plain_loss import loss_of
from hookscope.model_analysis.model_tree import load_modules
from hookscope.results.memory import BatchLimit, CheckpointPlan, LayerMemory, Memory, MemoryParts
from hookscope.sources.loaded import LoadedModel
from hookscope.sources.meta import meta_copy
from hookscope.specs.memory_options import MemoryOptions
from hookscope.specs.model_spec import FILE
from hookscope.specs.module_names import ancestors
from hookscope.specs.patterns import ROOT
from hookscope.specs.request import Request
from hookscope.tensors.nested import map_tensors
from hookscope.tensors.torch_internals import fake_tensors

log = logging.getLogger("hookscope")


def measure(request: Request, options: MemoryOptions) -> Memory:
    """Return the memory of a training step, or of inference without an optimizer."""
    optimizer = None
    if options.optimizer is not None:
        optimizer = resolve_optimizer(options.optimizer, None, options.opt_args)
    assert request.loss is not None
    loss = None if optimizer is None else loss_of(request.loss)
    autocast = getattr(torch, options.autocast) if options.autocast else None
    dtype = getattr(torch, request.run.dtype) if request.run.dtype else None
    mode = fake_tensors().FakeTensorMode(allow_non_fake_inputs=True)
    loaded = _load(request, mode)
    batch = _batch(request, loaded, mode)
    log.info("%s", batch.note)
    value = map_tensors(batch.value, lambda _, tensor: _without_values(tensor))
    with signal_safe(mode):
        step = FakeStep(mode, loaded.module, value, loss, optimizer, autocast, dtype)
        run = step.run()
        if options.limit is not None:
            _check_limit(step, run.fixed(), options.limit)
        limit, checkpoints = _fitted(step, run, options.limit)
    made = Prepared(
        loaded,
        step.module,
        (),
        value,
        batch.sources,
        request.run.seed,
        torch.device("cpu"),
        str(step.dtype).removeprefix("torch."),
        loss is not None,
    )
    metadata = describe_run("memory", made, request.chosen(options))
    peak = run.peak()
    rows = _rows(peak.layers, step.layers, request.layers.depth)
    parts = sum((row.parts for row in rows), start=MemoryParts())
    return Memory(
        step.batch, peak.size, peak.moment, parts, rows, run.flops, metadata, limit, checkpoints
    )


def _load(request: Request, mode: Any) -> LoadedModel:
    """The model, where its source allows that without values; a live one as a copy."""
    if not request.model.named:
        live = load_modules(request.model, meta=False)
        return replace(live, module=meta_copy(live.module))
    if request.model.source == FILE:  # built by code that the meta device may not suit
        with suppress(Exception), without_log_lines(), signal_safe(mode):
            return load_modules(request.model, meta=True)
    return load_modules(request.model, meta=True, inputs=request.input.input is not None)


def _batch(request: Request, loaded: LoadedModel, mode: Any) -> Batch:
    """The input, of which the shapes are used; noise of a shape is made without values."""
    shape = None if request.input.shape is None else tuple(request.input.shape)
    if request.input.input is None:
        with suppress(Exception), without_log_lines(), signal_safe(mode):
            return build_batch(loaded, shape=shape)
    return build_batch(loaded, request.input.input, shape=shape)


def _without_values(tensor: Tensor) -> Tensor:
    shape, needs_grad = tuple(tensor.shape), tensor.requires_grad
    return torch.empty(shape, dtype=tensor.dtype, device="meta", requires_grad=needs_grad)


def _check_limit(step: FakeStep, fixed: MemoryParts, limit: int) -> None:
    """Raise RequestError if the limit is below what a step of any batch needs."""
    kept = fixed.parameters + fixed.buffers
    if limit < kept:
        raise RequestError(
            f"The parameters and buffers alone take {bytes_text(kept)}, more than the limit of"
            f" {bytes_text(limit)}.",
            "Raise --limit, or choose a smaller --dtype, such as bfloat16.",
        )
    if limit < fixed.total:
        raise RequestError(
            f"Parameters, gradients and the state of the optimizer alone take"
            f" {bytes_text(fixed.total)}, more than the limit of {bytes_text(limit)}.",
            "Raise --limit, or choose an optimizer with less state, such as sgd, or a smaller"
            " --dtype.",
        )
    if step.batch is None:
        raise RequestError(
            "The first argument of the model is not one tensor, so it has no dimension of samples,"
            " and --limit cannot look for the largest batch.",
            "Leave out --limit.",
        )


def _fitted(
    step: FakeStep, run: StepRun, limit: int | None
) -> tuple[BatchLimit | None, CheckpointPlan | None]:
    """The largest batch within a limit, and the layers to checkpoint if the batch is larger."""
    if limit is None or step.batch is None:
        return None, None
    peak = run.peak().size
    largest = find_batch(lambda batch: step.run(batch).log, step.batch, run.log, limit)
    if peak <= limit or not step.is_training:
        return largest, None
    plan = plan_checkpoints(lambda names: step.run(None, names), step.layers, run, limit)
    return largest, plan


def _rows(
    parts: Mapping[str, MemoryParts], layers: Sequence[Layer], depth: int | None
) -> tuple[LayerMemory, ...]:
    """What each layer holds; below ``depth`` it is added to the layer above."""
    shown = {layer.name for layer in layers if depth is None or layer.depth <= depth}
    types = {layer.name: layer.type for layer in layers}
    sums: dict[str, MemoryParts] = defaultdict(MemoryParts)
    for name, held in parts.items():
        above = [x for x in (ROOT, *ancestors(name)) if x in shown and name in types]
        row = name if name in shown or not above else above[-1]
        sums[row] += held
    order = {name: i for i, name in enumerate(("", *types))}
    rows = (LayerMemory(name, types.get(name, ""), held) for name, held in sums.items())
    return tuple(sorted(rows, key=lambda row: order.get(row.name, len(order))))
