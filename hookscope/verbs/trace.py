"""What fires when a model runs, in order."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hookscope.choices import DEFAULT_MODEL
from hookscope.differentiate import differentiate, settle_loss
from hookscope.events import Trace
from hookscope.execute import (
    demand_unchanged,
    forward,
    settled,
    untouched,
)
from hookscope.keywords import (
    options_of,
    prepared_for,
)
from hookscope.losses.formulas import refuse_idle_loss
from hookscope.provenance import describe_run
from hookscope.recorder import Recorder
from hookscope.tracing import Tracer


def trace(
    model: str | os.PathLike[str] | nn.Module | torch.export.ExportedProgram = DEFAULT_MODEL,
    *,
    forward_only: bool = False,
    loss: str | Callable[..., Any] | None = None,
    target: Any = "argmax",
    reduction: str | None = None,
    raw: bool = False,
    layers: str | Iterable[str] = (),
    types: str | Iterable[str] = (),
    depth: int | None = None,
    leaves: bool = False,
    input: Any = None,
    shape: Sequence[int] | None = None,
    preprocess: str | None = None,
    size: int | tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    weights: str | os.PathLike[str] = "random",
    rename: Mapping[str, str] | None = None,
    partial: bool = False,
    model_args: Mapping[str, Any] | None = None,
    method: str | None = None,
    attn: str | None = None,
    trust: bool = False,
    seed: int = 0,
    dtype: str | None = None,
    device: str | None = None,
    train: bool = False,
) -> Trace:
    """Run a model forward and a loss backward; return which layers fired, in order.

    Times are those of one run, by the wall clock, with what hookscope's own hooks took out of them;
    of a GPU, after waiting for it at every hook. Keywords of ``grads`` mean the same here.

    Args:
        forward_only: run no backward pass, and nothing of autograd.

    Raises:
        LossError: the loss or its target does not fit the output.
        ForwardError: the model raised, forward or backward.

    Example:
        >>> import hookscope
        >>> found = hookscope.trace("resnet18", layers=["layer4.1.*"], shape=(1, 3, 64, 64))
        >>> [event.module for event in found.events if event.direction == "backward"][:3]
        ['layer4.1.relu', 'layer4.1.bn2', 'layer4.1.conv2']
    """
    given = locals()
    options = options_of(given, trace)
    if forward_only:
        refuse_idle_loss(loss, target, reduction, raw)
    measure = None if forward_only else settle_loss(loss, target, reduction, raw)
    prepared = prepared_for("trace", given)
    metadata = describe_run("trace", prepared, options)
    guard = untouched(prepared.module, train=train, seed=seed)
    watch = functools.partial(Tracer, prepared.module, prepared.layers, prepared.device)
    with (
        torch.inference_mode(False),
        torch.set_grad_enabled(not forward_only),  # switches when made: not before the line above
        guard,
        watch(backward=not forward_only) as tracer,
    ):
        if measure is None:
            output = settled(forward(prepared))
        else:
            recorder = Recorder(prepared.module, (), ())
            metadata |= differentiate(prepared, recorder, measure)
            output = settled(recorder.capture.output)
    if measure is not None:  # the clones that go through the model then
        with torch.enable_grad():
            demand_unchanged(prepared, output, excuse_noise=True)
    return tracer.trace(metadata, output)
