"""List the calls of all layers when a model runs, in order."""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from typing import Annotated

import torch

from hookscope.api.public import PLAIN_LOSS, PLAIN_RUN, Only, public
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


@public
def trace(
    loss: Annotated[LossRequest, Only("forward_only", *PLAIN_LOSS.names)],
    layers: LayerSelection,
    input: InputRequest,
    model: ModelRequest,
    run: Annotated[RunOptions, PLAIN_RUN],
) -> Trace:
    """Run a model forward and a loss backward; return the calls of all layers, in order.

    Times are wall-clock times of one run, without the time spent in the hooks of hookscope. On a
    GPU every hook first waits for the device.

    Raises:
        LossError: the loss or its target does not fit the output.
        ForwardError: the model raised, forward or backward.

    Example:
        >>> import hookscope
        >>> found = hookscope.trace("resnet18", layers=["layer4.1.*"], shape=(1, 3, 64, 64))
        >>> [event.module for event in found.events if event.direction == "backward"][:3]
        ['layer4.1.relu', 'layer4.1.bn2', 'layer4.1.conv2']
    """
    if model.source == ONNX and loss.is_default:
        loss = replace(loss, forward_only=True)  # it has no gradients
        log.info("times: onnxruntime computes the whole graph in one step, the model's own")
    request = Request("trace", model, layers, input, run, loss=loss)
    objective = None if loss.forward_only else resolve_loss(loss)
    prepared = prepare(request)
    metadata = describe_run("trace", prepared, request.chosen())
    guard = preserve_model_state(prepared.module, train=run.train, seed=run.seed)
    watch = functools.partial(Tracer, prepared.module, prepared.layers, prepared.device)
    with (
        explain_forward_errors(prepared),
        signal_safe(torch.inference_mode(False)),
        grad_mode(objective is not None),
        guard,
        watch(backward=objective is not None) as tracer,
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
