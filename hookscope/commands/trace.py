"""List the calls of all layers when a model runs, in order."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import click

from hookscope.cli import options
from hookscope.cli.commands import Example
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command, table_options
from hookscope.cli.output_file import Output, only, without_output
from hookscope.cli.run_context import running
from hookscope.cli.runner import remember_executed
from hookscope.errors import RequestError
from hookscope.files.signal_safety import signal_safe
from hookscope.specs.model_spec import ONNX
from hookscope.specs.public import PLAIN_LOSS, PLAIN_RUN, Only, public
from hookscope.specs.request import (
    InputRequest,
    LayerSelection,
    LossRequest,
    ModelRequest,
    Request,
)
from hookscope.specs.run_options import RunOptions

if TYPE_CHECKING:
    from hookscope.results.trace_events import Trace

log = logging.getLogger("hookscope")


@public
def trace(
    loss: Annotated[LossRequest, Only("forward_only", *PLAIN_LOSS.names)],
    layers: LayerSelection,
    input: InputRequest,
    model: ModelRequest,
    run: Annotated[RunOptions, PLAIN_RUN],
    request: Request,
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
    import torch

    from hookscope.execution.failures.failure_explanation import explain_forward_errors
    from hookscope.execution.forward import forward
    from hookscope.execution.objective import differentiate, resolve_loss
    from hookscope.execution.prepare import prepare
    from hookscope.execution.provenance import describe_run
    from hookscope.execution.verification import verify_output_unchanged
    from hookscope.hooks.recorder import Recorder
    from hookscope.hooks.tracer import TraceClock, Tracer
    from hookscope.tensors.grad_mode import grad_mode
    from hookscope.tensors.nested import detach_clone

    if model.source == ONNX and loss.is_default:
        loss = replace(loss, forward_only=True)  # it has no gradients
        log.info("times: onnxruntime computes the whole graph in one step, the model's own")
    request = replace(request, loss=loss)
    objective = None if loss.forward_only else resolve_loss(loss)
    prepared = prepare(request)
    metadata = describe_run("trace", prepared, request.chosen())
    clock, backward = TraceClock(prepared.device), objective is not None
    with (
        explain_forward_errors(prepared),
        signal_safe(torch.inference_mode(False)),
        grad_mode(backward),
        prepared.preserved(),
        Tracer(prepared.module, prepared.layers, clock, backward=backward) as tracer,
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


EXAMPLES = (
    Example(
        'hookscope trace resnet18 --layer "layer4.*" --shape 1x3x64x64',
        "One stage, forward and then backward.",
    ),
    Example(
        "hookscope trace sample_models/digits_scripted.pt --chrome digits.trace.json",
        "A scripted file; the trace opens in https://ui.perfetto.dev.",
    ),
    Example(
        "hookscope trace sample_models/digits_exported.pt2 --forward-only --leaves",
        "The forward pass only, leaf layers only.",
    ),
)

OUTPUT = Output(
    "Also write a trace-event JSON file for Perfetto or Chrome.", only(".json"), flags=("--chrome",)
)


@command(
    "trace",
    options.model,
    options_of(LossRequest, "forward_only"),
    options.loss,
    options.layers,
    options.inputs,
    options.texts,
    options.run,
    OUTPUT.options,
    table_options,
    views="trace",
    examples=EXAMPLES,
    main="layer leaves forward-only input model-arg shape chrome",
    topics="model-specs layers inputs weights losses",
)
def trace_command(ctx: click.Context, **values: Any) -> None:
    """List every layer call in execution order.

    Forward calls come first, then backward. Each line shows the call number, the shapes and bytes
    of the output (in the backward pass: of its gradients), the time in milliseconds, and the time
    without nested listed layers. Nested calls are indented. Times are wall-clock times of one run,
    without the time spent in hooks.
    """
    if values["force"] and not values["output"]:
        raise RequestError("--force needs --chrome.", "Add --chrome FILE.")
    console: Console = ctx.obj
    values = without_output(values)
    job = trace.checked(**values)
    file = OUTPUT.resolve(ctx)
    options.note_model_source(ctx)
    with running(console, f"Running {values['model']} ..."):
        result = job()
        written = result.save_chrome(file.path) if file else 0
    remember_executed(values["model"], result.coverage)
    console.show(result)
    if file:
        console.note(f"{file.written(written)}; open it in https://ui.perfetto.dev")
