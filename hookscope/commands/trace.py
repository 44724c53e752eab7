"""List the calls of all layers when a model runs, in order."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import click

from hookscope.cli import options
from hookscope.cli.commands import Example
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command, table_options
from hookscope.cli.output_file import Output, one_of, only
from hookscope.cli.runner import remember_executed, run_analysis
from hookscope.errors import RequestError
from hookscope.files.output_path import PAGE
from hookscope.files.progress_types import Progress
from hookscope.specs.command_options import TraceOptions
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
    from hookscope.results.trace import Trace

log = logging.getLogger("hookscope")


@public
def trace(
    options: TraceOptions,
    loss: Annotated[LossRequest, Only("forward_only", *PLAIN_LOSS.names)],
    layers: LayerSelection,
    input: InputRequest,
    model: ModelRequest,
    run: Annotated[RunOptions, PLAIN_RUN],
    request: Request,
    *,
    progress: Progress | None = None,
) -> Trace:
    """Run a model forward and a loss backward; return the calls of all layers, in order.

    Times are wall-clock times of one run, without the time spent in the hooks of hookscope. On a
    GPU every hook first waits for the device. With ``repeat``, the model is always among the
    layers, and its input gets no gradient.

    Args:
        progress: called with the number of runs done and the total, with ``repeat``.

    Raises:
        LossError: the loss or its target does not fit the output.
        ForwardError: the model raised, forward or backward.
        CheckFailed: with ``repeat``, the model did not make the same calls in each run.

    Example:
        >>> import hookscope
        >>> found = hookscope.trace("resnet18", layers=["layer4.1.*"], shape=(1, 3, 64, 64))
        >>> [event.module for event in found.events if event.direction == "backward"][:3]
        ['layer4.1.relu', 'layer4.1.bn2', 'layer4.1.conv2']
    """
    from hookscope.execution.objective import resolve_loss
    from hookscope.execution.prepare import prepare
    from hookscope.execution.provenance import describe_run
    from hookscope.execution.verification import verify_output_unchanged
    from hookscope.model_analysis.traced_runs import timed_runs, traced_run
    from hookscope.tensors.grad_mode import grad_mode

    if model.source == ONNX and loss.is_default:
        loss = replace(loss, forward_only=True)  # it has no gradients
        log.info("times: onnxruntime computes the whole graph in one step, the model's own")
    request = replace(request, loss=loss)
    objective = None if loss.forward_only else resolve_loss(loss, any_output=True)
    prepared = prepare(request)
    metadata = describe_run("trace", prepared, request.chosen(options))
    if options.repeat is None:
        found = traced_run(prepared, objective)
    else:
        found = timed_runs(prepared, objective, options, progress)
    if objective is not None:  # recording gradients passes clones through the model
        with grad_mode(True):
            verify_output_unchanged(prepared, found.output, excuse_noise=True)
    return replace(found, metadata={**metadata, **found.metadata})


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
        "hookscope trace sample_models/digits.py:trained --repeat 20 -o digits.html",
        "Median and spread of each layer's time, and a page with a flame graph.",
    ),
)

OUTPUT = Output(
    "File to write: .json, .csv, or .html with a flame graph. Default: none.",
    one_of(".json", ".csv", PAGE),
)
CHROME = Output(
    "Write a trace-event JSON file for Perfetto or Chrome.",
    only(".json"),
    flags=("--chrome",),
    name="chrome",
    force=False,
)


@command(
    "trace",
    options.model,
    options_of(TraceOptions),
    options_of(LossRequest, "forward_only"),
    options.loss,
    options.layers,
    options.inputs,
    options.texts,
    options.run,
    OUTPUT.options,
    CHROME.options,
    table_options,
    views="trace",
    examples=EXAMPLES,
    main="layer repeat forward-only input shape output chrome",
    also="target warmup",
    topics="model-specs layers inputs weights losses",
)
def trace_command(ctx: click.Context, **values: Any) -> None:
    """List every layer call in execution order, or time each layer.

    Forward calls come first, then backward. Each line shows the call number, the shapes and bytes
    of the output (in the backward pass: of its gradients), the time in milliseconds, and the time
    without the layers inside, listed or not. Nested calls are indented. Times are wall-clock times
    of one run, without the time spent in hooks. A container that is never called, such as a
    ModuleList, stands for the layers inside it.

    With --repeat, each line shows a layer: the median and the spread of its time over N runs, and
    its share of the time of the whole model. The input of the model gets no gradient.
    """
    if values["force"] and not (values["output"] or values["chrome"]):
        raise RequestError("--force needs a file.", "Add --output FILE or --chrome FILE.")
    chrome = CHROME.resolve(ctx)
    del values["chrome"]
    result = run_analysis(ctx, trace, values, OUTPUT, "timing")
    remember_executed(values["model"], result.coverage)
    if chrome:
        written = result.save_chrome(chrome.path)
        ctx.obj.note(f"{chrome.written(written)}; open it in https://ui.perfetto.dev")
