"""Ablate layers or channels one at a time, and rank them by the effect."""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from hookscope.cli import options
from hookscope.cli.commands import Example
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command, table_options
from hookscope.cli.next_command import edit_command
from hookscope.cli.output_file import Output, only
from hookscope.cli.runner import remember_executed, run_analysis
from hookscope.files.output_path import check_ending
from hookscope.files.progress_types import Progress
from hookscope.specs.command_options import AblateOptions
from hookscope.specs.public import PLAIN_LOSS, PLAIN_RUN, public
from hookscope.specs.request import (
    InputRequest,
    LayerSelection,
    LossRequest,
    ModelRequest,
    Request,
)
from hookscope.specs.run_options import RunOptions

if TYPE_CHECKING:
    from hookscope.results.ablation import Ablation


@public
def ablate(
    options: AblateOptions,
    loss: Annotated[LossRequest, PLAIN_LOSS],
    layers: LayerSelection,
    input: InputRequest,
    model: ModelRequest,
    run: Annotated[RunOptions, PLAIN_RUN],
    request: Request,
    *,
    file: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Ablation:
    """Ablate each selected layer in turn, and rank the layers by the change of the output.

    An ablation is an edit of a layer's output, in all of its calls. The model runs once for each,
    from the same seed.

    Args:
        loss: as for ``grads``. None: ``ce`` if the output has class scores, else no loss.
        target: as for ``grads``. ``argmax`` is the class predicted by the run without ablation.
        layers: layer patterns. By default, without types or depth: all leaf modules.
        file: a JSON file that the result is written to every few seconds and at the end. If it has
            a part of the same ablation, the run resumes from it.
        progress: called with the number of ablations done and the total.

    Raises:
        RequestError: ``by`` or ``rank`` is not one of these values, or no layer can be ablated.
        LossError: the loss or its target does not fit the output, or the metric to rank by is not
            defined for it.
        ForwardError: the model raised without ablation.
        CheckFailed: every ablation failed.
        StoreError: the file cannot be written.

    Example:
        >>> import torch, hookscope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Flatten())
        >>> found = hookscope.ablate(net, input=torch.ones(2, 4), rank="output")
        >>> [(ablation.layer, ablation.output) for ablation in found.ablations]
        [('0', 1.0), ('1', 1.0), ('2', 1.0)]
    """
    from hookscope.execution.isolation import disable_mha_fast_path
    from hookscope.execution.objective import resolve_loss
    from hookscope.execution.prepare import prepare
    from hookscope.execution.provenance import describe_run
    from hookscope.model_analysis.sweep.ablation_run import prepare_ablation
    from hookscope.model_analysis.sweep.edit_scan import make_runs
    from hookscope.model_analysis.sweep.effect_measure import resolve_measure
    from hookscope.tensors.grad_mode import grad_mode

    if file is not None:
        check_ending(Path(file), ".json")
    objective = resolve_loss(loss)
    selection = replace(layers, leaves=layers.leaves or layers.everything)
    prepared = prepare(replace(request, layers=selection))
    measure = functools.partial(
        resolve_measure, prepared, request=loss, rank=options.rank, objective=objective
    )
    # The fast path of transformers skips layers, which then could not be ablated.
    with grad_mode(False), disable_mha_fast_path():
        metadata = describe_run("ablate", prepared, request.chosen(options))
        job, result = prepare_ablation(
            prepared,
            options.by,
            options.channels,
            options.rank,
            measure,
            metadata,
            resumable=file is not None,
        )
        return make_runs(result, list(job.layers), job.run, file, progress)


EXAMPLES = (
    Example(
        "hookscope ablate sample_models/digits.py:trained -i sample_models/five.png",
        "The layers that a trained model needs to recognize a five.",
    ),
    Example(
        'hookscope ablate sample_models/digits_scripted.pt --layer "conv*" --channels --by mean',
        "Every channel of two layers of a scripted file.",
    ),
    Example(
        'hookscope ablate --layer "layer?.?" --by noise --rank output --shape 2x3x64x64',
        "Blocks of resnet18, ranked by the change of the output.",
    ),
)

MEANINGS = {
    "Ablations (--by)": [
        ("zero", "the output becomes 0"),
        ("mean", "each channel becomes its mean over the batch and all positions"),
        ("noise", "standard normal noise is added, scaled by the output's standard deviation"),
    ],
    "Metrics (--rank)": [
        ("score", "change of the target's logit, averaged over the batch"),
        ("loss", "change of the loss"),
        ("output", "norm of the change of the output, divided by the norm of the original output"),
        ("flipped", "number of images or positions whose predicted class changed; not for --rank"),
    ],
}

OUTPUT = Output(
    "JSON file to write, and to resume from. Default: MODEL.ablate.json.",
    only(".json"),
    ".{command}.json",
    optional=True,
)


@command(
    "ablate",
    options.model,
    options_of(AblateOptions),
    options.loss,
    options.layers,
    options.inputs,
    options.texts,
    options.run,
    OUTPUT.options,
    table_options,
    views="sweep",
    examples=EXAMPLES,
    main="layer channels by target input model-arg output no-output",
    also="rank shape",
    notes=MEANINGS,
    topics="model-specs layers inputs weights losses",
)
def ablate_command(ctx: click.Context, **values: Any) -> None:
    """Ablate layers one at a time and rank them by the effect.

    Runs the model once for each selected layer (default: all leaf layers) with its output changed,
    and shows the change of the target's score, the loss and the output, the largest first. The
    target is determined by the run without an ablation. Results are written to a JSON file during
    the run: after an interruption, the same command resumes.
    """
    result = run_analysis(ctx, ablate, values, OUTPUT, "ablating", "ablations")
    remember_executed(values["model"], result.coverage)
    if result.ablations:
        ctx.obj.note(f"next: {edit_command(ctx, result.ablations[0].edit(result.edit))}")
