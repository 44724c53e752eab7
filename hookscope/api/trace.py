"""List the calls of all layers when a model runs, in order."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.forward import detach_clone, forward
from hookscope.execution.isolation import preserve_model_state
from hookscope.execution.objective import differentiate, resolve_loss
from hookscope.execution.prepare import prepare
from hookscope.execution.provenance import describe_run
from hookscope.execution.verification import verify_output_unchanged
from hookscope.files.signal_safety import signal_safe
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.tracer import Tracer
from hookscope.results.trace_events import Trace
from hookscope.specs.choices import DEFAULT_MODEL
from hookscope.specs.model_spec import ONNX
from hookscope.specs.request import (
    InputRequest,
    LayerSelection,
    LossRequest,
    ModelRequest,
    Request,
)
from hookscope.specs.run_options import RunOptions
from hookscope.tensors.grad_mode import grad_mode

log = logging.getLogger("hookscope")


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
    tokenizer: str | os.PathLike[str] | None = None,
    chat: bool = False,
    weights: str | os.PathLike[str] = "random",
    rename: Mapping[str, str] | None = None,
    partial: bool = False,
    model_args: Mapping[str, Any] | None = None,
    method: str | None = None,
    attn: str | None = None,
    trust: bool = False,
    onnx_optimize: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    seed: int = 0,
    dtype: str | None = None,
    device: str | None = None,
    train: bool = False,
) -> Trace:
    """Run a model forward and a loss backward; return the calls of all layers, in order.

    Times are wall-clock times of one run, without the time spent in the hooks of hookscope. On a
    GPU every hook first waits for the device. Keywords that ``grads`` also has mean the same here.

    Args:
        forward_only: run no backward pass, and without autograd.

    Raises:
        LossError: the loss or its target does not fit the output.
        ForwardError: the model raised, forward or backward.

    Example:
        >>> import hookscope
        >>> found = hookscope.trace("resnet18", layers=["layer4.1.*"], shape=(1, 3, 64, 64))
        >>> [event.module for event in found.events if event.direction == "backward"][:3]
        ['layer4.1.relu', 'layer4.1.bn2', 'layer4.1.conv2']
    """
    loss_request = LossRequest(loss, target, reduction, raw, forward_only=forward_only)
    model_request = ModelRequest(
        model, weights, rename, partial, model_args, method, attn, trust, onnx_optimize, adapter
    )
    if model_request.source == ONNX and loss_request.is_default:
        forward_only = True  # it has no gradients
        loss_request = replace(loss_request, forward_only=True)
        log.info("times: onnxruntime computes the whole graph in one step, the model's own")
    request = Request(
        "trace",
        model_request,
        LayerSelection(layers, types, depth, leaves),
        InputRequest(input, shape, preprocess, size, mean, std, tokenizer, chat),
        RunOptions(seed, dtype, device, train=train),
        loss=loss_request,
    )
    objective = None if forward_only else resolve_loss(loss_request)
    prepared = prepare(request)
    metadata = describe_run("trace", prepared, request.chosen())
    guard = preserve_model_state(prepared.module, train=train, seed=seed)
    watch = functools.partial(Tracer, prepared.module, prepared.layers, prepared.device)
    with (
        explain_forward_errors(prepared),
        signal_safe(torch.inference_mode(False)),
        grad_mode(not forward_only),
        guard,
        watch(backward=not forward_only) as tracer,
    ):
        if objective is None:
            output = detach_clone(forward(prepared))
        else:
            recorder = Recorder(prepared.module, (), ())
            metadata |= differentiate(prepared, recorder, objective)
            output = detach_clone(recorder.capture.output)
    if objective is not None:  # recording gradients passes clones through the model
        with grad_mode(True):
            verify_output_unchanged(prepared, output, excuse_noise=True)
    return tracer.trace(metadata, output)
