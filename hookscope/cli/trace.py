"""``hookscope trace``: the calls of all layers when a model runs, in order."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import completion_values, options
from hookscope.cli import options as input_options
from hookscope.cli import options as loss_options
from hookscope.cli.commands import Example, command, option
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import global_options
from hookscope.cli.param_types import FileName
from hookscope.cli.run_context import running
from hookscope.cli.table_options import table_options
from hookscope.errors import RequestError
from hookscope.specs.request import LossRequest

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


@command(
    "trace",
    options.model,
    options_of(LossRequest, "forward_only"),
    loss_options.loss,
    options.layers,
    input_options.inputs,
    input_options.texts,
    options.run,
    option(
        "--chrome",
        section="Output",
        type=FileName("file"),
        help="Also write a trace-event JSON file for Perfetto or Chrome.",
    ),
    options.force,
    table_options,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    main="layer leaves forward-only input model-arg shape chrome",
    topics="model-specs layers inputs weights losses",
)
def trace(ctx: click.Context, chrome: str | None, force: bool, **values: Any) -> None:
    """List every layer call in execution order.

    Forward calls come first, then backward. Each line shows the call number, the shapes and bytes
    of the output (in the backward pass: of its gradients), the time in milliseconds, and the time
    without nested listed layers. Nested calls are indented. Times are wall-clock times of one run,
    without the time spent in hooks.
    """
    console: Console = ctx.obj
    from pathlib import Path

    from hookscope.cli.request_builder import build_request
    from hookscope.files import output_path as outputs

    build_request("trace", values)
    if force and not chrome:
        raise RequestError("--force needs --chrome.", "Add --chrome FILE.")
    if chrome:
        outputs.check_ending(Path(chrome), ".json")
    replaces = outputs.check_output(Path(chrome), force, "--chrome", ".json") if chrome else False
    options.note_model_source(ctx)
    with running(console, f"Running {values['model']} ..."):
        from hookscope.api.trace import trace as api_trace

        result = api_trace(**values)
        written = result.save_chrome(chrome) if chrome else 0
    names = [(layer.module, layer.type) for layer in result.coverage.executed]
    names += [(layer.module, layer.type) for layer in result.coverage.not_executed]
    completion_values.remember_layers(values["model"], names, complete=False)
    console.show(result)
    if chrome:
        from hookscope.files.words import bytes_text

        replaced = ", replacing an earlier file" if replaces else ""
        console.note(
            f"wrote {chrome} ({bytes_text(written)}{replaced}); open it in https://ui.perfetto.dev"
        )
